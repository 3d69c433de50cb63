//go:build !nocuda && (linux || windows) && (amd64 || arm64)

package cudatest

import (
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/libcuda"
)

func system() (driver.Driver, error) { return libcuda.Open() }
