package scratch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDirIsGoneWithAllInIt(t *testing.T) {
	var dir string
	t.Run("user", func(t *testing.T) {
		dir = Dir(t)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "b", "c"), []byte("d"), 0o600))
	})
	require.NoDirExists(t, dir)
}

func TestRemoveOfWhatIsNotThere(t *testing.T) {
	require.ErrorIs(t, Remove(filepath.Join(Dir(t), "none")), os.ErrNotExist)
}
