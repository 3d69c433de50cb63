package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/backends/cuda"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
)

// A program finds out at its start whether it can use a device, and why not.
func TestProbe(t *testing.T) {
	_, lookup := device.Lookup(device.CUDA)
	if err := cuda.Probe(); err != nil { // a machine without a device, or a program without the tag
		require.ErrorIs(t, err, errs.DeviceFailed)
		require.ErrorContains(t, err, "use host tensors, or ")
	} else {
		require.NoError(t, lookup)
	}
}
