package fsm

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// leavers returns a rig whose master lets members leave, over the ring, in epoch 7.
func leavers(t *testing.T, ring ...int) *rig {
	t.Helper()
	r := newRig(t, Config{EagerBytes: 1024})
	c := r.register(true, wire.Ext{Switch: true, Collectives: 1, Plans: wire.PlansVersion})
	p := r.info(ring)
	p.Ext.Epoch, p.Ext.GroupCollectives, p.Ext.Members = 7, true, uids(ring...)
	p.Peers = endpoints(ring[1], ring[len(ring)-1])
	r.in(p)
	r.step(Established{Round: want[Establish](r).Round})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(ring...)})
	r.ok(c)
	return r
}

func (r *rig) leave() CallID {
	c := r.newCall()
	r.step(CallLeave{Call: c})
	return c
}

// What began before a member leaves that never launches it is taken back, and begins
// again in the ring without it, in an epoch that nobody has sent anything in.
func TestEagerOperationsBeginAnewWithoutALeaver(t *testing.T) {
	r := leavers(t, 1, 2, 3, 4)
	op := r.launch(4)
	r.isEager(true)
	r.in(wire.M2CPrepareLeave{Change: 5, Epoch: 8, Leaver: uid(2), Peers: endpoints(3, 4)})
	r.sent(initiated(4)) // the vote is no longer held back; the answer waits
	require.Equal(t, ExpectEpoch{Epoch: 8}, want[ExpectEpoch](r))
	require.Equal(t, op, want[AbortData](r).Op)
	require.Equal(t, endpoints(3), want[PrepareRing](r).Peers)
	next := r.launch(5)
	r.isEager(false)
	r.sent(initiated(5))
	r.step(RingPrepared{Change: 5})
	r.silent()
	r.step(DataEnded{Op: op, Err: errors.New("aborted")})
	require.Equal(t, RenewData{Op: op}, want[RenewData](r))
	r.sent(wire.C2MRingPrepared{Change: 5})
	r.in(wire.M2CRingWithout{Change: 5, World: 3, Largest: 3, Ring: uids(1, 3, 4)})
	require.Equal(t, SwitchRing{Neighbours: uids(3, 4), Epoch: 8}, want[SwitchRing](r))
	require.Equal(t, PeerLeft{Peer: uid(2)}, want[PeerLeft](r))
	v := r.m.View()
	require.Equal(t, uids(1, 3, 4), v.Ring)
	require.Equal(t, uids(1, 3, 4), v.Members)
	require.Equal(t, 3, v.LocalWorldSize)
	for i, o := range []OpID{op, next} {
		r.commence(uint64(4 + i))
		s := want[StartData](r)
		require.Equal(t, uids(1, 3, 4), s.Ring)
		require.False(t, s.Eager)
		require.EqualValues(t, 8, s.Epoch)
		r.step(DataEnded{Op: o})
		r.abort(uint64(4+i), false)
		r.complete(uint64(4 + i))
		r.ok(r.await(o))
	}
	r.launch(4)
	r.isEager(true)
	require.EqualValues(t, 8, want[StartData](r).Epoch)
}

// Given up, the change leaves everything to the commence, and nothing begins early: a
// neighbour may have begun in the epoch that this peer has left.
func TestALeaveThatIsGivenUp(t *testing.T) {
	r := leavers(t, 1, 2, 3, 4)
	op := r.launch(4)
	r.in(wire.M2CPrepareLeave{Change: 5, Epoch: 8, Leaver: uid(2), Peers: endpoints(3, 4)})
	r.step(DataEnded{Op: op, Err: errors.New("aborted")})
	r.in(wire.M2CSwitchRing{Change: 5})
	r.launch(5)
	r.isEager(false)
	r.commence(4)
	require.Equal(t, uids(1, 2, 3, 4), want[StartData](r).Ring)

	// Commenced before its first data phase has ended, it is lost.
	r = leavers(t, 1, 2, 3, 4)
	op = r.launch(4)
	r.in(wire.M2CPrepareLeave{Change: 5, Epoch: 8, Leaver: uid(2), Peers: endpoints(3, 4)})
	r.in(wire.M2CSwitchRing{Change: 5})
	r.commence(4)
	r.step(DataEnded{Op: op, Err: errors.New("aborted")})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 4, WasAborted: true})
}

// What the buffers of a collective mean depends on who the members are: it ends.
func TestOtherCollectivesEndWhenAMemberLeaves(t *testing.T) {
	prepare := wire.M2CPrepareLeave{Change: 5, Epoch: 8, Leaver: uid(2), Peers: endpoints(3, 4)}
	without := wire.M2CRingWithout{Change: 5, World: 3, Largest: 3, Ring: uids(1, 3, 4)}
	aborted := wire.C2MCollectiveCommsComplete{Tag: 4, WasAborted: true}

	// One that has begun ends before this peer is ready: what comes then is of others.
	r := leavers(t, 1, 2, 3, 4)
	op, _ := r.collective(plan.AllGather, 4)
	r.isEager(true)
	r.in(prepare)
	require.Equal(t, op, want[AbortData](r).Op)
	r.step(RingPrepared{Change: 5})
	r.silent()
	r.step(DataEnded{Op: op, Err: errors.New("aborted")})
	r.sent(aborted, wire.C2MRingPrepared{Change: 5})
	r.in(without)
	r.commence(4)
	r.abort(4, true)
	r.complete(4)
	require.Equal(t, errs.RankConnectionLost, errs.CodeOf(want[Finish](r).Err))

	// One that has not is not begun.
	r = leavers(t, 1, 2, 3, 4)
	r.in(prepare)
	r.collective(plan.AllGather, 4)
	r.isEager(false)
	r.step(RingPrepared{Change: 5})
	r.in(without)
	r.in(wire.M2CCollectiveCommsCommence{Tag: 4, SeqNr: 30})
	require.Equal(t, SkipData{Seq: 30}, want[SkipData](r))
	left := aborted
	left.Reason = "with " + uid(2).String() + ": peer " + uid(2).String() + " has left since it was launched"
	left.ReasonCode = uint16(errs.RankConnectionLost)
	r.sent(left)

	// With one this peer is through, and others are not: what it has sent them is of an epoch
	// that is over, and the master says so.
	r = leavers(t, 1, 2, 3, 4)
	op, _ = r.collective(plan.Broadcast, 4)
	r.isEager(true)
	r.step(DataEnded{Op: op})
	r.in(prepare)
	r.step(RingPrepared{Change: 5})
	r.sent(wire.C2MRingPrepared{Change: 5})
	r.in(without)
	require.NotContains(t, r.lastSent, aborted)
	require.Equal(t, aborted, r.m.byID(op).told.done, "so a master hears that comes after this one")
	r.commence(4)
	r.abort(4, true)
	r.complete(4)
	require.Equal(t, errs.RankConnectionLost, errs.CodeOf(want[Finish](r).Err))
}

// An operation that its caller gives up while it is taken back holds nobody up.
func TestALeaveDoesNotWaitForWhatIsCanceled(t *testing.T) {
	r := leavers(t, 1, 2, 3, 4)
	op := r.launch(4)
	r.in(wire.M2CPrepareLeave{Change: 5, Epoch: 8, Leaver: uid(2), Peers: endpoints(3, 4)})
	r.step(RingPrepared{Change: 5})
	c := r.await(op)
	r.step(CallCancel{Call: c, Op: op})
	r.silent()
	r.step(DataEnded{Op: op, Err: errors.New("aborted")})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 4, WasAborted: true}, wire.C2MRingPrepared{Change: 5})
	r.failed(c, errs.Canceled)
}

// A peer leaves when nothing of it is under way, and begins nothing while it waits.
func TestLeave(t *testing.T) {
	r := leavers(t, 1, 2, 3)
	op := r.launch(4)
	r.failed(r.leave(), errs.PendingAsyncOps)
	r.step(DataEnded{Op: op})
	r.commence(4)
	r.abort(4, false)
	r.complete(4)
	r.ok(r.await(op))
	q := r.newCall()
	r.step(CallPending{Call: q})
	r.failed(r.leave(), errs.Busy)
	r.in(wire.M2CPeersPendingResponse{})
	r.ok(q)

	c := r.leave()
	r.sent(wire.C2MLeave{})
	r.failed(r.leave(), errs.Busy)
	r.failed(r.update(), errs.Busy)
	r.in(wire.M2CLeaveAnswer{Reason: "the last"})
	require.Contains(t, r.failed(c, errs.NoSharedStateAvailable).Error(), "the last")
	c = r.leave()
	r.in(wire.M2CLeaveAnswer{Left: true})
	r.ok(c)
	want[Disconnect](r)
	require.ErrorIs(t, r.m.ended, errs.Closed)

	// The master goes meanwhile, or the caller does.
	r = leavers(t, 1, 2, 3)
	c = r.leave()
	r.step(MasterGone{})
	r.failed(c, errs.MasterLost)
	r = leavers(t, 1, 2, 3)
	c = r.leave()
	r.step(CallCancel{Call: c})
	r.failed(c, errs.Canceled)
	want[Disconnect](r)

	// Unasked, it is against the rules; an older master hears nothing.
	r = leavers(t, 1, 2, 3)
	r.in(wire.M2CLeaveAnswer{Left: true})
	require.ErrorIs(t, r.m.ended, errs.Protocol)
	r = eager(t, 1, 2, 3)
	c = r.leave()
	r.silent()
	r.ok(c)
	want[Disconnect](r)
}

// What a master may not say about a leave ends the session.
func TestLeavesOutOfOrder(t *testing.T) {
	prepare := wire.M2CPrepareLeave{Change: 5, Epoch: 8, Leaver: uid(2), Peers: endpoints(3, 4)}
	for name, ps := range map[string][]wire.Packet{
		"a stranger leaves":       {wire.M2CPrepareLeave{Change: 5, Leaver: uid(9), Peers: endpoints(3, 4)}},
		"the receiver leaves":     {wire.M2CPrepareLeave{Change: 5, Leaver: uid(1), Peers: endpoints(3, 4)}},
		"the leaver stays":        {wire.M2CPrepareLeave{Change: 5, Leaver: uid(2), Peers: endpoints(2, 4)}},
		"two changes":             {prepare, prepare},
		"not prepared":            {wire.M2CRingWithout{Change: 5, World: 3, Largest: 3, Ring: uids(1, 3, 4)}},
		"not answered":            {prepare, wire.M2CRingWithout{Change: 5, World: 3, Largest: 3, Ring: uids(1, 3, 4)}},
		"the leaver in the ring":  {prepare, wire.M2CRingWithout{Change: 5, World: 3, Largest: 3, Ring: uids(1, 2, 3, 4)}},
		"another kind of switch":  {wire.M2CPrepareRing{Change: 5, Peers: endpoints(3, 4)}, wire.M2CRingWithout{Change: 5, World: 3, Largest: 3, Ring: uids(1, 3, 4)}},
		"peers beyond all bounds": {prepare, wire.M2CRingWithout{Change: 5, World: 1 << 40, Largest: 3, Ring: uids(1, 3, 4)}},
	} {
		r := leavers(t, 1, 2, 3, 4)
		for i, p := range ps {
			if _, last := p.(wire.M2CRingWithout); last && i > 0 && name != "not answered" {
				r.step(RingPrepared{Change: 5})
			}
			r.in(p)
		}
		require.ErrorIs(t, r.m.ended, errs.Protocol, name)
	}
}

// What waits for its commence when the third of three leaves may go directly between the other
// two, who have told each other nothing of the leaver.
func TestTwoExchangeWithoutALeaver(t *testing.T) {
	r := leavers(t, 1, 2, 3)
	op := r.launch(4)
	r.isEager(true)
	r.in(wire.M2CPrepareLeave{Change: 5, Epoch: 8, Leaver: uid(2), Peers: endpoints(3)})
	require.Equal(t, op, want[AbortData](r).Op)
	r.step(DataEnded{Op: op, Err: errors.New("aborted")})
	r.in(wire.M2CRingWithout{Change: 5, World: 2, Largest: 2, Ring: uids(1, 3)})
	r.in(wire.M2CPrepareMesh{Change: 6})
	r.step(MeshPrepared{Change: 6, Ways: []wire.Way{{To: uid(3), RTT: 30_000}}})
	r.in(wire.M2CMesh{Change: 6, Planner: wire.MeshDirect})
	r.in(wire.M2CPrepareRing{Change: 7, Peers: endpoints(3)})
	r.in(wire.M2CSwitchRing{Change: 7, Ring: uids(1, 3), Direct: upTo32})
	r.fx = nil
	r.commence(4)
	s := want[StartData](r)
	require.True(t, s.Mesh)
	require.Equal(t, uids(1, 3), s.Members)
	require.ElementsMatch(t, s.Members, s.Ring)
}
