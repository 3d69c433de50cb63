//go:build unix

package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A leader that stands still is replaced, and when it goes on it leads no longer.
func TestLeaderIsStopped(t *testing.T) {
	c := convene(t)
	at := c.leader()
	require.NoError(t, c.masters[at].cmd.Process.Signal(syscall.SIGSTOP))
	next := c.leader()
	require.NotEqual(t, at, next)
	require.NoError(t, c.masters[at].cmd.Process.Signal(syscall.SIGCONT))
	select {
	case r := <-c.lost:
		require.Equal(t, at, r.ID)
	case <-time.After(time.Minute):
		t.Fatalf("it goes on to lead\n%s", autopsy(c.masters))
	}
}
