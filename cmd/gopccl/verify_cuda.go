//go:build !nocuda && (linux || windows) && (amd64 || arm64)

package main

import (
	"github.com/gopccl/gopccl/internal/cuda"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// cudaDriver opens the system's driver; tests have another one.
var cudaDriver = func() (driver.Driver, error) {
	if err := cuda.System.Probe(); err != nil {
		return nil, err
	}
	return cuda.System.Driver(), nil
}
