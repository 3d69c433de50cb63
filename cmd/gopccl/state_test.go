package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is wrong with the directory of a master is said, with what to do: by this program,
// which then ends, and leaves it as it is.
func TestStateThatIsNotOne(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "master.state")
	require.NoError(t, os.WriteFile(path, []byte("not ours"), 0o600))
	code, _, errOut := gopccl(t, "master", "--listen", "127.0.0.1:0", "--state", dir)
	require.NotZero(t, code)
	require.Contains(t, errOut, path)
	require.Contains(t, errOut, "restore it from a copy, or move it away")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "not ours", string(b))

	code, _, errOut = gopccl(t, "master", "--listen", "127.0.0.1:0", "--state", path)
	require.NotZero(t, code)
	require.Contains(t, errOut, "name a directory that the master may write to")
}
