package fsm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// A member that is waited for and is closed for another reason goes once, also if the authority
// takes its time to say that it may.
func TestAwayMembersGoOnce(t *testing.T) {
	w := newWorld(t, Config{
		Resume: true, Linger: 2 * time.Second, Authority: true, HeartbeatInterval: time.Hour, HeartbeatTimeout: 3 * time.Hour, VoteTimeout: time.Second,
	})
	w.resume = true
	var pending []Event
	hold := false
	w.answer = func(e Effect) Event {
		switch e := e.(type) {
		case Commit:
			return Committed{e.Number}
		case Confirm:
			if hold {
				pending = append(pending, Confirmed(e))
				return nil
			}
			return Confirmed(e)
		}
		return nil
	}
	cs := w.members(3, true)
	w.leave(cs[2])
	w.send(cs[0], initiate(7))
	w.send(cs[1], initiate(7))
	hold = true
	for range 8 {
		w.now += 500 * time.Millisecond
		w.step(Tick{})
	}
	require.Len(t, pending, 1)
	for _, p := range pending {
		w.step(p)
	}
	require.Equal(t, 2, w.m.census.accepted)
}

// A revocation list that comes while members say again what they hold is told to all of them.
func TestRevocationsDuringABlip(t *testing.T) {
	w := lingering(t)
	w.resume = true
	cs := w.members(2, true)
	for _, c := range w.m.clients {
		c.can.revocations = true
	}
	w.returnsTo(cs, 1)
	w.step(Revocations{Lists: []string{"list"}})
	require.Equal(t, wire.M2CRevocations{DER: "list"}, want[wire.M2CRevocations](w, cs[0]))
}

// One that comes back while the removal of another one awaits the authority is waited for.
func TestKnockingMembersAreWaitedFor(t *testing.T) {
	var held []Event
	w := lingering(t)
	w.resume, w.m.cfg.Authority = true, true
	w.answer = func(e Effect) Event {
		switch e := e.(type) {
		case Commit:
			return Committed{e.Number}
		case Confirm:
			held = append(held, Confirmed(e))
		}
		return nil
	}
	cs := w.members(4, true)
	w.m.clients[0].kicked(w)
	w.leave(cs[3])
	u := w.ids[cs[3]]
	for range 10 {
		w.after(300 * time.Millisecond)
		back := w.comes(u, 0, [16]byte{})
		require.False(t, want[wire.M2CSessionRegistrationResponse](w, back).Accepted)
	}
	require.Len(t, w.m.away, 1)
	w.after(time.Second)
	require.Empty(t, w.m.away, "it has stopped")
	require.Len(t, held, 1)
}

// kicked has the master close a member.
func (c *client) kicked(w *world) { w.step(Revoked{Client: c.id, Why: "it has to go"}) }

// An operator gives a state up while members say again what they hold.
func TestResetDuringABlip(t *testing.T) {
	w, cs := trained(t)
	r := w.standing(0, 3)
	w.returnsTo(cs, 1)
	w.step(ResetState{Group: 1})
	require.Contains(t, w.factOf("state-reset").Text, "ask again")
	w.step(ResetState{})
	for _, c := range cs {
		w.send(c, r)
		want[wire.M2CResumed](w, c)
	}
	require.Zero(t, w.m.Snapshot().Groups[0].NextRevision)
}

// An old word about a link, which members repeat with their reports, drops nobody.
func TestOldWordsDropNobody(t *testing.T) {
	w := lingering(t)
	w.resume = true
	cs := w.members(3, true)
	r := w.standing(0, 0)
	w.returnsTo(cs, 2)
	for i, c := range cs {
		if r.Broken = nil; i != 1 {
			r.Broken = []wire.UUID{w.ids[cs[1]]}
		}
		w.send(c, r)
		want[wire.M2CResumed](w, c)
	}
	w.leave(cs[1])
	require.Len(t, w.accepted(), 3)
}

// A round in which connections replace others has ended: the word of those that were
// replaced drops nobody.
func TestReplacedConnectionsDropNobody(t *testing.T) {
	w := lingering(t)
	w.resume = true
	cs := w.members(3, true)
	for _, c := range cs {
		w.send(c, wire.C2MRequestEstablishP2PConnections{})
	}
	for _, c := range []ClientID{cs[0], cs[2]} {
		w.send(c, wire.C2MLinkEnded{Peer: w.ids[cs[1]]})
	}
	w.round(true)
	w.leave(cs[1])
	require.Len(t, w.accepted(), 3)
}

// In the round that ends, one that has connected to a member says that it is gone: the last
// words of that one, which come later, end the round, and nobody waits for it.
func TestWhoDiesAtTheEndOfARoundIsDropped(t *testing.T) {
	w := lingering(t)
	w.resume = true
	cs := w.members(3, true)
	for _, c := range cs {
		w.send(c, wire.C2MRequestEstablishP2PConnections{})
	}
	for _, c := range []ClientID{cs[0], cs[2]} {
		w.send(c, wire.C2MP2PConnectionsEstablished{Success: true})
		w.send(c, wire.C2MLinkEnded{Peer: w.ids[cs[1]]})
	}
	w.send(cs[1], wire.C2MP2PConnectionsEstablished{Success: true})
	w.leave(cs[1])
	require.Len(t, w.accepted(), 2)
}

// When all connections have ended at once nobody is waited for longer than one is.
func TestManyGoAtOnce(t *testing.T) {
	w := lingering(t)
	w.resume, w.m.unchecked = true, true
	cs := w.members(60, true)
	for _, c := range cs {
		w.leave(c)
	}
	require.Len(t, w.m.away, 60)
	w.after(w.m.cfg.Linger)
	require.Empty(t, w.accepted())
}

// Without a key that outlives the master nobody takes over a session that goes on here; after
// a restart the proof of the master before cannot be checked.
func TestSessionsAreNotTakenOver(t *testing.T) {
	w := lingering(t)
	w.m.cfg.SessionKey = []byte("of this process")
	w.resume = true
	a := w.join(0, true)
	cs := []ClientID{a}
	w.round(true)
	u := w.ids[a]
	token := w.m.token(u, 0, "")
	require.NotZero(t, token)
	for range 2 { // there, and away
		p := want[wire.M2CSessionRegistrationResponse](w, w.comes(u, 0, [16]byte{1}))
		require.False(t, p.Accepted)
		require.Equal(t, anotherKey, p.Ext.Reason)
		w.leave(cs[0])
	}
	c := w.comes(u, 0, token)
	require.True(t, want[wire.M2CSessionRegistrationResponse](w, c).Accepted)
	require.True(t, w.m.recovery.on)
	require.False(t, want[wire.M2CSessionRegistrationResponse](w, w.comes(u, 0, [16]byte{1})).Accepted, "while it reports")

	w = lingering(t)
	w.m.cfg.SessionKey = []byte("of the next process")
	p := want[wire.M2CSessionRegistrationResponse](w, w.comes(u, 0, token))
	require.True(t, p.Accepted)
	require.Equal(t, w.m.token(u, 0, ""), p.Ext.Resuming.Identity.Token)
}
