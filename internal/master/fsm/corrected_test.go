package fsm

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// corrected says what is right where a transcript shows a bug of PCCL.
var corrected = map[string]func(*testing.T){
	// Quirk Q6: the first client after everybody left is not failed once.
	"first_after_disconnect/0": func(t *testing.T) {
		w := newWorld(t, Config{})
		a := w.member(0, false)
		w.leave(a)
		b := w.member(0, false)
		w.quiet(b)
		require.Equal(t, Idle, w.state(b))
	},
	// Quirk Q8: one accept round, successful at once.
	"registered_when_accepted_leaves/0": func(t *testing.T) {
		w := newWorld(t, Config{})
		a := w.member(0, false)
		b := w.join(0, false)
		w.quiet(b)
		w.leave(a)
		p := want[wire.M2CP2PConnectionInfo](w, b)
		require.Equal(t, wire.M2CP2PConnectionInfo{Unchanged: true, GlobalWorldSize: 1, LocalWorldSize: 1, NumDistinctGroup: 1, LargestGroupSize: 1}, p)
		w.quiet(b)
		w.send(b, connected)
		require.True(t, want[wire.M2CP2PConnectionsEstablished](w, b).Success)
	},
	"two_registered_when_accepted_leaves/0": func(t *testing.T) {
		w := newWorld(t, Config{})
		a := w.member(0, false)
		b, c := w.join(0, false), w.join(0, false)
		w.leave(a)
		require.Len(t, w.inbox[b], 1)
		require.Len(t, w.inbox[c], 1)
		rings := w.round(true)
		require.Equal(t, []wire.UUID{w.ids[b], w.ids[c]}, rings[b])
		require.Equal(t, rings[b], rings[c])
	},
	// Quirk Q10: a report for oneself is ignored, the master lives.
	"wrong_state/15": func(t *testing.T) {
		w := newWorld(t, Config{})
		a := w.member(0, false)
		w.send(a, wire.C2MReportPeerBandwidth{To: w.ids[a], Mbps: 100})
		w.quiet(a)
	},
	// Quirk Q5: with two peers there is no way around; the reporter has to go,
	// the other one goes on alone.
	"failed_peers/0": func(t *testing.T) {
		w := newWorld(t, Config{})
		cs := w.members(2, false)
		for _, c := range cs {
			w.send(c, establishVote)
		}
		for _, c := range cs {
			want[wire.M2CP2PConnectionInfo](w, c)
		}
		w.send(cs[0], wire.C2MP2PConnectionsEstablished{FailedPeers: []wire.UUID{w.ids[cs[1]]}})
		w.send(cs[1], connected)
		w.isClosed(cs[0], "cannot reach")
		require.False(t, want[wire.M2CP2PConnectionsEstablished](w, cs[1]).Success)
		w.send(cs[1], establishVote)
		require.Len(t, w.round(true)[cs[1]], 1)
	},
	// In a ring of three every pair is adjacent.
	"failed_peers/1": func(t *testing.T) {
		w := newWorld(t, Config{})
		cs := w.members(3, false)
		for _, c := range cs {
			w.send(c, establishVote)
		}
		for _, c := range cs {
			want[wire.M2CP2PConnectionInfo](w, c)
		}
		w.send(cs[0], wire.C2MP2PConnectionsEstablished{FailedPeers: []wire.UUID{w.ids[cs[1]]}})
		w.send(cs[1], connected)
		w.quiet(cs...)
		w.send(cs[2], connected)
		w.isClosed(cs[0], "cannot reach")
		for _, c := range cs[1:] {
			require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
			w.send(c, establishVote)
		}
		require.Equal(t, []wire.UUID{w.ids[cs[1]], w.ids[cs[2]]}, w.round(true)[cs[1]])
	},
	"new_joiner_fails/0": func(t *testing.T) {
		w := newWorld(t, Config{})
		a := w.member(0, false)
		b := w.join(0, false)
		w.send(a, acceptVote)
		want[wire.M2CP2PConnectionInfo](w, a)
		want[wire.M2CP2PConnectionInfo](w, b)
		w.send(b, wire.C2MP2PConnectionsEstablished{FailedPeers: []wire.UUID{w.ids[a]}})
		w.send(a, connected)
		w.isClosed(b, "cannot reach")
		require.False(t, want[wire.M2CP2PConnectionsEstablished](w, a).Success)
		w.send(a, acceptVote)
		w.round(true)
	},
	// Quirk Q6: a round that starts because somebody left does not fail.
	"disconnect_last_voter_establish/0": func(t *testing.T) {
		w := newWorld(t, Config{})
		cs := w.members(3, false)
		w.send(cs[0], acceptVote)
		w.send(cs[1], acceptVote)
		w.leave(cs[2])
		require.Len(t, w.round(true)[cs[0]], 2)
	},
	// Quirk Q11: optimize votes are counted again when somebody leaves.
	"optimize_disconnect/0": func(t *testing.T) {
		w := newWorld(t, Config{})
		cs := w.members(3, false)
		w.send(cs[0], wire.C2MOptimizeTopology{})
		w.send(cs[1], wire.C2MOptimizeTopology{})
		w.quiet(cs...)
		w.leave(cs[2])
		for i, c := range cs[:2] {
			r := want[wire.M2COptimizeTopologyResponse](w, c).Requests
			require.Len(t, r, 1)
			require.Equal(t, w.ids[cs[1-i]], r[0].To)
		}
	},
	"optimize_disconnect/1": func(t *testing.T) {
		w := newWorld(t, Config{})
		cs := w.members(3, false)
		for _, c := range cs {
			w.send(c, wire.C2MOptimizeTopology{})
		}
		for _, c := range cs[:2] {
			want[wire.M2COptimizeTopologyResponse](w, c)
			w.send(c, wire.C2MOptimizeTopologyWorkComplete{})
		}
		w.leave(cs[2])
		for _, c := range cs[:2] {
			require.True(t, want[wire.M2COptimizeTopologyComplete](w, c).Success)
		}
	},
	// Quirk Q9: without measurements the ring stays.
	"optimize_nobw/1": func(t *testing.T) { optimizeWithoutBandwidth(t, 2) },
	"optimize_nobw/2": func(t *testing.T) { optimizeWithoutBandwidth(t, 3) },
	// Quirk Q12: peers that left have no say.
	"sync_disconnects/1": func(t *testing.T) {
		w := newWorld(t, Config{})
		cs := w.members(3, false)
		w.send(cs[2], syncVoteOf(0, 0, entry("k", 2)))
		w.send(cs[1], syncVoteOf(0, 0, entry("k", 2)))
		w.leave(cs[2])
		w.send(cs[0], syncVoteOf(0, 0, entry("k", 1)))
		// One against one: the later vote wins.
		require.False(t, want[wire.M2CSyncSharedState](w, cs[0]).IsOutdated)
		p := want[wire.M2CSyncSharedState](w, cs[1])
		require.True(t, p.IsOutdated)
		require.Equal(t, []uint64{1}, p.Hashes)
		w.quiet(cs[:2]...)
	},
	// Quirk Q13: an election without a candidate ends the same way whatever
	// triggered it.
	"sync_disconnects/4": func(t *testing.T) {
		w := newWorld(t, Config{})
		cs := w.members(3, false)
		w.send(cs[0], syncVoteOf(0, wire.ReceiveOnly, entry("k", 1)))
		w.send(cs[1], syncVoteOf(0, wire.ReceiveOnly, entry("k", 1)))
		w.leave(cs[2])
		w.isClosed(cs[0], "offers a shared state")
		w.isClosed(cs[1], "offers a shared state")
	},
	// Quirk Q15: an abort dies with its group.
	"stale_abort/0": func(t *testing.T) {
		w := newWorld(t, Config{})
		for range 2 {
			cs := w.members(2, false)
			for _, c := range cs {
				w.send(c, initiate(0))
			}
			for _, c := range cs {
				want[wire.M2CCollectiveCommsCommence](w, c)
				w.send(c, complete(0, false))
			}
			for _, c := range cs {
				require.False(t, want[wire.M2CCollectiveCommsAbort](w, c).Aborted)
				want[wire.M2CCollectiveCommsComplete](w, c)
				w.send(c, initiate(0))
			}
			for _, c := range cs {
				want[wire.M2CCollectiveCommsCommence](w, c)
			}
			w.leave(cs[0])
			require.True(t, want[wire.M2CCollectiveCommsAbort](w, cs[1]).Aborted)
			w.leave(cs[1])
		}
	},
	// Quirk Q54: a refusal is not a reason to write to the others.
	"refused_while_first_connecting/0": func(t *testing.T) {
		w := newWorld(t, Config{})
		a := w.join(0, false)
		want[wire.M2CP2PConnectionInfo](w, a)
		b := w.connectAt("10.9.8.7:1000")
		w.send(b, wire.C2MRequestSessionRegistration{P2PPort: 1})
		require.False(t, want[wire.M2CSessionRegistrationResponse](w, b).Accepted)
		w.quiet(a, b)
	},
	// Quirk Q15: the expected revision survives its group, for a reason (see
	// TestARunGoesOnFromWhereItWas), but (Q6) the first client of the next one is
	// not failed, and an operator can let it begin anew, if not by PCCL's rule.
	"restart_revision/0": func(t *testing.T) {
		for _, pccl := range []bool{false, true} {
			w := newWorld(t, Config{PCCLRevisionRule: pccl, BeginAnew: true})
			cs := w.members(2, false)
			for rev := range uint64(2) {
				synchronise(w, cs, rev)
			}
			for _, c := range cs {
				w.leave(c)
			}
			c := w.member(0, false)
			w.send(c, syncVoteOf(0, 0, entry("k", 1)))
			p := want[wire.M2CSyncSharedState](w, c)
			require.Equal(t, pccl, p.IsOutdated)
			require.Equal(t, noAddr, p.Distributor)
		}
	},
}

func optimizeWithoutBandwidth(t *testing.T, n int) {
	w := newWorld(t, Config{Solver: true})
	cs := w.members(n, false)
	for _, c := range cs {
		w.send(c, wire.C2MOptimizeTopology{})
	}
	for _, c := range cs {
		require.Len(t, want[wire.M2COptimizeTopologyResponse](w, c).Requests, n-1)
		w.send(c, wire.C2MReportPeerBandwidth{To: w.ids[cs[0]], Mbps: math.NaN()})
		w.send(c, wire.C2MOptimizeTopologyWorkComplete{})
	}
	for _, s := range w.solves {
		w.step(Solved{Job: s.Job})
	}
	for _, c := range cs {
		want[wire.M2COptimizeTopologyComplete](w, c)
		w.send(c, establishVote)
	}
	require.Len(t, w.round(true)[cs[0]], n)
}

// synchronise runs one synchronisation in which all hold the same state.
func synchronise(w *world, cs []ClientID, rev uint64) {
	w.t.Helper()
	for _, c := range cs {
		w.send(c, syncVoteOf(rev, 0, entry("k", 1)))
	}
	for _, c := range cs {
		require.False(w.t, want[wire.M2CSyncSharedState](w, c).IsOutdated)
		w.send(c, wire.C2MDistSharedStateComplete{})
	}
	for _, c := range cs {
		want[wire.M2CSyncSharedStateComplete](w, c)
	}
}
