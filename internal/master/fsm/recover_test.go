package fsm

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

func uuidOf(n byte) (u wire.UUID) {
	u[0], u[15] = n, n
	return u
}

// heir is a master that comes after another one.
func heir(t *testing.T, cfg Config) *world {
	cfg.Resume = true
	cfg.HeartbeatInterval, cfg.HeartbeatTimeout = time.Second, 5*time.Second
	w := newWorld(t, cfg)
	w.obey(w.feed(Tick{}))
	return w
}

// record is a registry of one group with these members.
func recordOf(members ...wire.UUID) Registry {
	return Registry{Groups: []GroupRecord{{ID: 0, Round: 9, NextRevision: 3, Members: members}}}
}

// comes registers a peer that says it has a session.
func (w *world) comes(u wire.UUID, term uint32, token [16]byte) ClientID {
	return w.comesIn(0, u, term, token)
}

// comesIn is comes, in another group.
func (w *world) comesIn(group uint32, u wire.UUID, term uint32, token [16]byte) ClientID {
	c := w.connectAt("127.0.0.1:5")
	w.send(c, wire.C2MRequestSessionRegistration{PeerGroup: group, P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, Ext: wire.Ext{
		Native: true, HeartbeatInterval: time.Second, HeartbeatTimeout: 5 * time.Second, Early: wire.Early{Eager: true}, Collectives: w.version,
		Switch: true, Plans: wire.PlansVersion, Secured: w.secured(),
		Resuming: wire.Resuming{Resume: true, Met: true, Term: term, Identity: wire.Identity{UUID: u, Token: token}},
	}})
	return c
}

// returns has a peer come back and report.
func (w *world) returns(u wire.UUID, r wire.C2MReport) ClientID {
	w.t.Helper()
	return w.returnsIn(0, u, r)
}

// returnsIn is returns, in another group.
func (w *world) returnsIn(group uint32, u wire.UUID, r wire.C2MReport) ClientID {
	w.t.Helper()
	c := w.comesIn(group, u, 0, [16]byte{})
	p := want[wire.M2CSessionRegistrationResponse](w, c)
	require.True(w.t, p.Accepted)
	require.Equal(w.t, u, p.UUID)
	require.True(w.t, p.Ext.Resuming.Resume)
	w.obey(w.feed(PacketIn{c, r}))
	require.Equal(w.t, wire.M2CResumed{}, w.pop(c))
	return c
}

// stood is the report of a member of a ring.
func stood(ring ...wire.UUID) wire.C2MReport {
	return wire.C2MReport{Round: wire.StoodRound{Decision: 9, Ring: ring, Members: ring, World: uint64(len(ring)), Groups: 1}}
}

var two = []wire.UUID{uuidOf(1), uuidOf(2)}

func opOf(step wire.OpStep, seq uint64) wire.ReportedOp {
	return wire.ReportedOp{Vote: initiate(7), Step: step, Seq: seq}
}

// What nobody was told is decided again, with a number that nobody knows.
func TestRecoveredVotesCount(t *testing.T) {
	w := heir(t, Config{Term: 4, Authority: true, Registry: recordOf(two...)})
	r := stood(two...)
	r.Ops = []wire.ReportedOp{opOf(wire.OpVoted, 0)}
	a := w.returns(two[0], r)
	w.quiet(a)
	b := w.returns(two[1], stood(two...))
	w.quiet(a, b)
	w.send(b, initiate(7))
	for _, c := range []ClientID{a, b} {
		require.Equal(t, uint64(4)<<40, want[wire.M2CCollectiveCommsCommence](w, c).SeqNr)
	}
}

// What somebody was told is told to the others under the same number, and the verdict
// that somebody has had is that of all.
func TestRecoveredOpKeepsItsNumber(t *testing.T) {
	for _, aborted := range []bool{false, true} {
		w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
		r := stood(two...)
		r.Verdicts = []wire.ReportedVerdict{{Tag: 7, Seq: 5, Verdict: wire.Verdict{Aborted: aborted, Reason: "why", Code: 9}}}
		r.Ops = []wire.ReportedOp{{Vote: initiate(7), After: 6}} // its next use
		a := w.returns(two[0], r)
		r = stood(two...)
		r.Ops = []wire.ReportedOp{opOf(wire.OpAhead, 0)}
		r.Ops[0].Done = complete(7, !aborted) // what this one says comes too late
		b := w.returns(two[1], r)
		require.Equal(t, uint64(5), want[wire.M2CCollectiveCommsCommence](w, b).SeqNr)
		v := want[wire.M2CCollectiveCommsAbort](w, b)
		require.Equal(t, aborted, v.Aborted)
		if aborted {
			require.Equal(t, "why", v.Reason)
		}
		want[wire.M2CCollectiveCommsComplete](w, b)
		w.quiet(a, b)
		w.send(b, initiate(7))
		require.Equal(t, uint64(1)<<40, want[wire.M2CCollectiveCommsCommence](w, a).SeqNr)
		require.Equal(t, uint64(1)<<40, want[wire.M2CCollectiveCommsCommence](w, b).SeqNr)
	}
}

// Who runs a collective goes on, and who has only voted hears of it; its verdict is
// that of the reports.
func TestRecoveredOpRuns(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	r := stood(two...)
	r.Ops = []wire.ReportedOp{opOf(wire.OpReported, 5)}
	a := w.returns(two[0], r)
	r = stood(two...)
	r.Ops = []wire.ReportedOp{opOf(wire.OpVoted, 0)}
	b := w.returns(two[1], r)
	require.Equal(t, uint64(5), want[wire.M2CCollectiveCommsCommence](w, b).SeqNr)
	w.quiet(a, b)
	w.send(b, complete(7, false))
	for _, c := range []ClientID{a, b} {
		require.False(t, want[wire.M2CCollectiveCommsAbort](w, c).Aborted)
		want[wire.M2CCollectiveCommsComplete](w, c)
	}
	w.quiet(a, b)
}

// The master that commenced a collective may have died before it told that its arguments
// differ: the next one looks at them again.
func TestRecoveredOpDiffers(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	r := stood(two...)
	r.Ops = []wire.ReportedOp{opOf(wire.OpReported, 5)}
	a := w.returns(two[0], r)
	r = stood(two...)
	r.Ops = []wire.ReportedOp{opOf(wire.OpVoted, 0)}
	r.Ops[0].Vote.Op = dtype.Max
	b := w.returns(two[1], r)
	require.Equal(t, uint64(5), want[wire.M2CCollectiveCommsCommence](w, b).SeqNr)
	for _, c := range []ClientID{a, b} {
		p := want[wire.M2CCollectiveCommsAbort](w, c)
		require.True(t, p.Aborted)
		require.Equal(t, uint16(errs.Mismatch), p.ReasonCode)
		require.Contains(t, p.Reason, "different operations")
	}
}

// A ring that somebody has stands for all who wait for it.
func TestRecoveredRoundStands(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	b := w.returns(two[1], wire.C2MReport{Call: wire.ReportedCall{Step: wire.StepRing, Decision: 9}}) // a newcomer
	a := w.returns(two[0], stood(two...))
	p := want[wire.M2CP2PConnectionsEstablished](w, b)
	require.True(t, p.Success)
	require.Equal(t, two, p.Ring)
	w.quiet(a, b)
	require.Len(t, w.accepted(), 2)
}

// One that nobody has fails when all who connect for it have said how that went.
func TestRecoveredRoundFails(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	old := stood(two...)
	old.Call = wire.ReportedCall{Step: wire.StepRing, Decision: 10}
	a := w.returns(two[0], old)
	old.Call.Step = wire.StepConnecting
	b := w.returns(two[1], old)
	w.quiet(a, b)
	w.send(b, connected)
	for _, c := range []ClientID{a, b} {
		require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
		w.send(c, establishVote)
	}
	require.Greater(t, want[wire.M2CP2PConnectionInfo](w, a).Ext.Resuming.Decision, uint64(1)<<40)
}

// The answer to a question is that of all who have asked it, and of no newcomer.
func TestRecoveredQuery(t *testing.T) {
	three := append(two[:2:2], uuidOf(3))
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(three...)})
	r := stood(three...)
	r.Query = wire.ReportedQuery{Decision: 11, Pending: true}
	a := w.returns(three[0], r)
	r = stood(three...)
	r.Query = wire.ReportedQuery{Asking: true, Decision: 10}
	b := w.returns(three[1], r)
	r = stood(three...)
	r.Query = wire.ReportedQuery{Asking: true, Decision: 11}
	c := w.returns(three[2], r)
	require.Equal(t, wire.M2CPeersPendingResponse{PeersPending: true, Decision: 11}, w.pop(b))
	w.quiet(a, b, c)
	w.send(a, wire.C2MCheckPeersPending{})
	w.send(b, wire.C2MCheckPeersPending{})
	for _, c := range []ClientID{a, b, c} {
		require.False(t, want[wire.M2CPeersPendingResponse](w, c).PeersPending)
	}
}

// A member that has voted, and did not hear of the election, hears what the others did.
func TestRecoveredElection(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	r := stood(two...)
	r.Call = wire.ReportedCall{
		Step: wire.StepFetching, Decision: 12, Vote: syncVoteOf(1, wire.EnforcePopular, entry("x", 1)),
		Verdict: wire.M2CSyncSharedState{
			IsOutdated: true, Distributor: noAddr, Keys: []string{"x"}, Hashes: []uint64{2}, HashTypes: []wire.HashType{0},
			Ext: wire.Ext{Resuming: wire.Resuming{NextRevision: 7}},
		},
	}
	r.Call.Verdict.Distributor = netip.MustParseAddrPort("127.0.0.1:2")
	a := w.returns(two[0], r)
	r = stood(two...)
	r.Call = wire.ReportedCall{Step: wire.StepElection, Vote: syncVoteOf(6, wire.EnforcePopular, entry("x", 2))}
	b := w.returns(two[1], r)
	p := want[wire.M2CSyncSharedState](w, b)
	require.False(t, p.IsOutdated) // it is the one that has the state
	require.Equal(t, uint64(12), p.Ext.Resuming.Decision)
	w.quiet(a, b)
	w.send(a, wire.C2MDistSharedStateComplete{})
	w.send(b, wire.C2MDistSharedStateComplete{})
	for _, c := range []ClientID{a, b} {
		require.Equal(t, uint64(7), want[wire.M2CSyncSharedStateComplete](w, c).NextRevision)
	}
}

// The word on a change of rings comes behind the collectives of the ring before it.
func TestRecoveredChangeKeepsItsPlace(t *testing.T) {
	ring := []wire.UUID{uuidOf(1), uuidOf(3), uuidOf(2), uuidOf(4)}
	sorted := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3), uuidOf(4)}
	w := heir(t, Config{Term: 1, Authority: true, Switch: true, Registry: recordOf(sorted...)})
	r := stood(ring...)
	r.Change.Taken = 20
	r.Ops = []wire.ReportedOp{opOf(wire.OpRunning, 5), {Vote: initiate(8), Step: wire.OpRunning, Seq: 6}}
	r.Ops[0].Older = true
	for _, u := range []wire.UUID{uuidOf(1), uuidOf(3), uuidOf(4)} {
		w.returns(u, r)
	}
	r = stood(sorted...)
	r.Change.Prepares, r.Change.Answered = 20, true
	r.Ops = []wire.ReportedOp{{Vote: initiate(8)}, opOf(wire.OpVoted, 0)}
	b := w.returns(uuidOf(2), r)
	require.Equal(t, wire.M2CCollectiveCommsCommence{Tag: 7, SeqNr: 5}, w.pop(b))
	require.Equal(t, wire.M2CSwitchRing{Change: 20, Ring: ring}, w.pop(b))
	require.Equal(t, wire.M2CCollectiveCommsCommence{Tag: 8, SeqNr: 6}, w.pop(b))
	w.quiet(b)
}

// A member that does not come back is waited for, less long if the others say that its
// connections have ended, and goes when the authority has confirmed it.
func TestRecoveryWaitsForMembers(t *testing.T) {
	for _, broken := range []bool{false, true} {
		w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
		r := stood(two...)
		r.Ops = []wire.ReportedOp{opOf(wire.OpRunning, 5)}
		grace := 5*time.Second + returnTime
		if broken {
			r.Broken, grace = two[1:], time.Second
		}
		a := w.returns(two[0], r)
		c := w.connectAt("127.0.0.1:6") // a newcomer waits as well
		w.send(c, wire.C2MRequestSessionRegistration{Ext: wire.Ext{Native: true}})
		for w.now < grace-time.Millisecond {
			w.now += time.Millisecond
			w.send(a, wire.C2MHeartbeat{})
		}
		for _, p := range w.inbox[a] {
			require.Equal(t, wire.M2CHeartbeat{}, p)
		}
		require.Empty(t, w.inbox[c])
		w.inbox[a] = nil
		w.now += 2 * time.Millisecond
		_, confirms := asked(w.feed(Tick{}))
		require.Len(t, confirms, 1)
		w.inbox[a] = nil
		w.feed(Confirmed(confirms[0]))
		require.Equal(t, two[1], want[wire.M2CPeerDropped](w, a).UUID)
		require.True(t, want[wire.M2CCollectiveCommsAbort](w, a).Aborted)
		require.True(t, want[wire.M2CSessionRegistrationResponse](w, c).Accepted)
	}
}

// The answer of the authority does not count for one that has come back since and is gone
// again: it may be at another master.
func TestRecoveryAsksAgain(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	r := stood(two...)
	r.Broken = two[1:]
	a := w.returns(two[0], r)
	var confirms []Confirm
	for range 1000 {
		w.now += 10 * time.Millisecond
		if _, confirms = asked(w.feed(PacketIn{a, wire.C2MHeartbeat{}})); len(confirms) > 0 {
			break
		}
	}
	require.Len(t, confirms, 1)
	b := w.comes(two[1], 0, [16]byte{})
	w.feed(Confirmed(confirms[0]))
	require.Empty(t, w.accepted())
	_, again := asked(w.feed(Gone{Client: b}))
	require.Empty(t, w.accepted())
	require.Len(t, again, 1)
	w.feed(Confirmed(confirms[0]))
	require.Empty(t, w.accepted())
	w.feed(Confirmed(again[0]))
	require.Len(t, w.accepted(), 1)
}

// Without a registry only one part of a group may go on without the other.
func TestRecoveryNeedsAMajority(t *testing.T) {
	here := func(members ...wire.UUID) *world {
		w := heir(t, Config{})
		all := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3), uuidOf(4)}
		for _, u := range members {
			w.returns(u, stood(all...))
		}
		for range 70 {
			w.now += 100 * time.Millisecond
			for c := range w.inbox {
				w.send(c, wire.C2MHeartbeat{})
			}
			w.step(Tick{})
		}
		return w
	}
	require.Len(t, here(uuidOf(1), uuidOf(2)).accepted(), 2)
	require.Len(t, here(uuidOf(2), uuidOf(3), uuidOf(4)).accepted(), 3)
	w := here(uuidOf(3), uuidOf(4))
	require.Empty(t, w.accepted())
	w.step(LostMembers{Drop: true})
	require.Len(t, w.accepted(), 2)
	require.Equal(t, uint32(1), w.m.cfg.Term)
}

// A newcomer in a round that is over, since others are in a later one, is let in with the
// next: its group may not begin in the middle of what the others do together.
func TestNewcomersOfAnOlderRound(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	c := w.connectAt("127.0.0.1:5")
	w.send(c, wire.C2MRequestSessionRegistration{P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 3, PeerGroup: 1, Ext: wire.Ext{
		Native: true, HeartbeatInterval: time.Second, HeartbeatTimeout: 5 * time.Second,
		Resuming: wire.Resuming{Resume: true, Identity: wire.Identity{UUID: uuidOf(5)}},
	}})
	want[wire.M2CSessionRegistrationResponse](w, c)
	w.send(c, wire.C2MReport{Call: wire.ReportedCall{Step: wire.StepRing, Decision: 8}})
	want[wire.M2CResumed](w, c)
	a, b := w.returns(two[0], stood(two...)), w.returns(two[1], stood(two...))
	require.ElementsMatch(t, []ClientID{a, b}, w.accepted())
	require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
	for _, one := range []ClientID{c, a, b} {
		w.send(one, acceptVote)
	}
	require.Empty(t, want[wire.M2CP2PConnectionInfo](w, c).Peers)
}

// A session that this master has no proof of is refused, and one without the grant of
// the capability is no session.
func TestIdentityNeedsProof(t *testing.T) {
	key := []byte("k")
	w := heir(t, Config{Term: 1, Authority: true, IdentityKey: key, Registry: recordOf(two...)})
	a := w.comes(two[0], 0, [16]byte{1})
	p := want[wire.M2CSessionRegistrationResponse](w, a)
	require.False(t, p.Accepted)
	require.Contains(t, p.Ext.Reason, "proof")
	b := w.comes(two[0], 0, w.m.token(two[0], 0, ""))
	require.Equal(t, two[0], want[wire.M2CSessionRegistrationResponse](w, b).UUID)
	require.NotEqual(t, w.m.token(two[0], 0, ""), w.m.token(two[0], 1, ""))
	require.NotEqual(t, w.m.token(two[0], 0, ""), w.m.token(two[0], 0, "other"))

	w = newWorld(t, Config{})
	c := w.comes(two[0], 3, [16]byte{})
	p = want[wire.M2CSessionRegistrationResponse](w, c)
	require.True(t, p.Accepted)
	require.NotEqual(t, two[0], p.UUID)
	require.Equal(t, wire.Resuming{}, p.Ext.Resuming)
}

// Who comes when the others have gone on is let in again as a newcomer if it was one,
// under its uuid, and hears that it was away for too long otherwise.
func TestLateComers(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	a, b := w.returns(two[0], stood(two...)), w.returns(two[1], stood(two...))
	c := w.comes(uuidOf(5), 0, [16]byte{})
	require.Equal(t, uuidOf(5), want[wire.M2CSessionRegistrationResponse](w, c).UUID)
	w.send(c, wire.C2MReport{Call: wire.ReportedCall{Step: wire.StepRing, Decision: 8}})
	want[wire.M2CResumed](w, c)
	require.False(t, want[wire.M2CP2PConnectionsEstablished](w, c).Success)
	w.send(c, acceptVote)
	w.send(a, acceptVote)
	w.send(b, acceptVote)
	require.Len(t, want[wire.M2CP2PConnectionInfo](w, c).Peers, 2)

	d := w.comes(uuidOf(6), 0, [16]byte{})
	want[wire.M2CSessionRegistrationResponse](w, d)
	w.send(d, stood(two...))
	require.Equal(t, uuidOf(6), want[wire.M2CPeerDropped](w, d).UUID)
	w.isClosed(d, "too long")

	// One that has become a member without hearing of it, and was gone then, is in the ring
	// of the others: it cannot begin with them as a newcomer.
	w = heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	w.returns(two[0], stood(two...))
	b = w.returns(two[1], stood(two...))
	w.obey(w.feed(Gone{b, "closed"}))
	c = w.comes(two[1], 0, [16]byte{})
	require.Equal(t, two[1], want[wire.M2CSessionRegistrationResponse](w, c).UUID)
	w.send(c, wire.C2MReport{Call: wire.ReportedCall{Step: wire.StepRing, Decision: 8}})
	w.isClosed(c, "too long")
}

// One that was dropped comes to a later master before the others, or when they have left: it
// does not begin its old ring again.
func TestDroppedComesFirst(t *testing.T) {
	three := append(slices.Clone(two), uuidOf(9))
	for _, left := range []bool{false, true} {
		r := recordOf(two...)
		r.Groups[0].Round = stood(three...).Round.Decision + 1
		if left {
			r.Groups[0].Members = nil
		}
		w := heir(t, Config{Term: 1, Authority: true, Registry: r})
		c := w.comes(three[2], 0, [16]byte{})
		want[wire.M2CSessionRegistrationResponse](w, c)
		w.send(c, stood(three...))
		require.Equal(t, three[2], want[wire.M2CPeerDropped](w, c).UUID)
		w.isClosed(c, "too long")
		require.Equal(t, r, w.m.Registry())
	}
}

// What a client can have kept while others are waited for is bounded.
func TestRecoveryIsBounded(t *testing.T) {
	w := heir(t, Config{Term: 1, Authority: true, Registry: recordOf(two...)})
	a := w.returns(two[0], stood(two...))
	for range maxHeld {
		w.send(a, wire.C2MProbeState{})
	}
	w.quiet(a)
	w.send(a, wire.C2MProbeState{})
	w.isClosed(a, "too many")
	require.Empty(t, w.m.recovery.held)

	b := w.connectAt("127.0.0.1:6")
	for range 2 {
		w.send(b, wire.C2MRequestSessionRegistration{})
	}
	w.isClosed(b, "twice")
	require.Empty(t, w.m.recovery.held)
	require.Empty(t, w.m.recovery.doors)
}

// Who has asked to leave need not ask again, whether it comes back in time or not.
func TestRecoveredLeave(t *testing.T) {
	four := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3), uuidOf(4)}
	begin := func(change func(i int, r *wire.C2MReport)) (*world, []ClientID) {
		w := heir(t, Config{Term: 1, Authority: true, Switch: true, Registry: recordOf(four...)})
		w.version = 1
		var cs []ClientID
		for i, u := range four {
			r := stood(four...)
			change(i, &r)
			cs = append(cs, w.returns(u, r))
		}
		require.True(t, w.m.conns[cs[1]].can.leave)
		return w, cs
	}
	gone := func(w *world, c ClientID, others []ClientID) {
		for _, o := range others {
			p := want[wire.M2CPrepareLeave](w, o)
			require.Equal(t, w.ids[c], p.Leaver)
			w.send(o, wire.C2MRingPrepared{Change: p.Change})
		}
		require.True(t, want[wire.M2CLeaveAnswer](w, c).Left)
		for _, o := range others {
			require.NotContains(t, want[wire.M2CRingWithout](w, o).Ring, w.ids[c])
		}
		w.quiet(others...)
	}

	w, cs := begin(func(i int, r *wire.C2MReport) { r.Leaving = i == 0 })
	gone(w, cs[0], cs[1:])
	late := w.comes(four[0], 1, [16]byte{})
	want[wire.M2CSessionRegistrationResponse](w, late)
	r := stood(four...)
	r.Leaving = true
	w.obey(w.feed(PacketIn{late, r}))
	gone(w, late, nil)

	w, cs = begin(func(int, *wire.C2MReport) {})
	w.send(cs[0], wire.C2MLeave{})
	gone(w, cs[0], cs[1:])

	w, cs = begin(func(i int, r *wire.C2MReport) {
		if i == 0 {
			r.NextRevision = 3
		}
	})
	w.send(cs[0], wire.C2MLeave{})
	require.Contains(t, want[wire.M2CLeaveAnswer](w, cs[0]).Reason, "revision 2")
	w.quiet(cs...)
}

// A ring without a member that leaves is everybody's if one has it. If nobody has, it is
// given up, and who has not heard of it takes back what the others have.
func TestRecoveredRingWithoutALeaver(t *testing.T) {
	four := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3), uuidOf(4)}
	begin := func(change func(i int, r *wire.C2MReport)) (*world, []ClientID) {
		w := heir(t, Config{Term: 1, Authority: true, Switch: true, Registry: recordOf(four...)})
		w.version = 1
		var cs []ClientID
		for i, u := range four {
			r := stood(four...)
			change(i, &r)
			c := w.comes(u, 0, [16]byte{})
			want[wire.M2CSessionRegistrationResponse](w, c)
			w.obey(w.feed(PacketIn{c, r}))
			want[wire.M2CResumed](w, c)
			cs = append(cs, c)
		}
		return w, cs
	}
	prepares := wire.ReportedChange{Prepares: 7, Leaver: four[0], Epoch: 8, Answered: true}

	w, cs := begin(func(i int, r *wire.C2MReport) {
		switch i {
		case 1:
			r.Round.Ring, r.Round.World, r.Round.Largest, r.Change.Taken = four[1:], 3, 3, 7
		case 0:
			r.Leaving = true
		default:
			r.Round.World, r.Round.Largest, r.Change = 4, 4, prepares
		}
	})
	for _, c := range cs[2:] {
		require.Equal(t, wire.M2CRingWithout{Change: 7, Ring: four[1:], World: 3, Largest: 3}, want[wire.M2CRingWithout](w, c))
	}
	require.True(t, want[wire.M2CLeaveAnswer](w, cs[0]).Left)
	w.quiet(cs[1:]...)

	// A mesh of those who have not heard of it ends with it, and is not in force any more.
	w, cs = begin(func(i int, r *wire.C2MReport) {
		switch i {
		case 1:
			r.Round.Ring, r.Round.World, r.Round.Largest, r.Change.Taken = four[1:], 3, 3, 7
		case 0:
			r.Leaving = true
		default:
			r.Round.World, r.Round.Largest, r.Change = 4, 4, prepares
			r.Mesh = wire.ReportedMesh{Step: wire.MeshSettled, Change: 5, Planner: wire.MeshDirect}
		}
	})
	for _, c := range cs[2:] {
		want[wire.M2CRingWithout](w, c)
	}
	want[wire.M2CLeaveAnswer](w, cs[0])
	w.quiet(cs[1:]...)
	require.Equal(t, meshNone, w.m.groups[0].mesh.state)

	w, cs = begin(func(i int, r *wire.C2MReport) {
		if i == 1 {
			r.Change = prepares
		}
	})
	require.Equal(t, wire.M2CSwitchRing{Change: 7}, want[wire.M2CSwitchRing](w, cs[1]))
	for _, c := range cs[2:] {
		p := want[wire.M2CPrepareLeave](w, c)
		require.Equal(t, []any{uint64(7), uint64(8), four[0], 2}, []any{p.Change, p.Epoch, p.Leaver, len(p.Peers)})
		require.Equal(t, wire.M2CSwitchRing{Change: 7}, want[wire.M2CSwitchRing](w, c))
	}
	w.quiet(cs...)
}

// A member of which the others were told that it has been dropped does not go on with them,
// if it has not heard so itself: they have decided things without it since.
func TestDroppedMembersAreNotTakenBack(t *testing.T) {
	three := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3)}
	w := heir(t, Config{Term: 1})
	var cs []ClientID
	for _, u := range three {
		c := w.comes(u, 1, [16]byte{})
		want[wire.M2CSessionRegistrationResponse](w, c)
		cs = append(cs, c)
	}
	for i, c := range cs {
		r := stood(three...)
		r.Round.World = 3
		if i < 2 {
			r.Round.Gone = three[2:]
		}
		w.send(c, r)
		want[wire.M2CResumed](w, c)
	}
	w.after(w.m.until(w.m.survey())) // there may be others
	w.isClosed(cs[2], "without it")
	require.Equal(t, cs[:2], w.accepted())
}

// One whose word nobody confirms puts nobody out, and neither do those that were told the same
// of each other.
func TestOneWordPutsNobodyOut(t *testing.T) {
	four := []wire.UUID{uuidOf(1), uuidOf(2), uuidOf(3), uuidOf(4)}
	for name, gone := range map[string][4][]wire.UUID{
		"a liar":  {nil, nil, nil, four[:3]},
		"a split": {four[2:], four[2:], four[:2], four[:2]},
	} {
		t.Run(name, func(t *testing.T) {
			w := heir(t, Config{Term: 1})
			var cs []ClientID
			for i, u := range four {
				r := stood(four...)
				r.Round.Gone = gone[i]
				cs = append(cs, w.returns(u, r))
			}
			w.after(w.m.until(w.m.survey()))
			require.ElementsMatch(t, cs, w.accepted())
		})
	}
}
