//go:build unix

package checkpoint

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/scratch"
)

// The umask decides who may read a checkpoint, as with any other file.
func TestCheckpointHasThePermissionsOfTheUmask(t *testing.T) {
	dir := scratch.Dir(t)
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	info, err := os.Stat(save(t, dir, sample(1), 0))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
}
