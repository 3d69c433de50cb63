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
	require.EqualError(t, &Error{Call: "cuInit", Device: -1, Result: 12345, Name: "CUDA_ERROR_NEW"}, "cuInit: CUDA_ERROR_NEW")
	require.EqualError(t, &Error{Call: "cuInit", Device: -1, Result: NotFound, Name: "x"}, "cuInit: CUDA_ERROR_NOT_FOUND")
}

// What a program meets on a machine that is set up wrong has a name and advice.
func TestFirstContact(t *testing.T) {
	numbers := []int32{34, 36, 46, 100, 218, 220, 221, 222, 223, 226, 304, 400, 721}
	for _, all := range [][2]int32{{800, 810}, {900, 908}} {
		for n := all[0]; n <= all[1]; n++ {
			numbers = append(numbers, n)
		}
	}
	for _, n := range numbers {
		r := Result(n)
		require.True(t, r.Known(), "%d", n)
		require.Regexp(t, "^CUDA_ERROR_[A-Z_]+$", r.String(), "%d", n)
		require.NotEmpty(t, known[r].advice, "%v", r)
	}
	require.ErrorContains(t, &Error{Call: "cuModuleLoadDataEx", Result: CompilerNotFound}, "NVIDIA_DRIVER_CAPABILITIES=compute")
}

// Only results that end a context are sticky: those of which the driver's
// manual says that the process must be terminated and relaunched.
func TestSticky(t *testing.T) {
	lost := map[Result]bool{}
	for _, n := range []Result{4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810} {
		lost[n] = true
	}
	for n := Result(0); n < 1000; n++ {
		require.Equal(t, lost[n], n.Sticky(), "%v", n)
	}
}
