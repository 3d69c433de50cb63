//go:build unix

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A peer that is stopped (SIGSTOP) is dropped and named, on the survivors and
// on the master; the survivors go on, and the stopped one learns it when it
// wakes (PCCL: never). S1-37, S2-14
func TestStoppedPeerIsDropped(t *testing.T) {
	m, master := startMaster(t)
	var cs []*child
	for id := range 3 {
		cs = append(cs, start(t, order{Role: "trainer", Master: master, ID: id, Count: 50_000, World: 3}))
	}
	for _, c := range cs {
		c.await("step", 60*time.Second)
	}
	require.NoError(t, cs[2].cmd.Process.Signal(syscall.SIGSTOP))
	stopped := time.Now()
	for _, c := range cs[:2] {
		for {
			if r := c.await("step", 30*time.Second); r.World == 2 {
				break
			}
		}
	}
	t.Logf("the survivors went on %v after the stop", time.Since(stopped))
	require.Contains(t, m.log(), "silent for", "the master names the silent peer")
	require.True(t, strings.Contains(cs[0].log(), "silent for") || strings.Contains(cs[1].log(), "silent for"),
		"a survivor names the silent peer:\n%s", cs[0].log())
	require.NoError(t, cs[2].cmd.Process.Signal(syscall.SIGCONT))
	for {
		r, ok := <-cs[2].lines
		require.True(t, ok, "the stopped peer ended without a word\n%s", cs[2].log())
		if r.Event == "error" {
			t.Log("the stopped peer: ", r.Text)
			return
		}
	}
}
