package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
)

// The authority of a run is replaced in three steps, each of which says what is next.
func TestKeysRotateAuthority(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	file := filepath.Join(t.TempDir(), "gpu-7.pem")
	run := func(want int, args ...string) string {
		t.Helper()
		code, out, errOut := gopccl(t, append([]string{"keys"}, append(args, "--dir", dir)...)...)
		require.Equal(t, want, code, out+errOut)
		return out + errOut
	}
	run(exitOK, "init")
	run(exitOK, "issue", "gpu-7", "--out", file)
	for _, args := range [][]string{{"--authority", file}, {"--authority", "--finish"}, {"--force", file}, {}} {
		require.Contains(t, run(exitUsage, append([]string{"rotate"}, args...)...), "want one of FILE, --authority and --finish")
	}
	require.Contains(t, run(exitUsage, "rotate", "--finish"), "no rotation is under way")
	require.Regexp(t, `new authority; .*\npeer gpu-7 until 2`, run(exitOK, "rotate", "--authority"))
	require.Contains(t, run(exitUsage, "rotate", "--authority"), "--finish")
	require.Contains(t, run(exitUsage, "rotate", "--finish"), "peer gpu-7")
	run(exitOK, "rotate", file)
	c, err := secure.LoadCredential(file, secure.LoadOptions{})
	require.NoError(t, err)
	require.Len(t, c.Authorities(), 2)
	require.Contains(t, run(exitOK, "rotate", "--finish"), "revoked.crl")
	run(exitOK, "rotate", file)
	c, err = secure.LoadCredential(file, secure.LoadOptions{})
	require.NoError(t, err)
	require.Len(t, c.Authorities(), 1)
}
