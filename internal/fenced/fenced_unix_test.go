//go:build unix

package fenced

import (
	"os"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Every byte inside can be read and written; the bytes on both sides cannot be read.
func TestMemoryIsFenced(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	page := os.Getpagesize()
	for _, n := range []int{0, 1, page, page + 1, 5 * page} {
		m := Memory(t, n)
		require.GreaterOrEqual(t, len(m), max(1, n))
		require.Zero(t, len(m)%page)
		require.Equal(t, len(m), cap(m))
		require.Equal(t, make([]byte, len(m)), m)
		for i := range m {
			m[i] = byte(i)
		}
		first := unsafe.Pointer(unsafe.SliceData(m))
		for _, at := range []int{-page, -1, len(m), len(m) + page - 1} {
			require.Panics(t, func() { sink = *(*byte)(unsafe.Add(first, at)) }, "%d bytes, at %d", n, at)
		}
	}
}

var sink byte
