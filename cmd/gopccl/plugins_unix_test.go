//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/internal/plugin/host"
)

func writeConfig(t *testing.T, path, text string) {
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestPluginsList(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.yaml")
	sum, err := host.Digest(os.Args[0])
	require.NoError(t, err)
	other := strings.Repeat("ab", 32)
	writeConfig(t, path, "plugins:\n"+
		"  - {name: mine, kind: solver, command: '"+os.Args[0]+"', sha256: "+sum+"}\n"+
		"  - {name: changed, kind: solver, command: '"+os.Args[0]+"', sha256: "+other+"}\n"+
		"  - {name: free, kind: quantizer, command: '"+os.Args[0]+"'}\n"+
		"  - {name: gone, kind: backend, command: /nonexistent/x}\n")
	code, out, errOut := gopccl(t, "plugins", "list", "--config", path)
	require.Equal(t, exitOK, code, errOut)
	for _, want := range []string{`mine +solver .* yes +` + sum, `changed +solver .* DIFFERS +` + sum, `free +quantizer .* no +` + sum, `gone +backend +/nonexistent/x +missing`} {
		require.Regexp(t, want, out)
	}
	code, out, _ = gopccl(t, "plugins", "list")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "no plugins")

	// A plugin that cannot start is not a configuration for a master.
	code, _, errOut = gopccl(t, "master", "--listen", "127.0.0.1:0", "--config", path)
	require.Equal(t, exitUsage, code)
	require.Contains(t, errOut, "plugin changed")
}

func TestPluginsCheck(t *testing.T) {
	code, out, errOut := gopccl(t, "plugins", "check", os.Args[0], pluginOfTests)
	require.Equal(t, exitOK, code, out+errOut)
	require.Regexp(t, `ok +small groups against all rings: best ring in (\d+) of \d+`, out)
	require.Regexp(t, `ok +keeps its budget`, out)
	code, out, errOut = gopccl(t, "plugins", "check", "/bin/true")
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, "FAIL  starts")
	require.Contains(t, errOut, "checks failed")
	code, _, _ = gopccl(t, "plugins", "check", "/nonexistent/plugin")
	require.Equal(t, exitUsage, code)
}

// A running master takes a plugin from a changed file at SIGHUP, uses it, and
// gives it back; a broken file changes nothing. No plugin outlives it.
func TestMasterReloadsAtHangup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.yaml")
	writeConfig(t, path, "master:\n  listen: 127.0.0.1:0\n")
	cmd := exec.Command(os.Args[0], "master", "--config", path, "--log-format", "text")
	var out collected
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	const long = 2 * time.Minute
	appears := func(pattern string) []string {
		re := regexp.MustCompile(pattern)
		var m []string
		require.Eventually(t, func() bool {
			m = re.FindStringSubmatch(out.String())
			return m != nil
		}, long, 5*time.Millisecond, "%s", pattern)
		return m
	}
	addr := appears(`master listens.* addr=(\S+)`)[1]
	hangup := func() { require.NoError(t, cmd.Process.Signal(syscall.SIGHUP)) }

	writeConfig(t, path, "plugins:\n  - {name: mine, kind: solver, command: '"+os.Args[0]+"', args: ["+pluginOfTests+"]}\ntopology:\n  solver: mine\n")
	hangup()
	appears(`configuration taken over.* solver=mine plugins=mine`)
	pid, err := strconv.Atoi(appears(`plugin runs.* pid=(\d+)`)[1])
	require.NoError(t, err)

	writeConfig(t, path, "topology:\n  solver: nobody\n")
	hangup()
	appears(`configuration not taken over.*unknown solver .?"nobody`)
	require.NoError(t, syscall.Kill(pid, 0))

	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	comm, err := core.Connect(ctx, core.Options{Master: addr, ListenHost: "127.0.0.1", PortBase: -1})
	require.NoError(t, err)
	require.NoError(t, comm.Close())

	writeConfig(t, path, "topology:\n  solver: auto\nmaster:\n  lost_state: anew\n  lost_members: drop\n")
	hangup()
	appears(`configuration taken over.* solver=auto`)
	appears(`an operator lets groups whose shared state is lost start over`) // S1-25
	appears(`an operator lets groups go on without members that do not come back`)
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil }, long, 5*time.Millisecond)

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "%s", &out)
}
