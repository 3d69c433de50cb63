package shm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A plugin inherits a descriptor that it may write to. It can change the memory
// and not its size: what the host has mapped stays there.
func TestPluginCannotCutTheMemory(t *testing.T) {
	m, err := New(1 << 20)
	require.NoError(t, err)
	defer m.Close()
	theirs, err := Dup(m.File)
	require.NoError(t, err)
	defer theirs.Close()
	fd := int(theirs.Fd())
	require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(fd, 2<<20), unix.EPERM)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	require.ErrorIs(t, err, unix.EPERM, "nor can it take the host's right to write")

	plugin, err := Map(theirs, len(m.Bytes))
	require.NoError(t, err)
	plugin.Bytes[8192] = 7
	require.Equal(t, byte(7), m.Bytes[8192])
	Release(m.Bytes)
	require.Zero(t, plugin.Bytes[8192], "pages can still be given back")
	require.NoError(t, unix.Munmap(plugin.Bytes))
}
