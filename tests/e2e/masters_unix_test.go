//go:build unix

package e2e

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A leader that stands still is replaced, and when it goes on it leads no longer.
func TestLeaderIsStopped(t *testing.T) {
	t.Parallel()
	c := convene(t)
	at := c.leader()
	require.NoError(t, c.masters[at].cmd.Process.Signal(syscall.SIGSTOP))
	c.after(at)
	require.NoError(t, c.masters[at].cmd.Process.Signal(syscall.SIGCONT))
	c.givesUp(at)
}
