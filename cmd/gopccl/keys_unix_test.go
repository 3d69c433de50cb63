//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nobody else can read a key, and one that others can read is refused.
func TestModesOfKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	out := filepath.Join(t.TempDir(), "gpu.pem")
	for _, args := range [][]string{{"keys", "init", "--dir", dir}, {"keys", "issue", "gpu", "--dir", dir, "--out", out}} {
		code, _, errOut := gopccl(t, args...)
		require.Equal(t, exitOK, code, errOut)
	}
	for path, want := range map[string]os.FileMode{
		dir: 0o700, out: 0o600, filepath.Join(dir, "authority.key"): 0o600, filepath.Join(dir, "issued.log"): 0o600, filepath.Join(dir, "revoked.crl"): 0o600,
	} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), path)
	}
	refused := func(path string, args ...string) {
		t.Helper()
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(path, info.Mode().Perm()|0o040))
		code, _, errOut := gopccl(t, args...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, errOut, "chmod")
		require.NoError(t, os.Chmod(path, info.Mode().Perm()))
	}
	refused(out, "keys", "show", out)
	refused(dir, "keys", "list", "--dir", dir)
	refused(filepath.Join(dir, "authority.key"), "keys", "revoke", "gpu", "--dir", dir)
}
