package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/secure"
)

// trainerOfTests has the test binary stand in for the trainer of examples/ddp.
const trainerOfTests = "trainer-of-tests"

// The commands of the README make a run in TLS, whose peers have a token and no more.
func TestReadmeRunWithTokens(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	_, section, found := strings.Cut(strings.ReplaceAll(string(readme), "\r\n", "\n"), "## A run over the internet\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	t.Chdir(t.TempDir())
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	addr, ended := "", make(chan int, 1)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	peers := 0
	for _, line := range quotes(section) {
		if args, ok := strings.CutPrefix(line, "gopccl master "); ok {
			r, w := io.Pipe()
			go func() {
				ended <- execute(ctx, append(append([]string{"master"}, strings.Fields(args)...), "--listen", "127.0.0.1:0", "--log-format", "json"), strings.NewReader(""), w, io.Discard)
				w.Close()
			}()
			lines := bufio.NewScanner(r)
			require.True(t, lines.Scan())
			var said struct{ Addr string }
			require.NoError(t, json.Unmarshal(lines.Bytes(), &said))
			addr = said.Addr
			go io.Copy(io.Discard, r)
		} else if args, ok := strings.CutPrefix(line, "gopccl "); ok {
			code, _, errOut := gopccl(t, strings.Fields(args)...)
			require.Equal(t, exitOK, code, errOut)
		} else if args, ok := strings.CutPrefix(line, "go run ./examples/ddp "); ok {
			args = strings.ReplaceAll(args, "203.0.113.5:48148", addr)
			results := make(chan string, 2)
			for _, machine := range []string{"a", "b"} {
				cmd := exec.CommandContext(ctx, self, append([]string{trainerOfTests}, append(strings.Fields(strings.ReplaceAll(args, "peer.pem", machine+".pem")), "-steps", "2", "-batch", "1")...)...)
				go func() {
					out, err := cmd.CombinedOutput()
					if err != nil {
						out = append(out, "failed: "+err.Error()...)
					}
					results <- string(out)
				}()
			}
			for range 2 {
				require.NotContains(t, <-results, "failed")
				peers++
			}
		}
	}
	require.Equal(t, 2, peers) // S2-51
	for _, file := range []string{"a.pem", "b.pem"} {
		_, err := secure.LoadCredential(file, secure.LoadOptions{})
		require.NoError(t, err)
	}
	code, out, _ := gopccl(t, "keys", "list", "--dir", "run-keys", "--tokens")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "used up")
	stop()
	require.Equal(t, exitOK, <-ended)
}

// A token from the command that makes it to the one that withdraws it; only the first
// shows what is secret.
func TestKeysToken(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	file := func(name string) string { return filepath.Join(dir, "..", name) }
	ok := func(args ...string) string {
		t.Helper()
		code, out, errOut := gopccl(t, append([]string{"keys"}, args...)...)
		require.Equal(t, exitOK, code, errOut)
		return out
	}
	ok("init", "--dir", dir)
	text := strings.TrimSpace(ok("token", "--dir", dir, "--group", "0,3", "--name", "gpu-*", "--master", "203.0.113.5:48148"))
	token, err := secure.ParseToken(text)
	require.NoError(t, err)
	require.Contains(t, ok("token", "--dir", dir, "--uses", "7", "--expires", "2h", "--role", "observer", "--out", file("token.txt")), "uses: 7")

	shown := ok("show", text) + ok("show", text, "--dir", dir) + ok("show", "@"+file("token.txt"), "--dir", dir, "--json") + ok("list", "--dir", dir, "--tokens")
	require.Regexp(t, `masters +203.0.113.5:48148\nstate +valid\nuses left +1\n`, shown)
	require.Regexp(t, `name +gpu-\*\ngroups +0,3\n`, shown)
	require.Contains(t, shown, `"left": 7`)
	require.NotContains(t, shown, text[20:])
	var s shownToken
	require.NoError(t, json.Unmarshal([]byte(ok("show", text, "--json")), &s))
	require.Equal(t, token.Run(), s.Run)
	t.Setenv("GOPCCL_JOIN", text)
	code, out, _ := gopccl(t, "config", "explain")
	require.Equal(t, exitOK, code)
	require.Regexp(t, `security.join +set +environment`, out)
	require.NotContains(t, out, text[8:20])
	_, left := os.LookupEnv("GOPCCL_JOIN")
	require.False(t, left, "programs that are started do not get it")

	require.Contains(t, ok("revoke", s.ID, "--dir", dir), "withdrawn: join token "+s.ID)
	code, out, errOut := gopccl(t, "keys", "show", text, "--dir", dir)
	require.Equal(t, exitFailed, code)
	require.Contains(t, out+errOut, "unknown")
	for want, args := range map[string][]string{
		"--dir is needed":          {"token"},
		"0 uses":                   {"token", "--dir", dir, "--uses", "0"},
		"peers and observers only": {"token", "--dir", dir, "--role", "master"},
		"want 1m0s to 720h0m0s":    {"token", "--dir", dir, "--expires", "1s"},
		"want HOST:PORT":           {"token", "--dir", dir, "--master", "nowhere"},
		"could not be written":     {"token", "--dir", dir, "--out", file("token.txt")},
		"damaged or cut off":       {"show", text[:30]},
	} {
		code, out, errOut := gopccl(t, append([]string{"keys"}, args...)...)
		require.Equal(t, exitUsage, code, "%v: %s", args, errOut)
		require.Contains(t, errOut, want)
		require.Empty(t, out)
	}
}
