package fsm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// begun is a master without an authority, at which a newcomer has begun a run alone.
func begun(t *testing.T) (*world, ClientID) {
	w := newWorld(t, Config{Resume: true, HeartbeatInterval: time.Second, HeartbeatTimeout: 5 * time.Second, Linger: 2 * time.Second})
	w.resume = true
	return w, w.members(1, true)[0]
}

// as has a peer come with a session that has been alone.
func (w *world) as(u wire.UUID) ClientID {
	c := w.connectAt("127.0.0.1:5")
	w.send(c, wire.C2MRequestSessionRegistration{P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, Ext: wire.Ext{
		Native: true, Resuming: wire.Resuming{Resume: true, Identity: wire.Identity{UUID: u}},
	}})
	return c
}

// Members of an earlier run come after a newcomer: theirs goes on, and it is let in as one.
func TestNewcomerGivesWay(t *testing.T) {
	for _, term := range []uint32{0, 2} {
		w, n := begun(t)
		u := w.ids[n]
		a := w.comes(two[0], term, [16]byte{})
		w.isClosed(n, "earlier run")
		p := want[wire.M2CSessionRegistrationResponse](w, a)
		require.True(t, p.Accepted)
		require.Equal(t, term+1, p.Ext.Resuming.Term)
		require.Equal(t, two[0], p.UUID)
		r := stood(two...)
		r.NextRevision = 7
		w.send(a, r)
		want[wire.M2CResumed](w, a)

		again := w.as(u)
		w.quiet(again) // until those who were there are together
		b := w.comes(two[1], term, [16]byte{})
		want[wire.M2CSessionRegistrationResponse](w, b)
		w.send(b, stood(two...))
		want[wire.M2CResumed](w, b)
		p = want[wire.M2CSessionRegistrationResponse](w, again)
		require.True(t, p.Accepted)
		require.NotEqual(t, u, p.UUID, "it is another session")
		require.Len(t, w.accepted(), 2)
		require.Equal(t, uint64(7), w.m.groups[0].state.next)
		require.True(t, w.m.conns[again].place.apart)
		require.Empty(t, w.m.recovery.youth.void)
	}
}

// Of two runs that have begun alone, the one with the later state goes on.
func TestLaterOfTwoAlone(t *testing.T) {
	for later := range 2 {
		w := heir(t, Config{})
		var cs [2]ClientID
		for i, u := range two {
			cs[i] = w.as(u)
			want[wire.M2CSessionRegistrationResponse](w, cs[i])
			r := stood(u)
			r.Round.World = 2
			if i == later {
				r.NextRevision = 4
			}
			w.send(cs[i], r)
		}
		w.after(w.m.longGrace()) // there may be others
		w.isClosed(cs[1-later], "earlier run")
		require.Equal(t, cs[later:later+1], w.accepted())
	}
}

// The last one of a run is not a newcomer: others do not take its place, whatever they
// have missed.
func TestLastOneDoesNotGiveWay(t *testing.T) {
	w := heir(t, Config{DropLost: true})
	d := w.comes(uuidOf(9), 1, [16]byte{})
	want[wire.M2CSessionRegistrationResponse](w, d)
	r := stood(uuidOf(9))
	r.Round.Decision, r.NextRevision = 12, 100
	w.send(d, r)
	want[wire.M2CResumed](w, d)
	a := w.comes(two[0], 1, [16]byte{})
	want[wire.M2CSessionRegistrationResponse](w, a)
	w.send(a, stood(two...))
	require.Contains(t, want[wire.M2CPeerDropped](w, a).Reason, "away for too long")
	require.Len(t, w.accepted(), 1)
}

// A run in which several have done something together does not give way, and says so at once.
func TestRunStays(t *testing.T) {
	w, _ := begun(t)
	cs := append(w.accepted(), w.member(0, true))
	for _, c := range cs {
		w.send(c, initiate(7))
	}
	for _, c := range cs {
		want[wire.M2CCollectiveCommsCommence](w, c)
	}
	a := w.comes(two[0], 2, [16]byte{})
	p := want[wire.M2CSessionRegistrationResponse](w, a)
	require.False(t, p.Accepted)
	require.Equal(t, uint16(errs.MasterLost), p.Ext.ReasonCode, "for good")
	require.Contains(t, p.Ext.Reason, "without this session")
	require.Len(t, w.accepted(), 2)
}

// Members that come together, all too late for a run that has come back alone, take its place
// together.
func TestAllGiveWayAtOnce(t *testing.T) {
	w := heir(t, Config{})
	n := w.as(uuidOf(9))
	want[wire.M2CSessionRegistrationResponse](w, n)
	w.send(n, stood(uuidOf(9)))
	want[wire.M2CResumed](w, n)
	require.Len(t, w.accepted(), 1)
	var cs []ClientID
	for _, u := range two {
		c := w.comes(u, 0, [16]byte{})
		want[wire.M2CSessionRegistrationResponse](w, c)
		cs = append(cs, c)
	}
	for _, c := range cs {
		w.send(c, stood(two...))
	}
	w.isClosed(n, "earlier run")
	require.ElementsMatch(t, cs, w.accepted())
}

// A newcomer that was there before the master died may bring the state that is expected.
func TestNewcomerBringsTheState(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	ra, rb := stood(two...), stood(two...)
	ra.NextRevision, rb.NextRevision = 3, 3
	a := w.returns(two[0], ra)
	z := w.as(uuidOf(7))
	require.True(t, want[wire.M2CSessionRegistrationResponse](w, z).Accepted)
	w.obey(w.feed(PacketIn{z, wire.C2MReport{}}))
	b := w.returns(two[1], rb)
	_ = want[wire.M2CResumed](w, z)
	require.Len(t, w.accepted(), 2)
	for _, c := range []ClientID{a, b} {
		w.obey(w.feed(PacketIn{c, acceptVote}))
	}
	for _, c := range []ClientID{a, b, z} {
		for len(w.inbox[c]) > 0 {
			w.pop(c)
		}
	}
	for _, c := range []ClientID{a, b, z} {
		w.obey(w.feed(PacketIn{c, connected}))
	}
	for _, c := range []ClientID{a, b, z} {
		for len(w.inbox[c]) > 0 {
			w.pop(c)
		}
	}
	require.Len(t, w.accepted(), 3)
	w.obey(w.feed(PacketIn{a, syncVoteOf(0, 0, entry("k", 1))}))
	w.obey(w.feed(PacketIn{b, syncVoteOf(0, 0, entry("k", 1))}))
	w.obey(w.feed(PacketIn{z, syncVoteOf(3, 0, entry("k", 2))}))
	p := want[wire.M2CSyncSharedState](w, a)
	require.True(t, p.Distributor.Port() != 0, "the revision is offered, and not taken")
}

// Newcomers that have let each other in, and done nothing, do not go before a run that has,
// whatever their numbers.
func TestRingOfNewcomersGivesWay(t *testing.T) {
	for late := range 2 {
		w := heir(t, Config{})
		var ns []ClientID
		new2 := []wire.UUID{uuidOf(8), uuidOf(9)}
		come := func() {
			for _, u := range new2 {
				n := w.as(u)
				want[wire.M2CSessionRegistrationResponse](w, n)
				r := stood(new2...)
				r.Round.Decision = 3 << 40
				w.send(n, r)
				ns = append(ns, n)
			}
		}
		var cs []ClientID
		if late == 0 {
			come()
			require.Len(t, w.accepted(), 2, "they are alone")
		}
		for _, u := range two {
			c := w.comes(u, 0, [16]byte{})
			want[wire.M2CSessionRegistrationResponse](w, c)
			cs = append(cs, c)
		}
		if late == 1 {
			come()
		}
		for _, c := range cs {
			w.send(c, stood(two...))
		}
		for _, n := range ns {
			w.isClosed(n, "earlier run")
		}
		require.ElementsMatch(t, cs, w.accepted())
	}
}
