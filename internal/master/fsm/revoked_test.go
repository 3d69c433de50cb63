package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// A client whose certificate is revoked hears so, and the others and the log with it,
// in one line; one that has not registered is closed.
func TestRevokedClients(t *testing.T) {
	const why = "certificate revoked of peer gpu-2: serial 7"
	w := newWorld(t, Config{})
	a, b := w.member(0, true), w.member(0, true)
	c := w.connectAt("127.0.0.1:50000")
	w.facts = nil
	w.step(Revoked{Client: b, Why: why})
	w.isClosed(b, why)
	require.Equal(t, why, want[wire.M2CPeerDropped](w, b).Reason)
	require.Equal(t, why, want[wire.M2CPeerDropped](w, a).Reason)
	require.Len(t, w.facts, 1)
	require.Contains(t, w.facts[0].Text, "is gone: "+why)
	require.True(t, w.facts[0].Warn)
	w.step(Revoked{Client: c, Why: why})
	w.isClosed(c, why)
	before := w.m.Snapshot()
	w.step(Revoked{Client: b, Why: why}) // it has left
	require.Equal(t, before, w.m.Snapshot())
	w.quiet(a)
}
