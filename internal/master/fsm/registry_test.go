package fsm

import (
	"fmt"
	"slices"
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

	// When all have left nobody is waited for, and of a first state nothing is kept.
	_, confirms = asked(w.feed(Gone{Client: a}))
	commits, _ := asked(w.feed(Confirmed{confirms[0].Number}))
	require.Len(t, commits, 1)
	require.Empty(t, commits[0].Registry.Groups)
}

// An answer of the authority is about the time in which it was asked: who has gone since may
// be at another master.
func TestDropAsksAgainForThoseWhoGoMeanwhile(t *testing.T) {
	for _, farewell := range []bool{false, true} {
		w, a, b := governedPair(t, governed(1))
		w.obey(w.feed(PacketIn{b, connected}))
		want[wire.M2CP2PConnectionsEstablished](w, a)
		_, confirms := asked(w.feed(Gone{Client: b}))
		require.Len(t, confirms, 1)
		if farewell {
			w.send(a, wire.C2MFarewell{})
		}
		_, more := asked(w.feed(Gone{Client: a}))
		require.Empty(t, more, "one question at a time")
		_, more = asked(w.feed(Confirmed(confirms[0])))
		if farewell {
			require.Empty(t, more, "it has said that it goes")
			require.Empty(t, w.m.clients)
			continue
		}
		require.Len(t, more, 1)
		require.Len(t, w.m.clients, 1)
		require.Equal(t, w.ids[a], w.m.clients[0].uuid)
		w.feed(Confirmed(more[0]))
		require.Empty(t, w.m.clients)
	}
}

// A member that is closed hears of it when the authority has confirmed that this master
// leads: it may have to go on at another one. If its connection ends before the answer has come, that
// may be from before: it is asked again.
func TestKickWaitsForTheAuthority(t *testing.T) {
	for _, gone := range []bool{false, true} {
		w, a, b := governedPair(t, governed(1))
		w.obey(w.feed(PacketIn{b, connected}))
		want[wire.M2CP2PConnectionsEstablished](w, a)
		want[wire.M2CP2PConnectionsEstablished](w, b)
		w.send(b, initiate(1))
		effects := w.feed(PacketIn{b, initiate(1)})
		_, confirms := asked(effects)
		require.Len(t, confirms, 1)
		closing := func() bool {
			return slices.ContainsFunc(effects, func(e Effect) bool { c, ok := e.(Close); return ok && c.Client == b })
		}
		require.False(t, closing())
		w.quiet(a, b)
		if gone {
			w.feed(Gone{Client: b})
			_, confirms = asked(w.feed(Confirmed(confirms[0])))
			require.Len(t, confirms, 1)
			require.Len(t, w.m.clients, 2)
			w.quiet(a)
		}
		effects = w.feed(Confirmed(confirms[0]))
		want[wire.M2CPeerDropped](w, a)
		require.Equal(t, !gone, closing())
		if !gone {
			require.Equal(t, w.ids[b], want[wire.M2CPeerDropped](w, b).UUID)
		}
		require.Len(t, w.m.clients, 1)
	}
	w, a, b := governedPair(t, governed(1)) // one whose certificate is revoked may go nowhere
	w.obey(w.feed(PacketIn{b, connected}))
	want[wire.M2CP2PConnectionsEstablished](w, a)
	want[wire.M2CP2PConnectionsEstablished](w, b)
	w.feed(Revoked{Client: b, Why: "revoked"})
	want[wire.M2CPeerDropped](w, b)
	w.isClosed(b, "revoked")
	w.quiet(a)
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

// kept is the registry that the authority of a world has.
type kept struct {
	Registry
	commits int
}

// obeys answers everything that the authority is asked from now on, and keeps it.
func (w *world) obeys() *kept {
	k := &kept{}
	w.answer = func(e Effect) Event {
		switch e := e.(type) {
		case Commit:
			k.Registry = e.Registry
			k.commits++
			return Committed{e.Number}
		case Confirm:
			return Confirmed(e)
		}
		return nil
	}
	return k
}

// successor is a master that begins with what k has.
func successor(t *testing.T, k *kept, cfg Config) (*world, *kept) {
	cfg.Term++
	cfg.Authority, cfg.Registry = true, k.Registry
	w := newWorld(t, cfg)
	next := w.obeys()
	next.Registry = k.Registry
	w.step(Tick{})
	return w, next
}

// revisions has members synchronise the revisions before next with the entry k=7, one
// every ten seconds.
func (w *world) revisions(cs []ClientID, next uint64) {
	for rev := range next {
		for _, c := range cs {
			w.send(c, syncVoteOf(rev, 0, entry("k", 7)))
		}
		w.verdicts(cs...)
		w.endSync(cs, false)
		w.after(10 * time.Second)
	}
}

// A group whose peers have all left goes on from where it was under every later master,
// also if they left with the one before, or only registered with it.
func TestRegistryKeepsTheState(t *testing.T) {
	for name, end := range map[string]func(w *world, cs []ClientID){
		"they leave first":   func(w *world, cs []ClientID) { w.leave(cs[0]); w.leave(cs[1]) },
		"they die together":  func(*world, []ClientID) {},
		"one of them leaves": func(w *world, cs []ClientID) { w.leave(cs[0]) },
	} {
		for _, resume := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, resume %v", name, resume), func(t *testing.T) {
				cfg := governed(1)
				cfg.Resume = resume
				w := newWorld(t, cfg)
				w.resume = resume
				k := w.obeys()
				cs := w.members(2, true)
				w.revisions(cs, 3) // 0, 1, 2
				end(w, cs)
				for range 3 { // masters in a row, under which nothing but refusals happens
					w, k = successor(t, k, w.m.cfg)
					w.after(defaultGrace) // for those who are dead
					w.resume = resume
					require.False(t, w.resumes(syncVoteOf(0, 0, entry("k", 1))), "a fresh peer") // S2-55
					require.False(t, w.resumes(syncVoteOf(2, 0, entry("k", 8))), "the same revision, another content")
					c := w.member(0, true) // is let in, and dies with the master
					require.NotZero(t, c)
					require.True(t, k.Groups[0].Resumes)
				}
				w, k = successor(t, k, w.m.cfg)
				w.after(defaultGrace)
				require.True(t, w.resumes(syncVoteOf(2, 0, entry("k", 7))), "the state as it was") // S2-55
				require.True(t, w.resumes(syncVoteOf(50, 0, entry("k", 5))), "a later one")
				w, k = successor(t, k, w.m.cfg)
				require.False(t, w.resumes(syncVoteOf(49, 0, entry("k", 5))))
				w.step(ResetState{})
				w, _ = successor(t, k, w.m.cfg)
				require.True(t, w.resumes(syncVoteOf(0, 0, entry("k", 1))), "an operator gave it up, for good")
			})
		}
	}
}

// An operator gives up the state of a group that is at work, too.
func TestResetIsWritten(t *testing.T) {
	w := newWorld(t, governed(1))
	k := w.obeys()
	w.revisions(w.members(2, true), 3)
	require.EqualValues(t, 3, k.Groups[0].NextRevision)
	w.step(ResetState{})
	require.Zero(t, k.Groups[0].NextRevision)
	require.Nil(t, k.Groups[0].Print)
}

// A new state is written, but nobody waits for it, and not more often than once a second.
func TestStatesAreWrittenNowAndThen(t *testing.T) {
	w := newWorld(t, governed(1))
	k := w.obeys()
	cs := w.members(2, true)
	w.answer = nil
	before := k.commits
	seen := 0
	var last Commit
	var asked []time.Duration
	w.answer = func(e Effect) Event {
		if e, ok := e.(Commit); ok {
			seen++
			last = e
			asked = append(asked, w.now)
		}
		return nil // not yet
	}
	once := func(rev uint64) {
		for _, c := range cs {
			w.send(c, syncVoteOf(rev, 0, entry("k", rev)))
		}
		w.verdicts(cs...)
		w.endSync(cs, false)
	}
	for rev := range uint64(5) {
		once(rev)
	}
	require.Equal(t, 1, seen)
	require.EqualValues(t, 1, last.Registry.Groups[0].NextRevision)
	w.after(3 * time.Second)
	require.Equal(t, 1, seen, "the last one is not written yet")
	w.step(Committed{last.Number})
	w.after(0)
	require.Equal(t, 2, seen)
	require.EqualValues(t, 5, last.Registry.Groups[0].NextRevision)
	w.step(Committed{last.Number})
	once(5)
	require.Equal(t, 2, seen, "it is too soon")
	w.after(statesEvery)
	require.Equal(t, 3, seen)
	require.EqualValues(t, 6, last.Registry.Groups[0].NextRevision)
	require.GreaterOrEqual(t, asked[2]-asked[1], statesEvery)
	require.NotZero(t, before)
}

// Of groups that came no further than their first state the registry says nothing.
func TestRegistryForgetsShortGroups(t *testing.T) {
	w := newWorld(t, governed(1))
	k := w.obeys()
	for g := range uint32(3) {
		c := w.member(g, true)
		w.leave(c)
	}
	require.Positive(t, k.commits)
	require.Empty(t, k.Groups)
}

// Members that come back, and have synchronised nothing since all had left, are judged as
// those who were there when they did; if they have, they go on with what comes next.
func TestMembersComeBackBeforeTheyHaveSynchronised(t *testing.T) {
	last := []wire.StateEntry{entry("k", 7)}
	for _, reported := range []uint64{0, 7} {
		r := recordOf(two...)
		r.Groups[0].NextRevision, r.Groups[0].Print, r.Groups[0].Resumes = 7, printOf(last), true
		w := heir(t, Config{Term: 4, Authority: true, Registry: r})
		w.obeys()
		s := stood(two...)
		s.NextRevision = reported
		cs := []ClientID{w.returns(two[0], s), w.returns(two[1], s)}
		w.send(cs[0], syncVoteOf(6, 0, last...))
		w.send(cs[1], syncVoteOf(0, 0, entry("k", 1)))
		require.Equal(t, reported != 0, w.verdicts(cs[0])[0].IsOutdated)
		require.True(t, w.verdicts(cs[1])[0].IsOutdated)
		w.endSync(cs, reported != 0)
		// When they leave, what they had is known from what the registry said.
		w.leave(cs[0])
		w.leave(cs[1])
		require.True(t, w.resumes(syncVoteOf(6, 0, last...)))
	}
}

// A group of which nobody can come back is remembered once: what it reaches later counts,
// although another group of the master recovers.
func TestGroupsWithoutReturnersAreRememberedOnce(t *testing.T) {
	r := recordOf(two...)
	r.Groups = append(r.Groups, GroupRecord{ID: 1, Round: 8, NextRevision: 10, Members: []wire.UUID{}})
	w := heir(t, Config{Term: 4, Authority: true, Registry: r})
	w.obeys()
	for _, u := range two {
		w.returns(u, stood(two...))
	}
	require.Len(t, w.m.ended, 1)
	again := func(rev uint64) bool {
		w.forget()
		c := w.member(1, true)
		w.send(c, syncVoteOf(rev, 0, entry("k", rev)))
		p := want[wire.M2CSyncSharedState](w, c)
		w.endSync([]ClientID{c}, p.IsOutdated)
		w.leave(c)
		return !p.IsOutdated
	}
	require.True(t, again(50))
	require.False(t, again(20))
	require.Len(t, w.m.ended, 1)
	w.step(ResetState{Group: 1})
	require.Empty(t, w.m.ended)
	require.True(t, again(20))
}

// A master that began with an old copy gives out no number that peers know: it ends, and
// the next one comes after the master that they have followed.
func TestOldCopyOfTheRegistry(t *testing.T) {
	outdated := func(w *world, u wire.UUID, term uint32) (effects []Outdated) {
		c := w.connectAt("127.0.0.1:5")
		for _, e := range w.m.Step(w.now, PacketIn{c, wire.C2MRequestSessionRegistration{P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, Ext: wire.Ext{
			Native: true, Resuming: wire.Resuming{Resume: true, Term: term, Identity: wire.Identity{UUID: u}},
		}}}) {
			if o, ok := e.(Outdated); ok {
				effects = append(effects, o)
			}
			w.carryOut([]Effect{e})
		}
		return effects
	}
	for _, registry := range []Registry{{}, recordOf(two...)} {
		for _, c := range []struct {
			term uint32
			ends bool
		}{{3, false}, {4, true}, {5, true}, {4 + mostBehind, true}, {5 + mostBehind, false}} {
			w := heir(t, Config{Term: 4, Authority: true, Registry: registry})
			got := outdated(w, two[0], c.term)
			require.Equal(t, c.ends, len(got) == 1, "term %d", c.term)
			p := want[wire.M2CSessionRegistrationResponse](w, 1)
			require.Equal(t, c.term < 4, p.Accepted)
			if c.ends {
				require.Equal(t, c.term, got[0].Term)
				require.Contains(t, p.Ext.Reason, "old copy")
			}
			if p.Accepted { // it has heard of this master now, and comes again
				require.Empty(t, outdated(w, two[0], 4))
				require.Len(t, outdated(w, two[1], 4), 1)
			}
		}
	}
	// Nobody says which master comes after which: it follows them all.
	w := heir(t, Config{Term: 4})
	require.Empty(t, outdated(w, two[0], 7))
	require.Equal(t, uint32(8), w.m.cfg.Term)
}
