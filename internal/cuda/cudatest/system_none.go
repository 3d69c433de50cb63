//go:build nocuda || !(linux || windows) || !(amd64 || arm64)

package cudatest

import (
	"errors"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

func system() (driver.Driver, error) {
	return nil, errors.New("these tests were built without CUDA")
}
