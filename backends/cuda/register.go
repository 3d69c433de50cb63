//go:build !nocuda && (linux || windows) && (amd64 || arm64)

package cuda

import (
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/internal/cuda"
)

func init() { device.Register(device.CUDA, cuda.System) }

// Probe opens the driver and says why no device can be used, nil if one can.
// Errors: errs.DeviceFailed.
func Probe() error { return cuda.System.Probe() }
