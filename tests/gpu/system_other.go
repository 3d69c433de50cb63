//go:build !cuda

package main

import (
	"errors"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

func systemDriver() (driver.Driver, error) {
	return nil, errors.New("this program was built without CUDA: run tools/gpucheck, or use -driver interpreter -small")
}
