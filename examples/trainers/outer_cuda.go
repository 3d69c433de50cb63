//go:build !nocuda && (linux || windows) && (amd64 || arm64)

package trainers

import "github.com/gopccl/gopccl/internal/cuda"

// openOuter takes outer steps on a device of this machine.
func openOuter(device int) (Outer, error) {
	if err := cuda.System.Probe(); err != nil {
		return nil, err
	}
	return NewDeviceOuter(cuda.System.Driver(), device)
}
