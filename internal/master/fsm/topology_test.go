package fsm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/master/fsm/links"
	"github.com/gopccl/gopccl/internal/wire"
)

// Anybody may ask what the master knows of the links, a stranger once.
func TestTopologyIsShown(t *testing.T) {
	w, cs := optimizing(t, Config{}, 3)
	w.probes(cs, func(e links.Edge) float64 {
		if e.From == w.ids[cs[0]] {
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

// shown counts the answers that clients have got.
func (w *world) shown(cs ...ClientID) (n int) {
	for _, c := range cs {
		for _, p := range w.inbox[c] {
			if _, ok := p.(wire.M2CTopology); ok {
				n++
			}
		}
	}
	return n
}

// A client that asks again and again gets few answers, the last one after its last
// question.
func TestTopologyIsShownAtARate(t *testing.T) {
	w, _ := crowd(t, Config{}, 1, 64)
	c := w.join(0, false)
	for range 1900 {
		w.send(c, wire.C2MAskTopology{})
	}
	require.Equal(t, topologyAsks.burst, w.shown(c))
	w.after(time.Minute)
	require.Equal(t, topologyAsks.burst+1, w.shown(c), "questions that came while one waited are one")
	for range 600 {
		w.after(100 * time.Millisecond)
		w.send(c, wire.C2MAskTopology{})
	}
	require.InDelta(t, topologyAsks.burst+1+64, w.shown(c), 4)
	require.NotContains(t, w.closed, c)
	// It leaves while an answer is owed.
	for range 10 {
		w.send(c, wire.C2MAskTopology{})
	}
	w.leave(c)
	require.Empty(t, w.m.shows.owed)
	w.after(time.Minute)
}

// The cost of many that ask is bounded, and all are answered.
func TestTopologyForMany(t *testing.T) {
	w, by := crowd(t, Config{}, 1, 256)
	var cs []ClientID
	for range 200 {
		c := w.join(0, false)
		cs = append(cs, c)
		w.send(c, wire.C2MAskTopology{})
	}
	cells := 256*256 + 256
	require.LessOrEqual(t, w.shown(cs...)*cells, topologyCells+cells)
	w.after(time.Second)
	require.LessOrEqual(t, w.shown(cs...)*cells, 11*topologyCells+cells)
	w.after(time.Minute)
	for _, c := range cs {
		require.Equal(t, 1, w.shown(c))
	}
	w.send(by[0][0], wire.C2MAskTopology{})
	require.Equal(t, 1, w.shown(by[0][0]))
}
