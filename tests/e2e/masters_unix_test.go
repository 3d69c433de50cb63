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
	t.Parallel()
	c := convene(t)
	at := c.leader()
	require.NoError(t, c.masters[at].cmd.Process.Signal(syscall.SIGSTOP))
	c.after(at)
	require.NoError(t, c.masters[at].cmd.Process.Signal(syscall.SIGCONT))
	for limit, lost := time.After(patience), -1; lost != at; {
		select {
		case r := <-c.lost:
			lost = r.ID
		case <-limit:
			t.Fatalf("it goes on to lead\n%s", autopsy(c.masters))
		}
	}
}
