package durable

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/scratch"
)

// Nothing syncs a directory here, and nothing fails.
func TestNoSyncOfDirectories(t *testing.T) {
	require.NoError(t, SyncDir(filepath.Join(scratch.Dir(t), "none")))
}

// A file that somebody reads is replaced when that has ended.
func TestFileIsRead(t *testing.T) {
	path := filepath.Join(scratch.Dir(t), "x")
	require.NoError(t, Create(path, []byte(before), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	time.AfterFunc(3*pause, func() { f.Close() })
	require.NoError(t, Replace(path, []byte(after), 0o600))
	require.Equal(t, after, read(t, path))
}
