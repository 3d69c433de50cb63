//go:build (amd64 || arm64) && !noasm

package zeropoint

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/core/dtype"
)

// fenced is memory between two pages that must not be touched.
func fenced(t *testing.T) []byte {
	page := os.Getpagesize()
	m, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	require.NoError(t, unix.Mprotect(m[:page], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(m[2*page:], unix.PROT_NONE))
	return m[page : 2*page]
}

// No kernel touches a byte before or behind its operands.
func TestGuardPages(t *testing.T) {
	src, q := fenced(t), fenced(t)
	for i := range src {
		src[i] = byte(i*i>>3) & 0x7f
	}
	for n := range 300 {
		for _, at := range []int{0, 1} { // at the first byte, up to the last one
			f, w := src[at*(len(src)-4*n):][:4*n], q[at*(len(q)-n):][:n]
			m := New().Params(dtype.Float32, dtype.Uint8, f)
			New().Quantize(dtype.Float32, dtype.Uint8, &m, w, f)
			New().Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Set, f, w)
			New().Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Sum, f, w)
		}
	}
}
