//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// collected is what a process wrote so far.
type collected struct {
	mu sync.Mutex
	b  strings.Builder
}

func (c *collected) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.Write(p)
}

func (c *collected) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.String()
}

// SIGUSR1 makes a master and a peer write what they hold, and go on.
func TestSignalDumpsTheState(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	run := func(ctx context.Context, input string, args ...string) (*exec.Cmd, *collected, *collected) {
		cmd := exec.CommandContext(ctx, self, args...)
		var out, errOut collected
		cmd.Stdout, cmd.Stderr = &out, &errOut
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = in.Write([]byte(input))
		require.NoError(t, err)
		return cmd, &out, &errOut
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	master, out, masterErr := run(ctx, "", "master", "--listen", "127.0.0.1:0", "--log-format", "text")
	var addr string
	require.Eventually(t, func() bool {
		if m := regexp.MustCompile(`addr=(\S+)`).FindStringSubmatch(out.String()); m != nil {
			addr = m[1]
		}
		return addr != ""
	}, 2*time.Minute, time.Millisecond)
	peer, _, peerErr := run(ctx, `{"World":2}`+"\n", "bench", benchPeer, addr) // alone it waits for the other one
	dumped := func(cmd *exec.Cmd, text *collected, want string) {
		require.Eventually(t, func() bool { // S4-30
			return cmd.Process.Signal(syscall.SIGUSR1) == nil && regexp.MustCompile(want).MatchString(text.String())
		}, 2*time.Minute, 20*time.Millisecond, want)
	}
	dumped(master, masterErr, `gopccl: master at `+regexp.QuoteMeta(addr)+`: 1 clients`)
	dumped(master, masterErr, `gopccl: 0 communicators\n`)
	dumped(peer, peerErr, `(?s)gopccl: 1 communicators\ncommunicator [0-9a-f-]{36}: connected to the master `+regexp.QuoteMeta(addr)+`, rank 0 of 1`)
	for _, c := range []*exec.Cmd{peer, master} {
		require.NoError(t, c.Process.Signal(syscall.SIGTERM))
		c.Wait()
	}
	require.Equal(t, exitOK, master.ProcessState.ExitCode(), "it went on and ended in good order")
}

// A dump of this process shows its masters and the API's communicators.
func TestDumpShowsMasters(t *testing.T) {
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	defer m.Close()
	remove := showInDump(m)
	var b strings.Builder
	dumpState(&b)
	require.Contains(t, b.String(), m.Addr().String())
	remove()
	b.Reset()
	dumpState(&b)
	require.Equal(t, "gopccl: 0 communicators\n", b.String())
}
