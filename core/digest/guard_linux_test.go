package digest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The simple hash touches no byte before or behind its buffer.
func TestGuardPages(t *testing.T) {
	page := os.Getpagesize()
	size := max(4*rowSize/page, 1) * page
	m, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	require.NoError(t, unix.Mprotect(m[:page], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(m[page+size:], unix.PROT_NONE))
	b := m[page : page+size]
	for i := range b {
		b[i] = byte(i * 7919 >> 3)
	}
	for n := range size / 53 {
		n *= 53
		require.Equal(t, SimpleHash(append([]byte(nil), b[:n]...)), SimpleHash(b[:n]), "%d bytes", n)
		require.Equal(t, SimpleHash(append([]byte(nil), b[size-n:]...)), SimpleHash(b[size-n:]), "%d bytes", n)
	}
}
