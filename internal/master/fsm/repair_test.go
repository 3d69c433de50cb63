package fsm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// With gopccl peers in it a group repairs its ring without the votes of other
// groups: in PCCL those would have to stop what they do (quirk Q68), and one
// that asks for pending peers meanwhile would never come back.
func TestGroupRepairsItsRingByItself(t *testing.T) {
	w := newWorld(t, Config{})
	a, b, c := w.member(1, true), w.member(1, true), w.member(1, true)
	x, y := w.member(2, true), w.member(2, true)
	w.leave(c)
	for _, o := range []ClientID{a, b} {
		want[wire.M2CPeerDropped](w, o)
	}
	w.send(x, wire.C2MCheckPeersPending{})
	w.send(a, establishVote)
	w.quiet(a, b, x, y)
	w.send(b, establishVote)
	rings := w.round(true)
	require.Len(t, rings, 2)
	require.Len(t, rings[a], 2)
	w.quiet(x, y)

	// The other group's round waits for the end of this one.
	w.send(a, establishVote)
	w.send(b, establishVote)
	want[wire.M2CP2PConnectionInfo](w, a)
	p := want[wire.M2CP2PConnectionInfo](w, b)
	require.EqualValues(t, 2, p.NumDistinctGroup)
	require.EqualValues(t, 4, p.GlobalWorldSize)
	w.send(x, establishVote)
	w.send(y, establishVote)
	w.quiet(x, y)
	w.send(a, connected)
	w.send(b, connected)
	want[wire.M2CP2PConnectionsEstablished](w, a)
	want[wire.M2CP2PConnectionsEstablished](w, b)
	require.Len(t, w.round(true), 2)

	// The votes of all groups are one accept round.
	for _, o := range []ClientID{a, b, x, y} {
		w.send(o, acceptVote)
	}
	require.Len(t, w.round(true), 4)
}

// Quirk Q59: flavours that differ inside a group are one establish round of
// this group; members of others that want newcomers wait on.
func TestMixedFlavoursInOneGroup(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := w.member(1, true), w.member(1, true)
	x := w.member(2, true)
	w.send(x, acceptVote)
	w.send(a, establishVote)
	w.quiet(a, b, x)
	w.send(b, acceptVote)
	require.Len(t, w.round(true), 2)
	w.quiet(x)
	w.send(a, acceptVote)
	w.send(b, acceptVote)
	require.Len(t, w.round(true), 3)
}

// Groups of different flavours do not disturb each other.
func TestRepairBesideAnAcceptVote(t *testing.T) {
	w := newWorld(t, Config{})
	a := w.member(1, true)
	x := w.member(2, true)
	w.send(x, acceptVote)
	w.send(a, establishVote)
	require.Len(t, w.round(true), 1)
	w.quiet(x)
}

// Control spec, section 5.1: PCCL peers wait for all groups.
func TestPCCLGroupsRepairTogether(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := w.member(1, false), w.member(1, false)
	x := w.member(2, false)
	w.send(a, establishVote)
	w.send(b, establishVote)
	w.quiet(a, b, x)
	w.send(x, establishVote)
	require.Len(t, w.round(true), 3)
}

// A round that all participants leave lets those in who wait outside.
func TestRoundWithoutParticipantsLetsWaitingPeersIn(t *testing.T) {
	w := newWorld(t, Config{})
	a := w.member(0, true)
	b := w.join(0, true)
	w.send(a, establishVote)
	want[wire.M2CP2PConnectionInfo](w, a)
	w.quiet(b)
	w.leave(a)
	want[wire.M2CPeerDropped](w, b)
	require.Len(t, w.round(true), 1)
}

// A newcomer that could not reach the last accepted peer, because that one
// died in the round, is not to blame.
func TestNewcomerOutlivesTheLastPeer(t *testing.T) {
	w := newWorld(t, Config{})
	a := w.member(0, true)
	b := w.join(0, true)
	w.send(a, acceptVote)
	want[wire.M2CP2PConnectionInfo](w, b)
	w.leave(a)
	want[wire.M2CPeerDropped](w, b)
	w.send(b, wire.C2MP2PConnectionsEstablished{FailedPeers: []wire.UUID{w.ids[a]}})
	require.False(t, want[wire.M2CP2PConnectionsEstablished](w, b).Success)
	w.quiet(b) // told to vote again, so no round starts by itself
	w.send(b, acceptVote)
	require.Len(t, w.round(true), 1)
}

// A peer that died in the round may have reported success before, and its end
// become known late: a peer that could not reach it is asked to try again, but
// not for ever (quirk Q5).
func TestUnreachablePeersAreTriedAgain(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := w.member(0, true), w.member(0, true)
	fail := func() {
		w.send(a, establishVote)
		w.send(b, establishVote)
		want[wire.M2CP2PConnectionInfo](w, a)
		want[wire.M2CP2PConnectionInfo](w, b)
		w.send(b, connected)
		w.send(a, wire.C2MP2PConnectionsEstablished{FailedPeers: []wire.UUID{w.ids[b]}})
	}
	repeat := func() {
		for _, o := range []ClientID{a, b} {
			require.False(t, want[wire.M2CP2PConnectionsEstablished](w, o).Success)
		}
		w.quiet(a, b)
	}
	fail()
	repeat()
	w.send(a, establishVote)
	w.send(b, establishVote)
	w.round(true) // a success forgets the strikes
	for range maxStrikes - 1 {
		fail()
		repeat()
	}
	fail()
	w.isClosed(a, "no ring of group 0")
}

// Short pauses of the master itself do not count as a peer's silence, however many.
func TestShortPausesAddUp(t *testing.T) {
	w := newWorld(t, Config{HeartbeatInterval: 2 * time.Second, HeartbeatTimeout: 8 * time.Second})
	w.member(0, true)
	b := w.connectAt("127.0.0.1:9")
	for range 3 { // 3 s late each time: not long enough to start anew
		due, ok := w.m.Deadline()
		require.True(t, ok)
		w.now = due + 3*time.Second
		w.step(Malformed{Client: b})
	}
	require.Len(t, w.closed, 1)
	w.after(8 * time.Second)
	require.Len(t, w.closed, 2) // but silence is still silence
}
