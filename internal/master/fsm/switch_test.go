package fsm

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/master/fsm/pace"
	"github.com/gopccl/gopccl/internal/wire"
)

var switching = Config{Solver: true, Background: true, Switch: true}

// switchers builds a world of n members that can switch rings.
func (w *world) switchers(n int) (cs []ClientID) {
	w.t.Helper()
	for range n {
		old := w.accepted()
		c := w.connectAt("127.0.0.1:4000")
		w.send(c, wire.C2MRequestSessionRegistration{P2PPort: 1, Ext: wire.Ext{Native: true, Switch: true}})
		require.True(w.t, want[wire.M2CSessionRegistrationResponse](w, c).Ext.Switch)
		for _, o := range old {
			w.send(o, acceptVote)
		}
		w.round(true)
		cs = append(cs, c)
	}
	w.facts = nil
	return cs
}

// searched builds such a world whose search in the background has something to
// find, and returns the search.
func searched(t *testing.T, n int) (*world, []ClientID, Solve) {
	return searchedWith(t, n, backwards(n))
}

func searchedWith(t *testing.T, n int, rate func(i, j int) float64) (*world, []ClientID, Solve) {
	w := newWorld(t, switching)
	cs := w.switchers(n)
	w.choose(cs, rate, false, sorted)
	w.after(restless)
	for _, c := range cs {
		w.inbox[c] = nil
	}
	return w, cs, w.lastSolve()
}

// offered takes the calls to connect for ring and returns the change.
func (w *world) offered(cs []ClientID, ring []wire.UUID) (change uint64) {
	w.t.Helper()
	for _, c := range cs {
		p := want[wire.M2CPrepareRing](w, c)
		change = p.Change
		var to []wire.UUID
		for _, e := range p.Peers {
			require.Equal(w.t, uint16(1), e.Addr.Port())
			to = append(to, e.UUID)
		}
		require.Equal(w.t, neighbours(ring, w.ids[c]), to)
	}
	return change
}

func (w *world) withdrawn(cs []ClientID, change uint64) {
	w.t.Helper()
	for _, c := range cs {
		require.Equal(w.t, wire.M2CSwitchRing{Change: change}, want[wire.M2CSwitchRing](w, c))
	}
}

// A better ring replaces the one in force when all have connected for it: no
// vote, no round, nothing aborted, whatever runs meanwhile.
func TestRingIsSwitchedBetweenCollectives(t *testing.T) {
	w, cs, s := searched(t, 5)
	better := reversed(s.Members)
	for _, c := range cs {
		w.send(c, initiate(1))
	}
	for _, c := range cs {
		want[wire.M2CCollectiveCommsCommence](w, c)
	}
	w.step(Solved{Job: s.Job, Ring: better, More: true})
	change := w.offered(cs, better)
	require.False(t, w.pending(cs), "no round is needed for it")
	for _, c := range cs[:4] {
		w.send(c, wire.C2MRingPrepared{Change: change})
		w.send(c, wire.C2MRingPrepared{Change: change}) // twice counts once
	}
	w.send(cs[4], wire.C2MRingPrepared{Change: change + 1})
	w.quiet(cs...)
	require.Equal(t, s.Members, w.m.Snapshot().Groups[0].Ring)
	w.send(cs[4], wire.C2MRingPrepared{Change: change})
	for _, c := range cs {
		require.Equal(t, wire.M2CSwitchRing{Change: change, Ring: better}, want[wire.M2CSwitchRing](w, c))
	}
	require.Equal(t, better, w.m.Snapshot().Groups[0].Ring)
	require.Contains(t, w.facts[len(w.facts)-1].Text, "installed")
	for _, c := range cs {
		w.send(c, complete(1, false))
	}
	for _, c := range cs {
		require.False(t, want[wire.M2CCollectiveCommsAbort](w, c).Aborted)
		want[wire.M2CCollectiveCommsComplete](w, c)
	}
	require.False(t, w.pending(cs))
	// The next round finds everybody connected.
	for _, c := range cs {
		w.send(c, acceptVote)
	}
	for _, c := range cs {
		require.True(t, want[wire.M2CP2PConnectionInfo](w, c).Unchanged)
	}
}

// Where somebody cannot switch, or the master must not, the ring waits for a round.
func TestRingWaitsForARound(t *testing.T) {
	for name, cfg := range map[string]Config{"a peer that cannot": switching, "by choice": background} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, cfg)
			cs := w.members(4, true)
			if cfg.Switch {
				cs = append(cs, w.switchers(1)...)
			}
			w.choose(cs, backwards(len(cs)), false, sorted)
			w.after(restless)
			for _, c := range cs {
				w.inbox[c] = nil
			}
			s := w.lastSolve()
			w.step(Solved{Job: s.Job, Ring: reversed(s.Members), More: true})
			w.quiet(cs...)
			require.True(t, w.pending(cs))
			require.Equal(t, reversed(s.Members), w.update(cs))
		})
	}
}

// A change ends with the members, with a round, and with an optimization.
func TestChangeIsWithdrawn(t *testing.T) {
	begin := func(t *testing.T) (*world, []ClientID, uint64) {
		w, cs, s := searched(t, 5)
		w.step(Solved{Job: s.Job, Ring: reversed(s.Members), More: true})
		change := w.offered(cs, reversed(s.Members))
		for _, c := range cs[1:] {
			w.send(c, wire.C2MRingPrepared{Change: change})
		}
		return w, cs, change
	}
	late := func(w *world, c ClientID, change uint64) {
		w.send(c, wire.C2MRingPrepared{Change: change})
		require.NotContains(w.t, w.closed, c)
	}
	t.Run("a member leaves", func(t *testing.T) {
		w, cs, change := begin(t)
		w.leave(cs[4])
		for _, c := range cs[:4] {
			want[wire.M2CPeerDropped](w, c)
		}
		w.withdrawn(cs[:4], change)
		late(w, cs[0], change)
		w.quiet(cs[:4]...)
	})
	t.Run("a round", func(t *testing.T) {
		w, cs, change := begin(t)
		for _, c := range cs {
			w.send(c, acceptVote)
		}
		w.withdrawn(cs, change)
		late(w, cs[0], change)
		require.Equal(t, reversed(w.lastSolve().Members), w.round(true)[cs[0]], "it brings the ring")
		w.quiet(cs...)
	})
	t.Run("an optimization", func(t *testing.T) {
		w, cs, change := begin(t)
		for _, c := range cs {
			w.send(c, wire.C2MOptimizeTopology{})
		}
		w.withdrawn(cs, change)
		late(w, cs[0], change)
	})
}

// A ring that somebody cannot connect for, or not in time, is given up and not
// tried again.
func TestRingThatCannotBeConnected(t *testing.T) {
	for _, silent := range []bool{false, true} {
		w, cs, s := searchedWith(t, 5, func(i, j int) float64 {
			if (i+2)%5 == j {
				return 1000
			}
			return 10
		})
		var better []wire.UUID // no pair of it is connected yet
		for _, i := range []int{0, 2, 4, 1, 3} {
			better = append(better, s.Members[i])
		}
		w.step(Solved{Job: s.Job, Ring: better, More: true})
		change := w.offered(cs, better)
		for _, c := range cs[1:] {
			w.send(c, wire.C2MRingPrepared{Change: change})
		}
		if silent {
			w.after(prepareTime)
		} else {
			// Only neighbours can be named.
			w.send(cs[0], wire.C2MRingPrepared{Change: change, FailedPeers: []wire.UUID{neighbours(better, w.ids[cs[0]])[1], w.ids[cs[1]], {9}}})
			require.Len(t, w.m.conns[cs[0]].ways.unreachable, 1)
		}
		w.withdrawn(cs, change)
		require.Contains(t, w.facts[len(w.facts)-1].Text, "given up")
		w.after(time.Hour)
		w.step(Solved{Job: s.Job, Ring: better, More: true})
		w.quiet(cs...)
		require.False(t, w.pending(cs))
		require.Equal(t, s.Members, w.update(cs))
	}
}

// A ring that was found too soon after the last change is offered when its time has
// come; no peer has to ask.
func TestRingIsOfferedLater(t *testing.T) {
	w, cs, s := searched(t, 5)
	better := reversed(s.Members)
	w.m.groups[0].search.changed = w.now
	w.step(Solved{Job: s.Job, Ring: better})
	w.quiet(cs...)
	w.after(restless - time.Nanosecond)
	w.quiet(cs...)
	w.after(time.Nanosecond)
	w.offered(cs, better)
}

// A ring that makes the collectives slower goes back the way it came.
func TestRingIsSwitchedBack(t *testing.T) {
	w, cs, s := searched(t, 5)
	better := reversed(s.Members)
	reduce := func(took time.Duration) {
		p := initiate(1)
		p.Count = 1 << 20
		for _, c := range cs {
			w.send(c, p)
		}
		w.now += took
		for _, c := range cs {
			w.send(c, complete(1, false))
		}
		for _, c := range cs {
			want[wire.M2CCollectiveCommsCommence](w, c)
			want[wire.M2CCollectiveCommsAbort](w, c)
			want[wire.M2CCollectiveCommsComplete](w, c)
		}
	}
	apply := func(ring []wire.UUID) {
		change := w.offered(cs, ring)
		for _, c := range cs {
			w.send(c, wire.C2MRingPrepared{Change: change})
		}
		for _, c := range cs {
			require.Equal(t, ring, want[wire.M2CSwitchRing](w, c).Ring)
		}
	}
	for range pace.Enough {
		reduce(10 * time.Millisecond)
	}
	w.step(Solved{Job: s.Job, Ring: better})
	apply(better)
	for range pace.Enough - 1 {
		reduce(20 * time.Millisecond)
	}
	for _, c := range cs {
		require.Empty(t, w.inbox[c])
	}
	reduce(20 * time.Millisecond)
	apply(s.Members)
	require.True(t, slices.ContainsFunc(w.facts, func(f Fact) bool { return f.Warn && f.Kind == "ring" }))
	w.quiet(cs...)
}
