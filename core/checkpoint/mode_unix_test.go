//go:build unix

package checkpoint

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who may read a checkpoint is up to the umask, as with any other file.
func TestCheckpointHasThePermissionsOfTheUmask(t *testing.T) {
	dir := tempDir(t)
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	info, err := os.Stat(save(t, dir, sample(1), 0))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
}
