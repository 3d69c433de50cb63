package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/wire"
)

// Anybody may ask what the master knows of the links, a stranger once.
func TestTopologyIsShown(t *testing.T) {
	w, cs := optimizing(t, Config{}, 3)
	w.probes(cs, func(e edge) float64 {
		if e.from == w.ids[cs[0]] {
			return 50
		}
		return 100
	})
	for _, c := range cs {
		for len(w.inbox[c]) > 0 {
			w.pop(c)
		}
	}
	stranger := w.connectAt("127.0.0.1:9")
	w.send(stranger, wire.C2MAskTopology{})
	got := want[wire.M2CTopology](w, stranger)
	require.Len(t, got.Groups, 1)
	g := got.Groups[0]
	require.Equal(t, []uint32{0, 1, 2}, g.Ring)
	require.Equal(t, []float64{0, 50, 50, 100, 0, 100, 100, 100, 0}, g.Mbps)
	require.Equal(t, w.ids[cs[1]], g.Peers[1].UUID)
	w.send(cs[0], wire.C2MAskTopology{})
	w.send(cs[0], wire.C2MAskTopology{})
	require.Equal(t, got, want[wire.M2CTopology](w, cs[0]))
	w.send(stranger, wire.C2MAskTopology{})
	w.isClosed(stranger, "twice")
	require.Empty(t, New(Config{}).Topology())
}
