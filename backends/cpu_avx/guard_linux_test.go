//go:build amd64 && !noasm

package cpuavx

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/core/dtype"
)

// fenced is a page of memory between two that must not be touched.
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
	dst, a, b := fenced(t), fenced(t), fenced(t)
	for _, v := range here(t) {
		for typ := range dtype.Type(dtype.NumTypes) {
			t.Run(fmt.Sprint(v.Level.Name, "/", typ), func(*testing.T) {
				for n := 0; n <= 520; n += typ.Size() {
					end := len(dst) - n
					for op := dtype.Sum; op < dtype.NumOps; op++ {
						v.Reduce(typ, op, dst[:n], a[:n], b[:n])
						v.Reduce(typ, op, dst[end:], a[end:], b[end:])
					}
					v.Finalize(typ, dst[:n], 3)
					v.Finalize(typ, dst[end:], 3)
				}
			})
		}
	}
}
