package cuda_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/backends/cuda"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
)

// A program finds out at its start whether it can use a device, and why not.
func TestProbe(t *testing.T) {
	_, lookup := device.Lookup(device.CUDA)
	if err := cuda.Probe(); err != nil { // a machine without a device, or a program built without CUDA
		require.ErrorIs(t, err, errs.DeviceFailed)
		require.ErrorContains(t, err, "use host tensors, or ")
	} else {
		require.NoError(t, lookup)
	}
}

// What a program without devices pays for each pointer that it passes: a look
// at whether anybody has loaded the driver.
func BenchmarkHostPointer(b *testing.B) {
	x := make([]byte, 64)
	ptr := uint64(uintptr(unsafe.Pointer(&x[0])))
	for b.Loop() {
		if _, yes := device.Identify(ptr, len(x)); yes {
			b.Fatal("memory of the host is on a device")
		}
	}
}
