//go:build unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// The reader of a master's log goes away, as head does: the master says so on
// standard error and goes on.
func TestMasterOutlivesTheReaderOfItsLog(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "master", "--listen", "127.0.0.1:0", "--log-format", "text")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var errOut collected
	cmd.Stderr = &errOut
	require.NoError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	addr := regexp.MustCompile(`addr=(\S+)`).FindStringSubmatch(line)
	require.NotNil(t, addr, line)
	require.NoError(t, out.Close())

	for range 3 {
		c, err := core.Connect(t.Context(), core.Options{Master: addr[1], ListenHost: "127.0.0.1", PortBase: -1})
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool { return strings.Contains(errOut.String(), "the master continues") }, 2*time.Minute, time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "it ended in good order")
	require.Equal(t, 1, strings.Count(errOut.String(), "the master continues"), errOut.String())
}
