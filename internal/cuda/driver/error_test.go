package driver

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A failed call names itself, the device, the driver's result and what to do.
func TestError(t *testing.T) {
	err := error(&Error{Call: "cuMemAlloc", Device: 1, Result: OutOfMemory, Detail: "64 bytes"})
	require.EqualError(t, err, "cuMemAlloc on device 1: CUDA_ERROR_OUT_OF_MEMORY (64 bytes): free device memory, or lower backends.cuda.staging")
	wrapped := fmt.Errorf("staging: %w", err)
	require.ErrorIs(t, wrapped, &Error{Result: OutOfMemory})
	require.ErrorIs(t, wrapped, &Error{Call: "cuMemAlloc", Result: OutOfMemory})
	require.NotErrorIs(t, wrapped, &Error{Result: NoDevice})
	require.NotErrorIs(t, wrapped, &Error{Call: "cuInit", Result: OutOfMemory})
	require.False(t, errors.Is(wrapped, errors.ErrUnsupported))
	require.EqualError(t, &Error{Call: "cuInit", Device: -1, Result: 12345}, "cuInit: CUresult(12345)")
}

// Only results that end a context are sticky.
func TestSticky(t *testing.T) {
	for r := range known {
		switch {
		case r >= IllegalAddress && r != LaunchResources && r <= LaunchFailed, r == ECCUncorrectable, r == Deinitialized:
			require.True(t, r.Sticky(), "%v", r)
		default:
			require.False(t, r.Sticky(), "%v", r)
		}
	}
}
