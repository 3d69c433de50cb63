package fsm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// governed is a config with an authority, and what answers for it.
func governed(term uint32) Config { return Config{Term: term, Authority: true, Resume: true} }

// asked returns what the last step wants of the authority.
func asked(effects []Effect) (commits []Commit, confirms []Confirm) {
	for _, e := range effects {
		switch e := e.(type) {
		case Commit:
			commits = append(commits, e)
		case Confirm:
			confirms = append(confirms, e)
		}
	}
	return commits, confirms
}

// feed steps and returns the effects.
func (w *world) feed(ev Event) []Effect {
	effects := w.m.Step(w.now, ev)
	w.carryOut(effects)
	return effects
}

// obey answers what the authority is asked, until it is asked nothing.
func (w *world) obey(effects []Effect) {
	commits, confirms := asked(effects)
	for _, c := range commits {
		w.obey(w.feed(Committed{c.Number}))
	}
	for _, c := range confirms {
		w.obey(w.feed(Confirmed(c)))
	}
}

// governedPair is a member, and a newcomer that it connects with, under an authority.
func governedPair(t *testing.T, cfg Config) (w *world, a, b ClientID) {
	w = newWorld(t, cfg)
	w.resume = true
	a = w.join(0, true)
	info := want[wire.M2CP2PConnectionInfo](w, a)
	require.Zero(t, info.Ext.Epoch)
	w.obey(w.feed(PacketIn{a, connected}))
	require.True(t, want[wire.M2CP2PConnectionsEstablished](w, a).Success)
	b = w.join(0, true)
	w.send(a, acceptVote)
	want[wire.M2CP2PConnectionInfo](w, a)
	want[wire.M2CP2PConnectionInfo](w, b)
	w.send(a, connected)
	return w, a, b
}

// A ring is written before anybody hears that it stands.
func TestRoundWaitsForTheRegistry(t *testing.T) {
	w, a, b := governedPair(t, governed(3))
	commits, _ := asked(w.feed(PacketIn{b, connected}))
	require.Len(t, commits, 1)
	w.quiet(a, b)
	require.Len(t, commits[0].Registry.Groups, 1)
	g := commits[0].Registry.Groups[0]
	require.ElementsMatch(t, []wire.UUID{w.ids[a], w.ids[b]}, g.Members)
	require.Equal(t, uint64(3), g.Round>>40)

	w.feed(Committed{commits[0].Number + 1}) // not that one
	w.after(time.Hour)                       // and there is no bound on it
	w.quiet(a, b)
	w.feed(Committed{commits[0].Number})
	for _, c := range []ClientID{a, b} {
		require.Equal(t, g.Members, want[wire.M2CP2PConnectionsEstablished](w, c).Ring)
	}
	w.feed(Committed{commits[0].Number}) // twice
	w.quiet(a, b)
}

// A participant that leaves meanwhile fails the round, as it would have before.
func TestRoundFailsWhileTheRegistryIsWritten(t *testing.T) {
	w, a, b := governedPair(t, governed(1))
	commits, _ := asked(w.feed(PacketIn{b, connected}))
	w.leave(b)
	want[wire.M2CPeerDropped](w, a)
	w.quiet(a)
	w.obey(w.feed(Committed{commits[0].Number}))
	require.False(t, want[wire.M2CP2PConnectionsEstablished](w, a).Success)
}

// A member goes when the authority has confirmed that this master leads, a stranger
// and a newcomer at once.
func TestDropWaitsForTheAuthority(t *testing.T) {
	w, a, b := governedPair(t, governed(1))
	w.obey(w.feed(PacketIn{b, connected}))
	want[wire.M2CP2PConnectionsEstablished](w, a)
	want[wire.M2CP2PConnectionsEstablished](w, b)
	c := w.join(0, true)
	_, confirms := asked(w.feed(Gone{Client: c}))
	require.Empty(t, confirms)

	w.send(a, initiate(1))
	w.send(b, initiate(1))
	want[wire.M2CCollectiveCommsCommence](w, a)
	_, confirms = asked(w.feed(Gone{Client: b}))
	require.Len(t, confirms, 1)
	w.quiet(a)
	require.Len(t, w.m.Snapshot().Clients, 1)
	w.feed(Confirmed{confirms[0].Number + 1})
	w.quiet(a)
	w.feed(Confirmed{confirms[0].Number})
	want[wire.M2CPeerDropped](w, a)
	require.True(t, want[wire.M2CCollectiveCommsAbort](w, a).Aborted)
	require.Len(t, w.m.Snapshot().Clients, 1)

	// When all have left nobody is waited for.
	_, confirms = asked(w.feed(Gone{Client: a}))
	commits, _ := asked(w.feed(Confirmed{confirms[0].Number}))
	require.Len(t, commits, 1)
	require.Nil(t, commits[0].Registry.Groups[0].Members)
}

// Numbers that peers are told begin with the term, and those of the first master
// are as they were without terms.
func TestNumbersBeginWithTheTerm(t *testing.T) {
	for _, term := range []uint32{0, 1, MaxTerm} {
		w := newWorld(t, Config{Term: term, Switch: true})
		w.eager = true
		base := uint64(term) << 40
		a := w.join(0, true)
		require.Equal(t, base+1, want[wire.M2CP2PConnectionInfo](w, a).Ext.Epoch)
		w.send(a, connected)
		want[wire.M2CP2PConnectionsEstablished](w, a)
		w.send(a, initiate(9))
		require.Equal(t, base, want[wire.M2CCollectiveCommsCommence](w, a).SeqNr)
		require.Equal(t, uint64(1), w.m.Snapshot().Collectives)
	}
}

// A group that has come far is not begun again by a peer with an older state.
func TestRegistryKeepsTheRevision(t *testing.T) {
	cfg := governed(2)
	cfg.Registry = Registry{Groups: []GroupRecord{{ID: 0, Round: 1<<40 + 1, NextRevision: 7}}}
	w := newWorld(t, cfg)
	a := w.join(0, true)
	want[wire.M2CP2PConnectionInfo](w, a)
	w.obey(w.feed(PacketIn{a, connected}))
	want[wire.M2CP2PConnectionsEstablished](w, a)
	w.send(a, syncVoteOf(3, wire.EnforcePopular, entry("x", 1)))
	p := want[wire.M2CSyncSharedState](w, a)
	require.True(t, p.IsOutdated)
	require.Contains(t, p.Ext.Reason, "revision 6")
	w.send(a, wire.C2MDistSharedStateComplete{Ext: wire.Ext{Failed: true}})
	want[wire.M2CSyncSharedStateComplete](w, a)
	w.send(a, syncVoteOf(7, wire.EnforcePopular, entry("x", 1)))
	require.False(t, want[wire.M2CSyncSharedState](w, a).IsOutdated)
}

// Members that cannot go on with another master are not waited for: they come as
// newcomers, if they come. So it is with all, if the master does not let them go on.
func TestRegistryNamesWhoCanComeBack(t *testing.T) {
	w, a, b := governedPair(t, governed(1))
	w.obey(w.feed(PacketIn{b, connected}))
	want[wire.M2CP2PConnectionsEstablished](w, a)
	want[wire.M2CP2PConnectionsEstablished](w, b)
	w.resume = false
	c := w.join(0, false)
	w.send(a, acceptVote)
	w.send(b, acceptVote)
	for _, c := range []ClientID{a, b} {
		want[wire.M2CP2PConnectionInfo](w, c)
		w.send(c, connected)
	}
	want[wire.M2CP2PConnectionInfo](w, c)
	commits, _ := asked(w.feed(PacketIn{c, connected}))
	require.Len(t, commits, 1)
	left := commits[0].Registry
	require.ElementsMatch(t, []wire.UUID{w.ids[a], w.ids[b]}, left.Groups[0].Members)

	next := New(Config{Term: 2, Authority: true, Resume: true, Registry: left})
	next.Step(0, Tick{})
	require.True(t, next.recovery.on)
	next = New(Config{Term: 2, Authority: true, Registry: left})
	next.Step(0, Tick{})
	require.False(t, next.recovery.on)
	left.Groups[0].Members = []wire.UUID{}
	next = New(Config{Term: 2, Authority: true, Resume: true, Registry: left})
	next.Step(0, Tick{})
	require.False(t, next.recovery.on)
}
