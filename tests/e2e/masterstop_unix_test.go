//go:build unix

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/process"
)

// A master that stands still for longer than peers bear, and goes on: they leave its
// connections, and it takes them back. With -soak it is for 30 s, with the default bounds.
func TestMasterStops(t *testing.T) {
	t.Parallel()
	silence, still := 4*time.Second, 9*time.Second
	if *soak {
		silence, still = 0, 30*time.Second
	}
	k := newKillings(t, order{Silence: silence})
	for range 3 {
		k.add(order{World: 3, Silence: silence})
	}
	for range 3 {
		<-k.up
	}
	k.progress()
	require.NoError(t, process.Pause(k.master.cmd.Process))
	time.Sleep(still) // it is this long that it stands still
	require.NoError(t, process.Resume(k.master.cmd.Process))
	k.progress()
	k.end()
	for _, c := range k.crew {
		require.Contains(t, c.log(), "no sign of life", "it has not noticed")
		require.Contains(t, c.log(), "a master has taken this peer back")
	}
}
