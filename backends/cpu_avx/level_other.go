//go:build !amd64 || noasm

package cpuavx

import (
	"fmt"

	"github.com/gopccl/gopccl/backends/vectors"
)

func levels() ([]*vectors.Level, error) {
	return nil, fmt.Errorf("not an amd64 processor, or built without assembly")
}
