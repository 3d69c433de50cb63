package fsm

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

var errTest = errors.New("bytes from nowhere")

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func failedTo(us ...wire.UUID) wire.C2MP2PConnectionsEstablished {
	return wire.C2MP2PConnectionsEstablished{FailedPeers: us}
}

// The votes of section 5.1 are unanimous over all groups; clients that were
// not let in have no vote.
func TestRoundVotesSpanGroups_Section5_1(t *testing.T) {
	for _, vote := range []wire.Packet{acceptVote, establishVote} {
		w := newWorld(t, Config{})
		cs := []ClientID{w.member(0, false), w.member(1, false), w.member(0, false)}
		n := w.join(1, false)
		w.send(cs[0], vote)
		w.send(cs[2], vote)
		w.quiet(append(cs, n)...)
		w.send(cs[1], vote)
		for _, c := range cs {
			require.Len(t, w.inbox[c], 1)
		}
		if vote == acceptVote {
			require.Len(t, w.inbox[n], 1)
		} else {
			require.Empty(t, w.inbox[n]) // S1-37, S2-12
		}
	}
}

// Accept round: everybody; establish round: the accepted. The counters of 7.2
// count those who take part or are members, and none who waits (quirk Q52).
func TestCounters_Section7_2_Q52(t *testing.T) {
	w := newWorld(t, Config{})
	cs := []ClientID{w.member(0, false), w.member(0, false), w.member(5, false)}
	n := w.join(5, false)
	for _, c := range cs {
		w.send(c, establishVote)
	}
	p := want[wire.M2CP2PConnectionInfo](w, cs[0])
	require.Equal(t, [4]uint64{3, 2, 2, 2}, [4]uint64{p.GlobalWorldSize, p.LocalWorldSize, p.NumDistinctGroup, p.LargestGroupSize})
	p = want[wire.M2CP2PConnectionInfo](w, cs[2])
	require.Equal(t, [4]uint64{3, 1, 2, 2}, [4]uint64{p.GlobalWorldSize, p.LocalWorldSize, p.NumDistinctGroup, p.LargestGroupSize})
	w.quiet(n)
	want[wire.M2CP2PConnectionInfo](w, cs[1])
	for _, c := range cs {
		w.send(c, connected)
	}
	for _, c := range cs {
		require.True(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		w.send(c, acceptVote)
	}
	p = want[wire.M2CP2PConnectionInfo](w, cs[2])
	require.Equal(t, [4]uint64{4, 2, 2, 2}, [4]uint64{p.GlobalWorldSize, p.LocalWorldSize, p.NumDistinctGroup, p.LargestGroupSize})
	require.Equal(t, w.ids[n], p.Peers[0].UUID)
}

// A program that begins "when there are n" begins with n: a newcomer on trial,
// which an accept round leaves outside, is not counted before it is a member.
func TestTrialsAreNotCounted_Q52(t *testing.T) {
	f := newField(t, 2)
	ready := f.enter()
	f.try()
	f.enter() // on trial
	for _, c := range f.cs {
		f.w.send(c, acceptVote)
	}
	p := want[wire.M2CP2PConnectionInfo](f.w, ready)
	require.Equal(t, [2]uint64{3, 3}, [2]uint64{p.GlobalWorldSize, p.LocalWorldSize})
}

// The peer list: previous, then next; one if they are the same; unchanged if
// the members are those last sent, whether or not that round succeeded.
func TestPeerList_Section7_2(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, false)
	fourth := w.join(0, false)
	for _, c := range cs {
		w.send(c, acceptVote)
	}
	// uuids count up, so the ring is 0 1 2 3.
	p := want[wire.M2CP2PConnectionInfo](w, cs[0])
	require.False(t, p.Unchanged)
	require.Equal(t, []wire.UUID{w.ids[fourth], w.ids[cs[1]]}, []wire.UUID{p.Peers[0].UUID, p.Peers[1].UUID})
	require.True(t, want[wire.M2CP2PConnectionInfo](w, cs[1]).Unchanged)
	require.False(t, want[wire.M2CP2PConnectionInfo](w, cs[2]).Unchanged)
	want[wire.M2CP2PConnectionInfo](w, fourth)
	// The round fails; the list counts as sent.
	w.send(cs[0], failedTo())
	for _, c := range []ClientID{cs[1], cs[2], fourth} {
		w.send(c, connected)
	}
	all := append(cs, fourth)
	for _, c := range all {
		require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		w.send(c, acceptVote)
	}
	for _, c := range all {
		p := want[wire.M2CP2PConnectionInfo](w, c)
		require.True(t, p.Unchanged)
		require.Empty(t, p.Peers)
	}
}

// "The round ends when no client is CONNECTING any more": no peer is answered
// before, all are then, with the ring of the own group.
func TestRoundEnd_Section7_3(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := w.member(0, false), w.member(1, false)
	c := w.join(1, false)
	w.send(a, acceptVote)
	w.send(b, acceptVote)
	late := w.join(0, false) // registered after the round began
	for _, x := range []ClientID{a, b} {
		want[wire.M2CP2PConnectionInfo](w, x)
		w.send(x, connected)
		w.quiet(x)
	}
	want[wire.M2CP2PConnectionInfo](w, c)
	w.send(c, connected)
	require.Equal(t, []wire.UUID{w.ids[a]}, want[wire.M2CP2PConnectionsEstablished](w, a).Ring)
	require.Equal(t, []wire.UUID{w.ids[b], w.ids[c]}, want[wire.M2CP2PConnectionsEstablished](w, b).Ring)
	require.Equal(t, []wire.UUID{w.ids[b], w.ids[c]}, want[wire.M2CP2PConnectionsEstablished](w, c).Ring)
	w.quiet(late)
	require.Equal(t, []ClientID{a, b, c}, w.accepted())
	w.send(a, acceptVote)
	w.send(b, acceptVote)
	w.send(c, acceptVote)
	require.Len(t, w.inbox[late], 1)
}

// A failed round: the waiting ones have to vote again, newcomers are accepted
// and vote like everybody (accept = 1).
func TestFailedRound_Section7_3(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, false)
	n := w.join(0, false)
	for _, c := range cs {
		w.send(c, acceptVote)
	}
	for _, c := range append(cs, n) {
		want[wire.M2CP2PConnectionInfo](w, c)
	}
	w.leave(cs[2])
	for _, c := range []ClientID{cs[0], cs[1], n} {
		w.quiet(c)
		w.send(c, connected)
	}
	for _, c := range []ClientID{cs[0], cs[1], n} {
		require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		require.Equal(t, ConnectFailed, w.state(c))
		w.send(c, acceptVote)
	}
	require.Len(t, w.round(true)[n], 3)
}

// A reporter alone in its group fails its group's part of the round and stays.
func TestReporterAlone_Section7_3(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := w.member(0, false), w.member(1, false)
	w.send(a, establishVote)
	w.send(b, establishVote)
	want[wire.M2CP2PConnectionInfo](w, a)
	want[wire.M2CP2PConnectionInfo](w, b)
	w.send(a, failedTo(w.ids[b], wire.UUID{99}, w.ids[a]))
	w.send(b, connected)
	require.True(t, want[wire.M2CP2PConnectionsEstablished](w, b).Success)
	require.False(t, want[wire.M2CP2PConnectionsEstablished](w, a).Success)
	w.send(a, establishVote) // no other is needed for that
	w.round(true)
	w.quiet(a, b)
}

// Quirk Q5: a peer that one other cannot reach is given other neighbours, and no
// peer is kicked as long as a ring exists.
func TestRouteAroundUnreachablePair_Q5(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(4, false)
	for _, c := range cs {
		w.send(c, establishVote)
	}
	for _, c := range cs {
		want[wire.M2CP2PConnectionInfo](w, c)
	}
	w.send(cs[0], failedTo(w.ids[cs[1]]))
	for _, c := range cs[1:] {
		w.send(c, connected)
	}
	for _, c := range cs {
		require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		w.send(c, establishVote)
	}
	ring := w.round(true)[cs[0]]
	require.Len(t, ring, 4)
	require.NotContains(t, neighbours(ring, w.ids[cs[0]]), w.ids[cs[1]]) // S2-15
	// It stays away in later rounds, with a newcomer too.
	w.member(0, false)
	ring = w.m.Snapshot().Groups[0].Ring
	require.Len(t, ring, 5)
	require.NotContains(t, neighbours(ring, w.ids[cs[0]]), w.ids[cs[1]])
	w.quiet(cs...)
}

// A newcomer that no member can reach is turned away; the run is unharmed.
func TestUnreachableNewcomer_Q5(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(2, false)
	n := w.join(0, true)
	for _, c := range cs {
		w.send(c, acceptVote)
	}
	for _, c := range append(cs, n) {
		want[wire.M2CP2PConnectionInfo](w, c)
	}
	w.send(n, connected)
	w.send(cs[0], failedTo(w.ids[n]))
	w.send(cs[1], failedTo(w.ids[n]))
	w.isClosed(n, "cannot reach")
	for _, c := range cs {
		require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		w.send(c, acceptVote)
	}
	require.Len(t, w.round(true)[cs[0]], 2) // S2-15
	w.quiet(cs...)
}

// The one whose port is closed has to go, not those who say so.
func TestWhoIsNamedMostGoes_Q5(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, false)
	for _, c := range cs {
		w.send(c, establishVote)
	}
	for _, c := range cs {
		want[wire.M2CP2PConnectionInfo](w, c)
	}
	w.send(cs[0], failedTo(w.ids[cs[1]]))
	w.send(cs[2], failedTo(w.ids[cs[1]]))
	w.send(cs[1], connected)
	w.isClosed(cs[1], "cannot reach")
	w.send(cs[0], establishVote)
	w.send(cs[2], establishVote)
	for _, c := range []ClientID{cs[0], cs[2]} {
		require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
	}
	require.Len(t, w.round(true)[cs[0]], 2)
}

// Marks of earlier rounds are given up before anybody is.
func TestOldMarksHeal_Q5(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(4, false)
	fail := func(from, to ClientID) {
		live := w.accepted()
		for _, c := range live {
			w.send(c, establishVote)
		}
		for _, c := range live {
			want[wire.M2CP2PConnectionInfo](w, c)
		}
		for _, c := range live {
			if c == from {
				w.send(c, failedTo(w.ids[to]))
			} else {
				w.send(c, connected)
			}
		}
		for _, c := range live {
			if w.closed[c] == "" {
				require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
			}
		}
	}
	// In a ring of four one pair may be apart, and the opposite pair; a third
	// mark leaves no ring, unless the old ones are forgotten.
	fail(cs[0], cs[1])
	fail(cs[2], cs[0])
	w.quiet(cs...)
	for _, c := range cs {
		w.send(c, establishVote)
	}
	ring := w.round(true)[cs[0]]
	require.NotContains(t, neighbours(ring, w.ids[cs[0]]), w.ids[cs[2]])
}

// Large groups are routed around by search.
func TestRouteAroundInLargeGroup_Q5(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(20, false)
	for _, c := range cs {
		w.send(c, establishVote)
	}
	for _, c := range cs {
		want[wire.M2CP2PConnectionInfo](w, c)
	}
	n := len(cs)
	for i, c := range cs {
		if i%2 == 0 {
			w.send(c, failedTo(w.ids[cs[(i+1)%n]], w.ids[cs[(i+n-1)%n]]))
		} else {
			w.send(c, connected)
		}
	}
	for _, c := range cs {
		want[wire.M2CP2PConnectionsEstablished](w, c)
		w.send(c, establishVote)
	}
	ring := w.round(true)[cs[0]]
	require.Len(t, ring, n)
	for i := 0; i < n; i += 2 {
		near := neighbours(ring, w.ids[cs[i]])
		require.NotContains(t, near, w.ids[cs[(i+1)%n]])
		require.NotContains(t, near, w.ids[cs[(i+n-1)%n]])
	}
	// A peer that reaches no other has to go.
	for _, c := range cs {
		w.send(c, establishVote)
	}
	var rest []wire.UUID
	for _, c := range cs[1:] {
		rest = append(rest, w.ids[c])
	}
	w.send(cs[0], failedTo(rest...))
	for _, c := range cs[1:] {
		w.send(c, connected)
	}
	w.isClosed(cs[0], "cannot reach")
}

// The ring is sorted by uuid, whatever the order of joining; joining inserts,
// leaving removes (section 8).
func TestRingIsSorted_Section8(t *testing.T) {
	w := newWorld(t, Config{})
	order := []byte{9, 3, 200, 7}
	w.uuid = func() wire.UUID {
		u := wire.UUID{order[0]}
		order = order[1:]
		return u
	}
	cs := w.members(4, false)
	ring := w.m.Snapshot().Groups[0].Ring
	require.Equal(t, []wire.UUID{{3}, {7}, {9}, {200}}, ring)
	w.leave(cs[3])
	for _, c := range cs[:3] {
		w.send(c, establishVote)
	}
	require.Equal(t, []wire.UUID{{3}, {9}, {200}}, w.round(true)[cs[0]])
}

// A peer that does not report within the bound is dropped; the others go on.
func TestRoundTimeout(t *testing.T) {
	w := newWorld(t, Config{RoundTimeout: 30 * time.Second})
	cs := w.members(3, false)
	n := w.join(0, false)
	for _, c := range cs {
		w.send(c, acceptVote)
	}
	for _, c := range append(cs, n) {
		want[wire.M2CP2PConnectionInfo](w, c)
	}
	for _, c := range cs {
		w.send(c, connected)
	}
	w.after(newcomerTime - time.Millisecond)
	w.quiet(append(cs, n)...)
	w.after(time.Millisecond)
	w.isClosed(n, "not established within 3s")
	require.Equal(t, w.ids[n], w.factOf("dropped").Peer) // S1-37
	for _, c := range cs {
		require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		w.send(c, acceptVote)
	}
	// A member gets the whole time.
	for _, c := range cs {
		want[wire.M2CP2PConnectionInfo](w, c)
	}
	w.send(cs[1], connected)
	w.send(cs[2], connected)
	w.after(29 * time.Second)
	w.quiet(cs...)
	w.after(time.Second)
	w.isClosed(cs[0], "not established within 30s")
	for _, c := range cs[1:] {
		require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		w.send(c, acceptVote)
	}
	w.round(true)
	w.after(time.Hour)
	w.quiet(cs[1:]...)
}

// Quirk Q59: differing flavours deadlock in PCCL (see the transcript); with a
// gopccl peer among them a round without newcomers is held.
func TestMixedFlavours_Q59(t *testing.T) {
	w := newWorld(t, Config{})
	cs := []ClientID{w.member(0, false), w.member(0, true)}
	n := w.join(0, false)
	w.send(cs[0], acceptVote)
	w.send(cs[1], establishVote)
	require.Len(t, w.round(true)[cs[0]], 2)
	w.quiet(n)
}

// Pending query: unanimous, at any time, independent of everything else; the
// answer is the same for all.
func TestPendingQuery_Section5_1(t *testing.T) {
	w := newWorld(t, Config{})
	cs := []ClientID{w.member(0, false), w.member(1, false)}
	for _, waiting := range []bool{false, true} {
		if waiting {
			w.join(0, false)
		}
		w.send(cs[0], wire.C2MCheckPeersPending{})
		w.send(cs[0], initiate(1))
		want[wire.M2CCollectiveCommsCommence](w, cs[0])
		w.send(cs[0], complete(1, false))
		want[wire.M2CCollectiveCommsAbort](w, cs[0])
		want[wire.M2CCollectiveCommsComplete](w, cs[0])
		w.quiet(cs[0])
		w.send(cs[1], wire.C2MCheckPeersPending{})
		for _, c := range cs {
			require.Equal(t, waiting, want[wire.M2CPeersPendingResponse](w, c).PeersPending) // S1-36
		}
	}
}
