package fsm

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// collector returns a rig with a live session over the ring, in a group that has
// all collectives. In epoch 0 nothing begins eagerly.
func collector(t *testing.T, epoch uint64, ring ...int) *rig {
	t.Helper()
	r := newRig(t, Config{EagerBytes: 1024})
	c := r.register(true, wire.Ext{Switch: true, Collectives: 1})
	r.eagerRound(epoch, ring...)
	r.ok(c)
	return r
}

// collective launches an operation of kind k.
func (r *rig) collective(k plan.Kind, tag uint64) (OpID, CallID) {
	r.t.Helper()
	c := r.newCall()
	r.op++
	ev := CallCollective{Call: c, Op: r.op, Tag: tag, Count: 8, DType: dtype.Float32, RedOp: dtype.Sum, Vote: wire.Call{Kind: uint8(k), Digest: 3}, Sends: 64}
	if k.Direct() {
		ev.Vote.Flags = wire.CallMesh
	}
	if k == plan.Barrier {
		ev.Count, ev.DType, ev.RedOp, ev.Sends = 0, 0, 0, 0
	}
	r.step(ev)
	return r.op, c
}

func ballot(k plan.Kind, tag uint64) wire.C2MCollectiveCommsInitiate {
	p := initiated(tag)
	p.Call = wire.Call{Kind: uint8(k), Digest: 3}
	if k.Direct() {
		p.Call.Flags = wire.CallMesh
	}
	if k == plan.Barrier {
		p.Count, p.DType, p.Op = 0, 0, 0
	}
	return p
}

func completed(tag uint64, aborted bool) wire.C2MCollectiveCommsComplete {
	return wire.C2MCollectiveCommsComplete{Tag: tag, WasAborted: aborted}
}

// The data phase is told what was voted for, and the members in their own order.
func TestOtherCollectives(t *testing.T) {
	r := collector(t, 0, 2, 1, 3)
	op, c := r.collective(plan.Broadcast, 4)
	r.ok(c)
	r.sent(ballot(plan.Broadcast, 4))
	r.commence(4)
	require.Equal(t, StartData{
		Op: op, Tag: 4, Seq: 4, Ring: uids(2, 1, 3), Self: uid(1), Native: true,
		Vote: wire.Call{Kind: uint8(plan.Broadcast), Digest: 3}, Members: uids(1, 2, 3),
	}, want[StartData](r))
	r.step(DataEnded{Op: op, Err: fmt.Errorf("cut")})
	r.sent(completed(4, true))
	r.abort(4, true)
	r.complete(4)
	w := r.await(op)
	r.round(2, 1, 3)
	require.Equal(t, "broadcast", r.failed(w, errs.RankConnectionLost).Op)
}

// A group in which somebody does not know them refuses each by name, before a
// vote. All-reduces go on.
func TestUnsupportedCollectives(t *testing.T) {
	for name, c := range map[string]struct {
		native bool
		master wire.Ext
		group  wire.Ext
		why    string
	}{
		"PCCL master":  {false, wire.Ext{}, wire.Ext{}, "the master is PCCL's"},
		"older master": {true, wire.Ext{}, wire.Ext{GroupNative: true}, "the master is an older gopccl"},
		"a member":     {true, wire.Ext{Collectives: 1}, wire.Ext{Reason: "peer x is a PCCL peer"}, "peer x is a PCCL peer"},
		"not named":    {true, wire.Ext{Collectives: 1}, wire.Ext{GroupNative: true}, "a member of the group does not know it"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{})
			first := r.register(c.native, c.master)
			info := r.info([]int{1, 2})
			info.Ext = c.group
			r.in(info)
			r.step(Established{Round: want[Establish](r).Round})
			r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(1, 2)})
			r.ok(first)
			for k := plan.AllGather; k < plan.NumKinds; k++ {
				_, call := r.collective(k, 4)
				e := r.failed(call, errs.Unsupported)
				require.Equal(t, k.String(), e.Op)
				require.ErrorContains(t, e, c.why)
				require.Len(t, r.fx, 1)
			}
			r.launch(4)
		})
	}
}

// Arguments that no group could take.
func TestImpossibleCollectives(t *testing.T) {
	r := collector(t, 0, 1, 2)
	for _, v := range []wire.Call{{Kind: uint8(plan.NumKinds)}, {Kind: uint8(plan.Gather), Root: 2}} {
		c := r.newCall()
		r.step(CallCollective{Call: c, Op: 50, Tag: 4, DType: dtype.Float32, Vote: v})
		r.failed(c, errs.InvalidArgument)
	}
	alone := collector(t, 0, 1)
	_, c := alone.collective(plan.Barrier, 4)
	alone.failed(c, errs.TooFewPeers)
}

// A master that counts other members than those of the group is not one.
func TestWrongMembers(t *testing.T) {
	for name, members := range map[string][]wire.UUID{"none": nil, "another number": uids(1), "twice": uids(1, 1), "without this one": uids(2, 3)} {
		r := newRig(t, Config{})
		r.register(true, wire.Ext{Collectives: 1})
		p := r.info([]int{1, 2})
		p.Ext.Members = members
		r.in(p)
		_, gone := has[Disconnect](r)
		require.True(t, gone, name)
		require.ErrorIs(t, r.m.ended, errs.Protocol)
	}
}

// With an epoch vote and end of a barrier go together; nothing is held back, and no
// data phase is begun.
func TestBarrierIsOneRoundTrip(t *testing.T) {
	r := collector(t, 7, 2, 1, 3)
	held := r.launch(3)
	r.isEager(true)
	r.silent()
	op, c := r.collective(plan.Barrier, 4)
	r.ok(c)
	r.sent(initiated(3), ballot(plan.Barrier, 4), completed(4, false))
	_, starts := has[StartData](r)
	require.False(t, starts)
	w := r.await(op)
	r.commence(4)
	require.Empty(t, r.fx)
	r.abort(4, false)
	r.complete(4)
	r.ok(w)
	require.Contains(t, r.finishes, op)
	r.commence(3)
	r.step(DataEnded{Op: held})
}

// Without one it is through when it is commenced, unless a member has left.
func TestBarrierWithoutEpoch(t *testing.T) {
	for _, left := range []bool{false, true} {
		r := collector(t, 0, 2, 1, 3)
		op, _ := r.collective(plan.Barrier, 4)
		r.sent(ballot(plan.Barrier, 4))
		w := r.await(op)
		if left {
			r.in(wire.M2CPeerDropped{UUID: uid(3)})
		}
		r.commence(4)
		r.sent(completed(4, left))
		r.abort(4, left)
		r.complete(4)
		if !left {
			r.ok(w)
			continue
		}
		r.sent(vote0)
		r.round(2, 1)
		e := r.failed(w, errs.RankConnectionLost)
		require.Equal(t, "barrier", e.Op)
		require.Contains(t, e.Peer, uid(3).String())
	}
}

// A caller that gives a barrier up gets its call back at once, and says so to the others, who
// may never come. What follows waits for the verdict.
func TestBarrierIsGivenUp(t *testing.T) {
	for _, epoch := range []uint64{7, 0} {
		r := collector(t, epoch, 2, 1, 3)
		op, _ := r.collective(plan.Barrier, 4)
		w := r.await(op)
		r.step(CallCancel{Call: w, Op: op})
		require.Equal(t, "await barrier", r.failed(w, errs.Canceled).Op)
		if epoch != 0 {
			r.sent(completed(4, true))
		}
		_, c := r.collective(plan.Barrier, 5)
		r.unanswered(c)
		r.commence(4)
		if epoch == 0 {
			r.sent(completed(4, true))
		}
		r.abort(4, true)
		r.complete(4)
		r.sent(vote0)
		r.eagerRound(epoch, 2, 1, 3)
		r.ok(c)
	}
}

// A member that is through may not know whether the others will ever come: at the start of
// a chain, or with nothing to receive. Its caller can give up all the same. One that has
// received something of each, or whose collective is commenced, gets the verdict.
func TestThroughAndGivenUp(t *testing.T) {
	for _, x := range []struct {
		kind      plan.Kind
		count     uint64
		flags     wire.CallFlags
		commenced bool
		waits     bool
	}{
		{kind: plan.Broadcast, count: 8},
		{kind: plan.Reduce, count: 8},
		{kind: plan.AllGather},
		{kind: plan.AllGather, count: 8, flags: wire.CallCounts},
		{kind: plan.AllGather, count: 8, waits: true},
		{kind: plan.ReduceScatter, count: 8, waits: true},
		{kind: plan.Broadcast, count: 8, commenced: true, waits: true},
	} {
		r := collector(t, 7, 2, 1, 3)
		c := r.newCall()
		r.op++
		call := wire.Call{Kind: uint8(x.kind), Digest: 3, Flags: x.flags}
		r.step(CallCollective{Call: c, Op: r.op, Tag: 4, Count: x.count, DType: dtype.Float32, RedOp: dtype.Sum, Vote: call, Sends: 64})
		r.ok(c)
		r.step(DataEnded{Op: r.op})
		vote := ballot(x.kind, 4)
		vote.Count, vote.Call = x.count, call
		r.sent(vote, completed(4, false))
		w := r.await(r.op)
		if x.commenced {
			r.commence(4)
		}
		r.step(CallCancel{Call: w, Op: r.op})
		if x.waits {
			r.unanswered(w)
			continue
		}
		r.sent(completed(4, true))
		r.failed(w, errs.Canceled)
		require.True(t, r.finishes[r.op], "%v", x)
		r.commence(4)
		r.abort(4, true)
		r.complete(4)
		r.sent(vote0)
	}
}

// A kind that wants a mesh waits until it is settled, and begins eagerly only then;
// what was commenced before uses the ring.
func TestMeshIsTakenByPlace(t *testing.T) {
	r := collector(t, 7, 1, 2, 3, 4, 5)
	first, _ := r.collective(plan.AllToAll, 4)
	r.isEager(false)
	r.sent(ballot(plan.AllToAll, 4))
	r.in(wire.M2CPrepareMesh{Change: 9, Peers: endpoints(3, 4)})
	require.Equal(t, PrepareMesh{Change: 9, Peers: endpoints(3, 4)}, want[PrepareMesh](r))
	second, _ := r.collective(plan.AllToAll, 5)
	r.isEager(false)
	other, _ := r.collective(plan.Broadcast, 6)
	r.isEager(true)
	require.False(t, want[StartData](r).Mesh)
	r.commence(4) // a master that does not wait: the ring, at all members
	require.False(t, want[StartData](r).Mesh)
	r.step(MeshPrepared{Change: 8})
	r.silent()
	r.step(MeshPrepared{Change: 9})
	r.sent(wire.C2MMeshPrepared{Change: 9})
	r.in(wire.M2CMesh{Change: 9, Planner: wire.MeshDirect})
	require.True(t, r.m.View().Mesh)
	r.commence(5)
	require.True(t, want[StartData](r).Mesh)
	third, _ := r.collective(plan.AllToAll, 7)
	r.isEager(true)
	require.True(t, want[StartData](r).Mesh)
	r.collective(plan.Broadcast, 8)
	require.False(t, want[StartData](r).Mesh, "it does not want it")
	for _, op := range []OpID{first, second, other, third} {
		r.step(DataEnded{Op: op})
	}
	drain(t, r)
}

// What counts for an eager start is what a kind sends on the way that it takes.
func TestEagerByTheWay(t *testing.T) {
	for _, mesh := range []bool{true, false} {
		r := collector(t, 7, 1, 2, 3, 4, 5)
		launch := func(tag uint64, k plan.Kind, flags wire.CallFlags) OpID {
			r.op++
			r.step(CallCollective{
				Call: r.newCall(), Op: r.op, Tag: tag, Count: 8, DType: dtype.Float32, RedOp: dtype.Sum,
				Vote: wire.Call{Kind: uint8(k), Digest: 3, Flags: flags}, Sends: MaxEager + 1, Direct: 64,
			})
			return r.op
		}
		first := launch(4, plan.AllToAll, wire.CallMesh)
		r.isEager(false)
		r.in(wire.M2CPrepareMesh{Change: 9, Peers: endpoints(3, 4)})
		r.step(MeshPrepared{Change: 9})
		planner := uint8(wire.MeshNone)
		if mesh {
			planner = wire.MeshDirect
		}
		r.in(wire.M2CMesh{Change: 9, Planner: planner})
		r.commence(4)
		r.step(DataEnded{Op: first})
		launch(5, plan.AllToAll, wire.CallMesh)
		r.isEager(mesh)
		launch(6, plan.Broadcast, 0)
		r.isEager(false)
		if mesh {
			require.Equal(t, uint64(64+5*256), r.m.lent)
			r.commence(5)
		}
		require.Zero(t, r.m.lent)
	}
}

// Nothing of a mesh that was given up is left, and a round begins anew.
func TestMeshIsGivenUp(t *testing.T) {
	r := collector(t, 7, 1, 2, 3, 4, 5)
	r.in(wire.M2CPrepareMesh{Change: 9, Peers: endpoints(3, 4)})
	r.in(wire.M2CMesh{Change: 9})
	require.Equal(t, StopMesh{Change: 9}, want[StopMesh](r))
	require.Equal(t, Release{Keep: uids(2, 3, 4, 5)}, want[Release](r)) // those that the rig's M2C 2 lists
	r.collective(plan.Gather, 4)
	r.isEager(true)
	require.False(t, want[StartData](r).Mesh)
	r.step(MeshPrepared{Change: 9})
	r.silent()

	r = collector(t, 7, 1, 2, 3, 4, 5)
	r.in(wire.M2CPrepareMesh{Change: 9, Peers: endpoints(3, 4)})
	r.step(MeshPrepared{Change: 9, Failed: uids(4)})
	r.sent(wire.C2MMeshPrepared{Change: 9, FailedPeers: uids(4)})
	r.in(wire.M2CMesh{Change: 9})
	_, stops := has[StopMesh](r)
	require.False(t, stops, "the work is done")

	r = collector(t, 7, 1, 2, 3, 4, 5)
	r.in(wire.M2CPrepareMesh{Change: 9, Peers: endpoints(3, 4)})
	r.update()
	r.in(r.info([]int{1, 2, 3, 4, 5}))
	want[StopMesh](r)
	e := want[Establish](r)
	require.Equal(t, uids(1, 2, 3, 4, 5), e.Keep)
	r.step(Established{Round: e.Round})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(1, 2, 3, 4, 5)})
	r.in(wire.M2CPrepareMesh{Change: 10})
	r.sent(wire.C2MMeshPrepared{Change: 10})
	r.in(wire.M2CMesh{Change: 10, Planner: wire.MeshDirect})
	require.Equal(t, MeshSettled{Direct: true}, want[MeshSettled](r))
	require.True(t, r.m.View().Mesh)

	r.update()
	r.in(r.info([]int{1, 2, 3, 5}))
	require.Equal(t, uids(1, 2, 3, 5), want[Establish](r).Keep, "those that are left stay connected")
}

// Where there was no mesh, or it was given up, a round keeps nobody but neighbours.
func TestRoundsWithoutAMesh(t *testing.T) {
	r := collector(t, 7, 1, 2, 3, 4, 5)
	r.update()
	r.in(r.info([]int{1, 2, 3, 4, 5}))
	require.Empty(t, want[Establish](r).Keep)

	r = collector(t, 7, 1, 2, 3, 4, 5)
	r.in(wire.M2CPrepareMesh{Change: 9, Peers: endpoints(3, 4)})
	r.in(wire.M2CMesh{Change: 9})
	require.Equal(t, MeshSettled{}, want[MeshSettled](r))
	r.update()
	r.in(r.info([]int{1, 2, 3, 4, 5}))
	require.Empty(t, want[Establish](r).Keep)
}

// What a master may not say of a mesh ends the session.
func TestWrongMesh(t *testing.T) {
	prepared := wire.M2CPrepareMesh{Change: 9, Peers: endpoints(3, 4)}
	for name, ps := range map[string][]wire.Packet{
		"twice":               {prepared, prepared},
		"this peer":           {wire.M2CPrepareMesh{Change: 9, Peers: endpoints(1)}},
		"a stranger":          {wire.M2CPrepareMesh{Change: 9, Peers: endpoints(6)}},
		"a peer twice":        {wire.M2CPrepareMesh{Change: 9, Peers: endpoints(3, 3)}},
		"no address":          {wire.M2CPrepareMesh{Change: 9, Peers: []wire.PeerEndpoint{{UUID: uid(3)}}}},
		"too many":            {wire.M2CPrepareMesh{Change: 9, Peers: endpoints(2, 3, 4, 5, 3)}},
		"unasked":             {wire.M2CMesh{Change: 9, Planner: wire.MeshDirect}},
		"before it stands":    {prepared, wire.M2CMesh{Change: 9, Planner: wire.MeshDirect}},
		"another one":         {prepared, wire.M2CMesh{Change: 8}},
		"an unknown planner":  {prepared, wire.M2CMesh{Change: 9, Planner: 2}},
		"after it was given":  {prepared, wire.M2CMesh{Change: 9}, wire.M2CMesh{Change: 9}},
		"again in this epoch": {prepared, wire.M2CMesh{Change: 9}, prepared},
	} {
		t.Run(name, func(t *testing.T) {
			r := collector(t, 0, 1, 2, 3, 4, 5)
			for _, p := range ps {
				_, gone := has[Disconnect](r)
				require.False(t, gone)
				r.in(p)
			}
			want[Disconnect](r)
			require.ErrorIs(t, r.m.ended, errs.Protocol)
		})
	}
}

// A switch of the ring leaves the connections of the mesh alone.
func TestMeshOutlivesASwitch(t *testing.T) {
	r := collector(t, 0, 1, 2, 3, 4, 5)
	r.in(wire.M2CPrepareMesh{Change: 9, Peers: endpoints(3, 4)})
	r.step(MeshPrepared{Change: 9})
	r.in(wire.M2CMesh{Change: 9, Planner: wire.MeshDirect})
	r.in(wire.M2CPrepareRing{Change: 10, Peers: endpoints(3, 4)})
	if e, ok := has[PrepareRing](r); ok {
		r.step(RingPrepared{Change: e.Change})
	}
	r.in(wire.M2CSwitchRing{Change: 10, Ring: uids(3, 1, 4, 2, 5)})
	want[SwitchRing](r)
	require.Subset(t, want[Release](r).Keep, uids(2, 3, 4, 5))
}

// A peer that cannot complete a collective says why with the end of its part: the others have lost nothing. If it was
// sent something else than it expects they must not retry.
func TestCausesAreReported(t *testing.T) {
	for code, why := range map[errs.Code]string{errs.Mismatch: "too few bytes", errs.RankConnectionLost: "connection timed out"} {
		r := collector(t, 0, 1, 2, 3)
		op, c := r.collective(plan.AllToAll, 4)
		r.ok(c)
		r.commence(4)
		r.step(DataEnded{Op: op, Err: errs.New(code, "all-to-all", errors.New(why)).WithPeer("x")})
		r.sent(wire.C2MCollectiveCommsComplete{Tag: 4, WasAborted: true, Reason: "with x: " + why, ReasonCode: uint16(code)})
	}
}

// A call for a mesh is answered when the master has said what becomes of it, by a round,
// by the end of the session, or when its caller gives up. The master is asked once.
func TestCallsForAMesh(t *testing.T) {
	call := func(r *rig) CallID {
		c := r.newCall()
		r.step(CallMesh{Call: c})
		return c
	}
	r := collector(t, 7, 1, 2, 3, 4, 5)
	a := call(r)
	r.sent(wire.C2MWantMesh{})
	b := call(r)
	r.silent()
	gone := call(r)
	r.step(CallCancel{Call: gone})
	r.failed(gone, errs.Canceled)
	r.in(wire.M2CPrepareMesh{Change: 9})
	late := call(r)
	r.in(wire.M2CMesh{Change: 9, Planner: wire.MeshDirect})
	for _, c := range []CallID{a, b, late} {
		r.ok(c)
	}
	r.ok(call(r))

	r.update()
	r.failed(call(r), errs.Busy)
	r.in(r.info([]int{1, 2, 3, 4, 5}))
	e := want[Establish](r)
	r.step(Established{Round: e.Round})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(1, 2, 3, 4, 5)})
	a = call(r)
	r.sent(wire.C2MWantMesh{})
	r.in(wire.M2CMesh{Change: 11})
	r.ok(a)

	r = collector(t, 7, 1, 2, 3)
	a = call(r)
	r.update()
	r.in(r.info([]int{1, 2, 3}))
	r.failed(a, errs.RankConnectionLost)

	r = collector(t, 7, 1, 2, 3)
	a = call(r)
	r.step(MasterGone{Err: fmt.Errorf("gone")})
	r.failed(a, errs.RankConnectionLost)

	r = connected(t, true, 1, 2)
	r.failed(call(r), errs.Unsupported)
}
