package fsm

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/master/fsm/links"
	"github.com/gopccl/gopccl/internal/wire"
)

// uplinked is a world of peers on hosts of two, two and one peer; what the first
// host sends, out Mbit/s, its peers share.
func uplinked(t *testing.T, out float64) (w *world, cs []ClientID) {
	w = newWorld(t, background)
	for i := range 5 {
		old := w.accepted()
		c := w.connectAt(fmt.Sprintf("10.0.0.%d:%d", 1+i/2, 1000+i))
		w.send(c, wire.C2MRequestSessionRegistration{BenchmarkPort: 3, Ext: wire.Ext{Native: true, Topology: true}})
		want[wire.M2CSessionRegistrationResponse](w, c)
		for _, o := range old {
			w.send(o, acceptVote)
		}
		w.round(true)
		cs = append(cs, c)
	}
	w.solves = nil
	w.optimize(cs)
	host := func(u wire.UUID) string { return w.m.uuids[u].remote.Addr().String() }
	for w.m.probes != nil {
		var called []ClientID
		var round []links.Edge
		exits := 0
		for _, c := range cs {
			p := w.pop(c)
			if p == nil {
				continue
			}
			e := links.Edge{From: w.ids[c], To: p.(wire.M2CProbe).To}
			called, round = append(called, c), append(round, e)
			if host(e.From) == "10.0.0.1" && host(e.To) != "10.0.0.1" {
				exits++
			}
		}
		n := w.m.numbers.probes
		for _, c := range called {
			w.send(c, wire.C2MProbeState{Round: n, State: wire.ProbeReady})
		}
		for i, c := range called {
			want[wire.M2CProbeGo](w, c)
			mbps := 90.0
			if e := round[i]; host(e.From) == "10.0.0.1" && host(e.To) != "10.0.0.1" {
				mbps = min(mbps, out/float64(exits))
			}
			w.send(c, wire.C2MProbeState{Round: n, State: wire.ProbeMeasured, Mbps: mbps})
		}
	}
	for _, c := range cs {
		want[wire.M2CProbesDone](w, c)
		w.send(c, wire.C2MOptimizeTopologyWorkComplete{})
	}
	require.Len(t, w.solves, 1)
	return w, cs
}

// Shares of hosts go to the solver, links with their rates alone, and rings are
// compared by the rates that are left when all their links are in use.
func TestSharedRingIsValuedTogether(t *testing.T) {
	w, cs := uplinked(t, 100)
	s := w.solves[0]
	require.Equal(t, &topo.Sharing{Host: []int{0, 0, 1, 1, 2}, Out: []float64{100, 0, 0}, In: []float64{0, 0, 0}}, s.Sharing) // S3-02
	for i := range 5 {
		for j := range 5 {
			if v, ok := s.Matrix.At(i, j); i != j {
				require.True(t, ok)
				require.Equal(t, 90.0, v, "from %d to %d, alone", i, j)
			}
		}
	}
	// A ring that leaves the first host twice is worse, though its links are not.
	var twice []wire.UUID
	for _, i := range []int{0, 2, 1, 3, 4} {
		twice = append(twice, s.Members[i])
	}
	w.step(Solved{Job: s.Job, Ring: twice})
	require.Contains(t, w.facts[len(w.facts)-1].Text, "ring kept, slowest link 90")
	require.Equal(t, s.Members, optimized(w, cs))

	// Where the uplink is wide enough nothing is shared.
	w, _ = uplinked(t, 1000)
	require.Nil(t, w.solves[0].Sharing)
}

// Collectives tell how much a host shares, not what its links can give: their
// rate is that of the uplink.
func TestShareIsLearnt(t *testing.T) {
	w, cs := uplinked(t, 100)
	s := w.solves[0]
	g := w.m.groups[0]
	var twice []wire.UUID
	for _, i := range []int{0, 2, 1, 3, 4} {
		twice = append(twice, s.Members[i])
	}
	g.order = twice
	w.step(Solved{Job: s.Job})
	require.Equal(t, twice, optimized(w, cs))
	known := func(from, to int) link { return w.m.conns[cs[from]].link(w.m.conns[cs[to]]) }
	w.send(cs[0], wire.C2MLinkReport{To: w.ids[cs[2]], Mbps: 40, Busy: 1})
	require.Equal(t, 90.0, known(0, 2).mbps)
	require.InDelta(t, 100+newShare*(80-100), g.shares.Mbps(addr("10.0.0.1:1").Addr(), links.Out), 1e-9)
	// A link that is slower than its part is slow by itself.
	l := known(0, 2)
	l.mbps = 20
	w.m.conns[cs[0]].setLink(w.m.conns[cs[2]], l)
	w.send(cs[0], wire.C2MLinkReport{To: w.ids[cs[2]], Mbps: 10, Busy: 1})
	require.InDelta(t, 20+newShare*(10-20), known(0, 2).mbps, 1e-9)
	require.InDelta(t, 94, g.shares.Mbps(addr("10.0.0.1:1").Addr(), links.Out), 1e-9)
	// A link that was not measured is not learnt from its part, but asked for.
	w.m.conns[cs[0]].ways.links[w.m.conns[cs[2]].ways.slot] = link{}
	w.m.conns[cs[4]].ways.links[w.m.conns[cs[0]].ways.slot] = link{}
	w.send(cs[0], wire.C2MLinkReport{To: w.ids[cs[2]], Mbps: 40, Busy: 1})
	w.send(cs[4], wire.C2MLinkReport{To: w.ids[cs[0]], Mbps: 40, Busy: 1})
	require.False(t, known(0, 2).known)
	require.False(t, known(4, 0).known)
	// A host without members is forgotten.
	w.leave(cs[0])
	require.NotEmpty(t, g.shares)
	w.leave(cs[1])
	require.Empty(t, g.shares)
}
