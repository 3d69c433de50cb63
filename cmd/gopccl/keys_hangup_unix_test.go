//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// SIGHUP reads the revocation list again, whether it has changed or not, and an error
// is in the log.
func TestHangupReadsTheRevocationList(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	head := filepath.Join(t.TempDir(), "head.pem")
	for _, args := range [][]string{{"keys", "init", "--dir", dir}, {"keys", "issue", "head", "--dir", dir, "--role", "master", "--out", head}} {
		code, _, errOut := gopccl(t, args...)
		require.Equal(t, exitOK, code, errOut)
	}
	path := filepath.Join(t.TempDir(), "run.yaml")
	writeConfig(t, path, "master:\n  listen: 127.0.0.1:0\nsecurity:\n  credential: "+head+"\n  revoked: "+filepath.Join(dir, "revoked.crl")+"\n")
	cmd := exec.Command(os.Args[0], "master", "--config", path, "--log-format", "text")
	var out collected
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	appears := func(text string) {
		require.Eventually(t, func() bool { return strings.Contains(out.String(), text) }, 2*time.Minute, 5*time.Millisecond, text)
	}
	appears("master listens")
	code, _, errOut := gopccl(t, "keys", "rotate", head, "--dir", dir)
	require.Equal(t, exitOK, code, errOut)
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	appears("the credential was taken over: credential master head")
	require.NoError(t, os.Remove(filepath.Join(dir, "revoked.crl")))
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	appears("configuration taken over")
	appears("keys not taken over")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "%s", &out)
}
