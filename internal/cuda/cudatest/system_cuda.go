//go:build cuda

package cudatest

import (
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/libcuda"
)

func system() (driver.Driver, error) { return libcuda.Open() }
