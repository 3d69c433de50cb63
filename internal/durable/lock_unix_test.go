//go:build unix

package durable

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/scratch"
)

// A process that has been forked, and has the open file, does not keep the lock when the
// one that took it gives it back.
func TestForkedProcess(t *testing.T) {
	path := filepath.Join(scratch.Dir(t), "lock")
	l, err := TryLock(path)
	require.NoError(t, err)
	child := exec.Command("cat")
	child.ExtraFiles = []*os.File{l.file}
	in, err := child.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	require.NoError(t, l.Unlock())
	next, err := TryLock(path)
	require.NoError(t, err)
	require.NoError(t, in.Close())
	require.NoError(t, child.Wait())
	_, err = TryLock(path)
	require.ErrorIs(t, err, ErrTaken, "and its end takes it from nobody")
	require.NoError(t, next.Unlock())
}

// A directory that cannot be synced because it is not there is an error.
func TestNoDirectory(t *testing.T) {
	require.ErrorIs(t, SyncDir(filepath.Join(scratch.Dir(t), "none")), os.ErrNotExist)
}
