package fsm

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

var (
	canResume = Config{ReattachTimeout: time.Minute}
	token     = [16]byte{7}
	resumes   = wire.Ext{Topology: true, Switch: true, Resuming: wire.Resuming{
		Resume: true, Term: 1, Identity: wire.Identity{UUID: uid(1), Token: token},
	}}
)

// ofTerm is the answer of a master of a later term.
func ofTerm(term uint32) wire.M2CSessionRegistrationResponse {
	x := resumes
	x.Native, x.Resuming.Term = true, term
	return wire.M2CSessionRegistrationResponse{Accepted: true, UUID: uid(1), Ext: x}
}

// reattach has the rig found by a master, and returns the report to it.
func (r *rig) reattach() wire.C2MReport {
	r.t.Helper()
	r.step(Attached{Packet: ofTerm(2)})
	require.Len(r.t, r.lastSent, 1)
	p, ok := r.lastSent[0].(wire.C2MReport)
	require.True(r.t, ok)
	return p
}

// What a peer reports in every state, and what becomes of it without a master: it
// sends nothing, ends no call, and goes on when it is taken back.
func TestNoMasterInEveryState(t *testing.T) {
	steps := map[string]wire.ReportStep{
		"vote": wire.StepAccept, "establish": wire.StepConnecting, "ring": wire.StepRing, "requests": wire.StepOptimize,
		"probing": wire.StepProbing, "called for probes": wire.StepCalled, "connecting to probe": wire.StepCalled,
		"ready to probe": wire.StepCalled, "sending": wire.StepCalled, "optimized": wire.StepOptimized,
		"election": wire.StepElection, "fetching": wire.StepFetching, "synced": wire.StepSynced, "repair": wire.StepEstablish,
	}
	ops := map[string]wire.OpStep{
		"op voting": wire.OpVoted, "op running": wire.OpRunning, "op reported": wire.OpReported, "op judged": wire.OpReported,
	}
	for _, s := range statesAs(canResume, resumes) {
		if s.name == "over" {
			continue // it is reached by the loss of a master
		}
		t.Run(s.name, func(t *testing.T) {
			r, busy := s.go_(t)
			answered := len(r.dones)
			r.step(MasterGone{Err: io.EOF})
			switch s.name {
			case "fresh", "register":
				_, again := has[Reattach](r)
				require.False(t, again)
				require.Equal(t, statusOver, r.m.status)
				return
			}
			e := want[Reattach](r)
			require.Zero(t, e.After, "the first try comes at once")
			require.Equal(t, wire.Resuming{Resume: true, Term: 1, Met: s.name == "repair" || s.name == "op settled", Identity: wire.Identity{UUID: uid(1), Token: token}}, e.Hello.Ext.Resuming)
			require.Equal(t, statusDetached, r.m.status)
			require.True(t, r.m.View().Detached)
			require.Len(t, r.dones, answered)
			r.step(MasterGone{})
			require.Empty(t, r.fx)
			r.in(wire.M2CSyncSharedStateComplete{})
			require.Empty(t, r.fx, "of a connection that has ended")

			p := r.reattach()
			require.Equal(t, steps[s.name], p.Call.Step)
			if step, open := ops[s.name]; open {
				require.Len(t, p.Ops, 1)
				require.Equal(t, step, p.Ops[0].Step)
				require.Equal(t, s.name == "op judged", p.Ops[0].Heard)
				require.Equal(t, wire.C2MCollectiveCommsComplete{Tag: 1}, p.Ops[0].Done)
				if step >= wire.OpRunning {
					require.Equal(t, uint64(1), p.Ops[0].Seq)
				}
			} else {
				require.Empty(t, p.Ops)
			}
			switch s.name {
			case "waiting to be let in":
				require.Empty(t, p.Round.Ring)
			case "repair":
				require.Equal(t, []wire.ReportedVerdict{{Tag: 1, Seq: 1, Verdict: wire.Verdict{Aborted: true}}}, p.Verdicts)
			case "op settled":
				require.Equal(t, []wire.ReportedVerdict{{Tag: 1, Seq: 1}}, p.Verdicts)
			default:
				require.Equal(t, uids(1, 2), p.Round.Ring)
				require.Empty(t, p.Verdicts)
			}
			raw := wire.AppendBody(nil, p)
			back, err := wire.Decode(wire.C2M, p.ID(), raw)
			require.NoError(t, err)
			require.Equal(t, raw, wire.AppendBody(nil, back))

			r.in(wire.M2CResumed{})
			require.Equal(t, statusLive, r.m.status)
			require.False(t, r.m.View().Detached)
			r.silent()
			if busy != 0 {
				r.unanswered(busy)
			}
			r.step(CallClose{Call: r.newCall()})
		})
	}
}

// A peer whose master grants nothing, or that asks for nothing, ends with it.
func TestNoMasterWithoutResuming(t *testing.T) {
	for name, r := range map[string]*rig{
		"not wanted":  connectedAs(t, Config{}, resumes, true, 1, 2),
		"not granted": connectedAs(t, canResume, wire.Ext{}, true, 1, 2),
		"PCCL":        connectedAs(t, canResume, resumes, false, 1, 2),
	} {
		r.step(MasterGone{Err: io.EOF})
		want[Disconnect](r)
		_, again := has[Reattach](r)
		require.False(t, again, name)
	}
	r := newRig(t, Config{})
	r.step(CallConnect{Call: r.newCall()})
	require.Equal(t, wire.Resuming{}, r.lastSent[0].(wire.C2MRequestSessionRegistration).Ext.Resuming)
}

// Silence is the loss of a master, too, and a master that ends in good order says when
// to come back, and where.
func TestSilenceAndLeaving(t *testing.T) {
	cfg, x := canResume, resumes
	cfg.HeartbeatInterval = time.Second
	x.HeartbeatInterval, x.HeartbeatTimeout = time.Second, 3*time.Second
	r := connectedAs(t, cfg, x, true, 1, 2)
	at := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:48148")}
	r.in(wire.M2CLeaving{After: 400, Masters: at})
	for range 3 {
		r.now += time.Second
		r.step(Tick{})
	}
	e := want[Reattach](r)
	require.Equal(t, 400*time.Millisecond, e.After)
	require.Equal(t, at, e.At)
	due, any := r.m.Deadline()
	require.True(t, any)
	require.Equal(t, r.now+time.Minute, due, "no heartbeats without a master")
	for range 10 {
		r.now += time.Second
		r.step(Tick{})
		require.Empty(t, r.fx, "one search at a time")
	}

	r = connected(t, true, 1, 2)
	r.in(wire.M2CLeaving{})
	require.ErrorIs(t, r.m.ended, errs.Protocol, "to a peer that cannot resume")
	r = connectedAs(t, canResume, resumes, true, 1, 2)
	r.in(wire.M2CResumed{})
	require.ErrorIs(t, r.m.ended, errs.Protocol, "nothing was reported")
}

// Tries to find a master come at growing distances, until the time is over. A
// connection without an M2C 72 does not end the wait.
func TestReattachTimeout(t *testing.T) {
	r := connectedAs(t, canResume, resumes, true, 1, 2)
	u := r.update()
	r.step(MasterGone{Err: io.EOF})
	var after []int64
	began := r.now
	for _, away := range []time.Duration{0, 8, 40, 400, 999, 1000, 5000} {
		r.now = began + away*time.Millisecond
		r.step(NotAttached{})
		after = append(after, want[Reattach](r).After.Microseconds())
	}
	require.Equal(t, []int64{5000, 5000, 10_000, 100_000, 249_750, 250_000, 250_000}, after)
	r.now = began + 30*time.Second
	r.reattach()
	r.step(MasterGone{})
	require.Equal(t, mostPause, want[Reattach](r).After)
	due, any := r.m.Deadline()
	require.True(t, any)
	require.Equal(t, time.Minute, due)
	r.now = due
	r.step(Tick{})
	err := r.failed(u, errs.UpdateTopologyFailed, errs.MasterLost)
	require.ErrorContains(t, err, "it has stopped; no master has taken this peer back within 1m0s")
	r.step(Attached{Packet: ofTerm(2)})
	require.Empty(t, r.fx)
	r.step(NotAttached{})
	require.Empty(t, r.fx)
}

// A master that does not know the session ends it, one of a lower term and one that
// does not lead are left for another.
func TestOtherMasters(t *testing.T) {
	detached := func() *rig {
		r := connectedAs(t, canResume, resumes, true, 1, 2)
		r.succeed(r.launch(1), 1)
		r.step(MasterGone{})
		return r
	}
	for name, change := range map[string]func(p *wire.M2CSessionRegistrationResponse){
		"another uuid": func(p *wire.M2CSessionRegistrationResponse) { p.UUID = uid(9) },
		"older gopccl": func(p *wire.M2CSessionRegistrationResponse) { p.Ext.Resuming.Resume = false },
		"PCCL":         func(p *wire.M2CSessionRegistrationResponse) { p.Ext = wire.Ext{} },
	} {
		r, p := detached(), ofTerm(2)
		change(&p)
		r.step(Attached{Packet: p})
		want[Disconnect](r)
		require.ErrorIs(t, r.m.ended, errs.MasterLost, name)
	}
	r := detached()
	r.step(Attached{Packet: ofTerm(5)})
	r.in(wire.M2CResumed{})
	r.step(MasterGone{})
	require.Equal(t, uint32(5), want[Reattach](r).Hello.Ext.Resuming.Term)
	r.step(Attached{Packet: ofTerm(4)})
	r.silent()
	want[Reattach](r)
	leader := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:48148")}
	r.step(Attached{Packet: wire.M2CSessionRegistrationResponse{Ext: wire.Ext{Native: true, Resuming: wire.Resuming{Leader: leader}}}})
	require.Equal(t, leader, want[Reattach](r).At)
	r.step(Attached{Packet: ofTerm(5)})
	require.Len(t, r.lastSent, 1)
}

// Calls are taken without a master, and what they would have said is reported. What
// happens after the report is said.
func TestCallsWithoutMaster(t *testing.T) {
	r := connectedAs(t, canResume, resumes, true, 1, 2)
	first := r.launch(1)
	r.commence(1)
	r.step(MasterGone{})
	r.launch(2)
	r.silent()
	ask := r.newCall()
	r.step(CallPending{Call: ask})
	r.silent()
	r.step(DataEnded{Op: first})
	r.silent()
	p := r.reattach()
	require.True(t, p.Query.Asking)
	require.Len(t, p.Ops, 2)
	require.Equal(t, wire.OpReported, p.Ops[0].Step)
	require.Equal(t, wire.OpVoted, p.Ops[1].Step)
	r.launch(3)
	require.Len(t, r.lastSent, 1, "after the report")
	r.in(wire.M2CResumed{})
	r.silent()
	r.abort(1, false)
	r.complete(1)
	r.in(wire.M2CPeersPendingResponse{PeersPending: true, Decision: 258})
	require.True(t, r.ok(ask).Pending)
	r.step(MasterGone{})
	p = r.reattach()
	require.Equal(t, wire.ReportedQuery{Decision: 258, Pending: true}, p.Query)
	require.Equal(t, []wire.ReportedVerdict{{Tag: 1, Seq: 1}}, p.Verdicts)
	require.Len(t, p.Ops, 2)
	r.launch(1)
	r.step(MasterGone{})
	p = r.reattach()
	require.Equal(t, uint64(2), p.Ops[2].After, "the next use of the tag")
	require.Zero(t, p.Ops[0].After)

	r = connectedAs(t, canResume, resumes, true, 1, 2)
	r.succeed(r.launch(1), 1)
	r.step(CallPending{Call: r.newCall()})
	r.in(wire.M2CPeersPendingResponse{Decision: 258})
	r.await(1)
	r.update()
	r.round(1, 2)
	r.step(MasterGone{})
	p = r.reattach()
	require.Empty(t, p.Verdicts, "a round ends what was before it")
	require.Zero(t, p.Query)
}

// A barrier that this peer has passed and whose caller gave up is reported as aborted.
func TestGivenUpBarrierIsReported(t *testing.T) {
	cfg, x := canResume, resumes
	cfg.EagerBytes, x.Collectives = 1<<10, 1
	r := newRig(t, cfg)
	r.register(true, x)
	p := r.info([]int{1, 2})
	p.Ext.Epoch = 9
	r.in(p)
	r.step(Established{Round: 1})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(1, 2)})
	c := r.newCall()
	r.op++
	r.step(CallCollective{Call: c, Op: r.op, Tag: 4, DType: dtype.Float32, RedOp: dtype.Sum, Vote: wire.Call{Kind: uint8(plan.Barrier)}})
	r.ok(c)
	w := r.await(r.op)
	r.step(MasterGone{})
	r.step(CallCancel{Call: w, Op: r.op})
	r.silent()
	r.failed(w, errs.Canceled)
	report := r.reattach()
	require.Equal(t, wire.OpAhead, report.Ops[0].Step)
	require.True(t, report.Ops[0].Done.WasAborted)
}

// A vote that is held back counts as sent, and as cast: it does not go out again.
func TestHeldVoteIsReported(t *testing.T) {
	cfg := canResume
	cfg.EagerBytes = 1 << 10
	r := newRig(t, cfg)
	c := r.register(true, resumes)
	p := r.info([]int{1, 2})
	p.Ext.Epoch, p.Ext.Resuming.Decision = 9, 258
	r.in(p)
	r.step(Established{Round: 1})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(1, 2), Mortal: uids(2)})
	r.ok(c)
	op := r.launch(1)
	r.silent()
	r.step(MasterGone{})
	report := r.reattach()
	require.Equal(t, wire.OpVoted, report.Ops[0].Step)
	require.Equal(t, wire.StoodRound{Decision: 258, Ring: uids(1, 2), Mortal: uids(2), World: 2, Groups: 1, Largest: 2}, report.Round)
	r.now += time.Second
	r.step(Tick{})
	r.silent()
	r.step(DataEnded{Op: op})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 1})
	other := r.launch(2)
	require.Len(t, r.lastSent, 1)
	r.step(MasterGone{})
	r.step(DataEnded{Op: other})
	r.silent()
	report = r.reattach()
	require.Equal(t, []wire.OpStep{wire.OpAhead, wire.OpAhead}, []wire.OpStep{report.Ops[0].Step, report.Ops[1].Step})
}

// What a round, an election, a switch and a mesh have come to is in the report.
func TestReportOfPhases(t *testing.T) {
	r := connectedAs(t, canResume, resumes, true, 1, 2, 3)
	r.update()
	p := r.info([]int{1, 2, 3})
	p.Ext.Resuming.Decision = 300
	r.in(p)
	r.step(MasterGone{})
	r.step(Established{Round: 2, Failed: uids(3)})
	r.silent()
	require.Equal(t, wire.ReportedCall{Step: wire.StepRing, Decision: 300, Failed: uids(3)}, r.reattach().Call)
	r.in(wire.M2CP2PConnectionsEstablished{Ring: uids(1, 2, 3)}) // it votes to repeat that one
	r.step(MasterGone{})
	require.Equal(t, wire.ReportedCall{Step: wire.StepAccept, Decision: 300}, r.reattach().Call)

	r = connectedAs(t, canResume, resumes, true, 1, 2, 3)
	s := r.sync("w")
	verdict := wire.M2CSyncSharedState{IsOutdated: true, Distributor: addr(2), Keys: []string{"w"}, Hashes: []uint64{5}, HashTypes: []wire.HashType{0}}
	told := verdict
	told.Ext.Resuming.Decision = 301
	r.in(told)
	r.step(MasterGone{})
	r.step(Fetched{Call: s, Err: fmt.Errorf("reset")})
	r.silent()
	call := r.reattach().Call
	require.Equal(t, wire.C2MSyncSharedState{Revision: 5, Entries: []wire.StateEntry{{Key: "w", Hash: 7, DType: dtype.Float32}}}, call.Vote)
	call.Vote = wire.C2MSyncSharedState{}
	require.Equal(t, wire.ReportedCall{Step: wire.StepSynced, Decision: 301, Unheld: true, Verdict: verdict}, call)
	r.in(wire.M2CSyncSharedStateComplete{NextRevision: 6})

	r.in(wire.M2CPrepareRing{Change: 400, Peers: endpoints(2, 3)})
	r.in(wire.M2CSwitchRing{Change: 400, Ring: uids(1, 3, 2)})
	r.in(wire.M2CPeerDropped{UUID: uid(3)})
	r.in(wire.M2CPrepareRing{Change: 401, Peers: endpoints(2, 3)})
	r.step(MasterGone{})
	r.step(Attached{Packet: ofTerm(2), Broken: uids(3)})
	report := r.lastSent[0].(wire.C2MReport)
	require.Equal(t, wire.ReportedChange{Taken: 400, Prepares: 401, Answered: true}, report.Change)
	require.Equal(t, uids(1, 3, 2), report.Round.Ring)
	require.Equal(t, uids(3), report.Round.Gone)
	require.Equal(t, uids(3), report.Broken)
	require.Equal(t, uint64(6), report.NextRevision)
}

// A mesh that is made or refused is in the report, and so is the wish for one.
func TestReportOfMesh(t *testing.T) {
	x := resumes
	x.Collectives = 1
	for _, c := range []struct {
		play func(r *rig)
		want wire.ReportedMesh
	}{
		{func(*rig) {}, wire.ReportedMesh{}},
		{func(r *rig) { r.step(CallMesh{Call: r.newCall()}) }, wire.ReportedMesh{Wanted: true}},
		{func(r *rig) { r.in(wire.M2CPrepareMesh{Change: 500, Peers: endpoints(3)}) }, wire.ReportedMesh{Step: wire.MeshPreparing, Change: 500}},
		{func(r *rig) {
			r.in(wire.M2CPrepareMesh{Change: 500, Peers: endpoints(3)})
			r.step(MeshPrepared{Change: 500, Failed: uids(3)})
		}, wire.ReportedMesh{Step: wire.MeshAnswered, Change: 500, Failed: uids(3)}},
		{func(r *rig) {
			r.in(wire.M2CPrepareMesh{Change: 500, Peers: endpoints(3)})
			r.step(MeshPrepared{Change: 500})
			r.in(wire.M2CMesh{Change: 500, Planner: wire.MeshDirect})
		}, wire.ReportedMesh{Step: wire.MeshSettled, Change: 500, Planner: wire.MeshDirect}},
		{func(r *rig) { r.in(wire.M2CMesh{Change: 500}) }, wire.ReportedMesh{Step: wire.MeshSettled, Change: 500}},
	} {
		r := connectedAs(t, canResume, x, true, 1, 2, 3, 4)
		c.play(r)
		r.step(MasterGone{})
		require.Equal(t, c.want, r.reattach().Mesh)
	}
}

// Verdicts are kept of the last collectives alone, and of every tag the last one. A
// member knows its own of every one that another member still reports.
func TestVerdictsAreBounded(t *testing.T) {
	var v verdicts
	for n := range uint64(10 * keptVerdicts) {
		v.add(wire.ReportedVerdict{Tag: n, Seq: n + 1})
		v.add(wire.ReportedVerdict{Tag: 1 << 40, Seq: n + 2})
		require.Less(t, len(v.order), 2*keptVerdicts)
	}
	require.LessOrEqual(t, len(v.of), 2*keptVerdicts)
	last := v.last(reportedVerdicts)
	require.Len(t, last, reportedVerdicts)
	require.Equal(t, uint64(1<<40), last[reportedVerdicts-1].Tag)
	require.True(t, slices.IsSortedFunc(last, func(a, b wire.ReportedVerdict) int { return int(a.Seq) - int(b.Seq) }))
	require.Contains(t, v.of, uint64(10*keptVerdicts-reportedVerdicts))
	require.NotContains(t, v.of, uint64(1))
}

// Who leaves, and what becomes of it, is in the report.
func TestReportOfLeaving(t *testing.T) {
	x := resumes
	x.Collectives, x.Plans = 1, wire.LeavePlans
	r := connectedAs(t, canResume, x, true, 1, 2, 3)
	c := r.newCall()
	r.step(MasterGone{})
	r.step(CallLeave{Call: c})
	r.silent()
	require.True(t, r.reattach().Leaving)
	r.in(wire.M2CLeaveAnswer{Left: true})
	r.ok(c)

	r = connectedAs(t, canResume, x, true, 1, 2, 3)
	r.in(wire.M2CPrepareLeave{Change: 400, Epoch: 9, Leaver: uid(3), Peers: endpoints(2)})
	r.step(MasterGone{})
	again := ofTerm(2)
	again.Ext.Collectives, again.Ext.Plans = 1, wire.LeavePlans
	r.step(Attached{Packet: again})
	require.Equal(t, wire.ReportedChange{Prepares: 400, Leaver: uid(3), Epoch: 9, Answered: true}, r.lastSent[0].(wire.C2MReport).Change)
	r.in(wire.M2CRingWithout{Change: 400, World: 5, Largest: 3, Ring: uids(1, 2)})
	r.step(MasterGone{})
	p := r.reattach()
	require.Equal(t, wire.ReportedChange{Taken: 400}, p.Change)
	require.Equal(t, wire.StoodRound{Ring: uids(1, 2), Members: uids(1, 2), World: 5, Groups: 1, Largest: 3}, p.Round)
}

// The session is over when as many masters as there are say so, and the log names the
// reason once. Another refusal is tried again.
func TestRefusedBack(t *testing.T) {
	refusal := func(code errs.Code, reason string) Attached {
		return Attached{Packet: wire.M2CSessionRegistrationResponse{Ext: wire.Ext{Native: true, Reason: reason, ReasonCode: uint16(code)}}}
	}
	cfg := canResume
	cfg.Masters = 2
	r := connectedAs(t, cfg, resumes, true, 1, 2)
	u := r.update()
	r.step(MasterGone{})
	for i := range 3 {
		r.step(refusal(errs.TurnedAway, "full"))
		want[Reattach](r)
		require.Equal(t, i == 0, slices.ContainsFunc(r.fx, func(e Effect) bool { _, told := e.(Log); return told }))
	}
	r.step(refusal(errs.MasterLost, "another key"))
	want[Reattach](r)
	r.step(refusal(errs.MasterLost, "another key"))
	require.ErrorContains(t, r.failed(u, errs.UpdateTopologyFailed, errs.MasterLost), "has refused this peer: another key")
}

// A neighbour that has ended its connections is named to the master, once, and to the next
// one; in a round one of those that are to be neighbours is. Others are not, nor is anybody
// where the session does not resume.
func TestEndedLinksAreTold(t *testing.T) {
	r := connectedAs(t, canResume, resumes, true, 1, 2, 3)
	r.step(LinkEnded{Peer: uid(4)})
	r.silent()
	r.step(LinkEnded{Peer: uid(2)})
	r.sent(wire.C2MLinkEnded{Peer: uid(2)})
	r.step(LinkEnded{Peer: uid(2)})
	r.silent()
	r.step(MasterGone{})
	r.step(LinkEnded{Peer: uid(3)})
	r.silent()
	require.Equal(t, uids(2, 3), r.reattach().Broken)
	r.in(wire.M2CResumed{})

	r.update()
	r.in(r.info([]int{1, 2, 4}))
	r.step(LinkEnded{Peer: uid(3)}) // it has closed what neither needs any more
	r.silent()
	r.step(LinkEnded{Peer: uid(4), Incoming: true}) // opened for a ring that was withdrawn
	r.silent()
	r.step(LinkEnded{Peer: uid(2)})
	r.sent(wire.C2MLinkEnded{Peer: uid(2)})
	r.step(Established{Round: 2})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(1, 2, 4)})
	r.step(MasterGone{})
	require.Equal(t, uids(2), r.reattach().Broken, "since the peers of this round were told")

	r = connectedAs(t, canResume, resumes, true, 1, 2, 3)
	r.in(wire.M2CPrepareRing{Change: 400, Peers: endpoints(3)})
	r.step(LinkEnded{Peer: uid(2)}) // it may have gone on to the ring that is prepared
	r.silent()

	r = connected(t, true, 1, 2, 3)
	r.step(LinkEnded{Peer: uid(2)})
	r.silent()
}
