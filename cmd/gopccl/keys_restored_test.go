package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A directory that was restored from a copy takes up a list that was in force, and revokes
// what its log does not have.
func TestKeysRevokeAfterARestore(t *testing.T) {
	dir, tmp := filepath.Join(t.TempDir(), "keys"), t.TempDir()
	run := func(want int, args ...string) string {
		t.Helper()
		code, out, errOut := gopccl(t, append([]string{"keys"}, append(args, "--dir", dir)...)...)
		require.Equal(t, want, code, out+errOut)
		return out + errOut
	}
	run(exitOK, "init")
	list, saved := filepath.Join(dir, "revoked.crl"), filepath.Join(tmp, "saved.crl")
	older, err := os.ReadFile(list)
	require.NoError(t, err)
	run(exitOK, "issue", "gpu-7", "--out", filepath.Join(tmp, "gpu-7.pem"))
	run(exitOK, "token", "--out", filepath.Join(tmp, "token"))
	run(exitOK, "revoke", "gpu-7")
	newer, err := os.ReadFile(list)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(saved, newer, 0o600))
	require.NoError(t, os.WriteFile(list, older, 0o600))
	require.NoError(t, os.Remove(filepath.Join(dir, "issued.log")))

	require.Contains(t, run(exitFailed, "revoke", "gpu-7"), "--unlogged")
	require.Regexp(t, `revoked [0-9a-f]{32}\nrevoked peer gpu-7\nwithdrew join token [0-9a-f]{16}, .*\nlist 3: 2 taken up from list 2`, run(exitOK, "revoke", "--list", saved))
	require.Contains(t, run(exitOK, "revoke", "--list", saved), "list 3: 0 taken up")
	require.Contains(t, run(exitOK, "revoke", "--unlogged", "--role", "observer", "board"), "revoked observer board")
	require.Contains(t, run(exitOK, "revoke", "--unlogged", "4f2a9c01d7e83b564f2a9c01d7e83b56"), "revoked serial 4f2a")
	require.Contains(t, run(exitFailed, "revoke", "--unlogged", "4f2a9c01d7e83b56"), "32 hex digits")
	require.Contains(t, run(exitFailed, "revoke", "--unlogged", "gpu-7"), "--role")
	require.Contains(t, run(exitUsage, "revoke", "--unlogged", "--role", "chief", "board"), "--role")
	for _, args := range [][]string{{}, {"x", "--list", saved}, {"--unlogged", "--list", saved}, {"x", "y"}} {
		run(exitUsage, append([]string{"revoke"}, args...)...)
	}
	require.NotEqual(t, exitOK, func() int {
		code, _, _ := gopccl(t, "keys", "revoke", "--list", filepath.Join(tmp, "gpu-7.pem"), "--dir", dir)
		return code
	}())
}
