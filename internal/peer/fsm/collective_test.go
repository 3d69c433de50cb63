package fsm

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// Control spec, section 13.3: "C2M 10; wait M2C 9; data phase; C2M 11; wait
// M2C 11 unless already seen; wait M2C 10".
func TestReduceSequence(t *testing.T) {
	r := connected(t, true, 2, 1)
	c := r.newCall()
	r.step(CallCollective{Call: c, Op: 9, Tag: 4, Count: 10, DType: dtype.Float32, RedOp: dtype.Avg})
	r.ok(c)
	r.sent(wire.C2MCollectiveCommsInitiate{Tag: 4, Count: 10, DType: dtype.Float32, Op: dtype.Avg})
	w := r.await(9)
	r.in(wire.M2CCollectiveCommsCommence{Tag: 4, SeqNr: 12})
	require.Equal(t, StartData{Op: 9, Tag: 4, Seq: 12, Ring: uids(2, 1), Self: uid(1), Native: true}, want[StartData](r))
	r.silent()
	r.step(DataEnded{Op: 9})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 4})
	r.abort(4, false)
	r.unanswered(w)
	require.Empty(t, r.finishes)
	r.complete(4)
	r.ok(w)
	require.Equal(t, map[OpID]bool{9: false}, r.finishes)
	r.silent()
}

// Control spec, section 13.3: the verdict of M2C 11 counts even if the own
// data phase succeeded; quirk Q22: restored on every failure, late ones too.
func TestLateAbortFailsAndRestores(t *testing.T) {
	r := connected(t, true, 1, 2, 3)
	op := r.launch(1)
	w := r.await(op)
	r.commence(1)
	r.step(DataEnded{Op: op})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 1})
	r.abort(1, true)
	r.complete(1)
	require.Equal(t, map[OpID]bool{op: true}, r.finishes)
	r.sent(vote0)
	r.round(1, 2)
	r.failed(w, errs.RankConnectionLost)
}

// A peer that has canceled is told to begin nevertheless, and the others do: their
// frames are stale at once.
func TestCanceledOperationIsSkipped(t *testing.T) {
	r := connected(t, true, 1, 2, 3)
	op := r.launch(1)
	r.step(CallCancel{Op: op})
	r.commence(1)
	require.Positive(t, want[SkipData](r).Seq)
	require.False(t, r.open[op])
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 1, WasAborted: true})
}

// Control spec, section 13.3: "While the data phase waits for data it polls
// for M2C 11; any M2C 11 (whatever its flag) ends the operation as aborted."
func TestAnyVerdictDuringTheDataPhaseAborts(t *testing.T) {
	for _, flag := range []bool{true, false} {
		r := connected(t, true, 1, 2, 3)
		op := r.launch(1)
		w := r.await(op)
		r.commence(1)
		r.abort(1, flag)
		want[AbortData](r)
		r.silent()
		// It may have come through in the meantime; it stays aborted.
		r.step(DataEnded{Op: op})
		r.sent(wire.C2MCollectiveCommsComplete{Tag: 1, WasAborted: true})
		r.complete(1)
		r.sent(vote0)
		r.round(1, 2, 3)
		r.failed(w, errs.RankConnectionLost)
		require.True(t, r.finishes[op])
	}
}

// launchReset begins operation 1, awaits it, and has its connection to peer two reset.
func (r *rig) launchReset() (awaits CallID) {
	op := r.launch(1)
	awaits = r.await(op)
	r.commence(1)
	r.step(DataEnded{Op: op, Err: errs.New(errs.RankConnectionLost, "all-reduce", errors.New("reset")).WithPeer("peer two")})
	return awaits
}

// Control spec, section 13.3: "After an I/O error without M2C 11 the peer
// sends C2M 11 (was_aborted 1) and then waits for M2C 11 and M2C 10."
func TestOwnFailure(t *testing.T) {
	r := connected(t, true, 1, 2, 3)
	w := r.launchReset()
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 1, WasAborted: true})
	r.unanswered(w)
	r.in(wire.M2CCollectiveCommsAbort{Tag: 1, Aborted: true, Reason: "this peer could not complete the operation"})
	r.complete(1)
	r.round(1, 3)
	e := r.failed(w, errs.RankConnectionLost)
	require.Equal(t, "gopccl: all-reduce with peer two: rank connection lost: reset [check the world size and retry]", e.Error())
}

// Who has left, of which the master tells, is why an operation failed here.
func TestOwnFailureBecauseAPeerLeft(t *testing.T) {
	r := connected(t, true, 1, 2, 3)
	w := r.launchReset()
	r.in(wire.M2CPeerDropped{UUID: uid(3), Addr: addr(3)})
	r.in(wire.M2CCollectiveCommsAbort{Tag: 1, Aborted: true, Reason: "peer three has left"})
	r.complete(1)
	r.round(1, 2)
	e := r.failed(w, errs.RankConnectionLost)
	require.Equal(t, uid(3).String()+" (10.0.0.3:48150)", e.Peer)
	require.ErrorContains(t, e, "peer three has left")
}

// Arguments that fit no plan fail with that error, and not as a lost connection.
func TestArgumentsThatDoNotFit(t *testing.T) {
	r := connected(t, true, 1, 2, 3)
	op := r.launch(1)
	w := r.await(op)
	r.commence(1)
	r.step(DataEnded{Op: op, Err: errs.New(errs.InvalidArgument, "all-to-all", errors.New("there is no mesh"))})
	r.abort(1, true)
	r.complete(1)
	r.round(1, 3)
	require.ErrorContains(t, r.failed(w, errs.InvalidArgument), "there is no mesh")
}

// A master that calls an operation complete that failed here is not believed.
func TestOwnFailureCounts(t *testing.T) {
	r := connected(t, true, 1, 2)
	op := r.launch(1)
	w := r.await(op)
	r.commence(1)
	r.step(DataEnded{Op: op, Err: errors.New("reset")})
	r.abort(1, false)
	r.complete(1)
	require.True(t, r.finishes[op])
	r.round(1, 2)
	r.failed(w, errs.RankConnectionLost)
}

// The error names who was lost, as the master said.
func TestFailureNamesTheLostPeers(t *testing.T) {
	r := connected(t, true, 1, 2, 3, 4)
	op := r.launch(1)
	w := r.await(op)
	r.commence(1)
	r.in(wire.M2CPeerDropped{UUID: uid(3), Addr: addr(3)})
	r.in(wire.M2CPeerDropped{UUID: uid(9), Addr: addr(9), Group: 7}) // of another group
	r.abort(1, true)
	r.step(DataEnded{Op: op, Err: errs.New(errs.RankConnectionLost, "all-reduce", nil).WithPeer("somebody")})
	r.complete(1)
	r.round(1, 2, 4)
	require.Equal(t, uid(3).String()+" (10.0.0.3:48150)", r.failed(w, errs.RankConnectionLost).Peer)
}

// A peer that vanished before the launch is still in the ring. It can neither
// send nor close a connection: the data phase must not wait for it.
func TestRingWithAMemberThatLeft(t *testing.T) {
	r := connected(t, true, 1, 2, 3)
	r.in(wire.M2CPeerDropped{UUID: uid(3), Addr: addr(3)})
	op := r.launch(1)
	w := r.await(op)
	r.commence(1)
	want[StartData](r)
	require.Contains(t, want[AbortData](r).Reason, uid(3).String())
	r.step(DataEnded{Op: op, Err: errors.New("aborted")})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 1, WasAborted: true})
	r.abort(1, true)
	r.complete(1)
	r.round(1, 2)
	require.Equal(t, uid(3).String(), r.failed(w, errs.RankConnectionLost).Peer)

	// Only peers that left since the ring was agreed on count.
	r.update()
	r.round(1, 2, 3)
	op = r.launch(1)
	r.succeed(op, 1)
}

func TestMismatchIsNamed(t *testing.T) {
	r := connected(t, true, 1, 2)
	op := r.launch(1)
	w := r.await(op)
	r.commence(1)
	r.in(wire.M2CCollectiveCommsAbort{
		Tag: 1, Aborted: true,
		Reason: "counts 8 and 9", ReasonCode: uint16(errs.Mismatch),
	})
	require.Equal(t, "counts 8 and 9", want[AbortData](r).Reason)
	r.step(DataEnded{Op: op, Err: errors.New("aborted")})
	r.complete(1)
	r.round(1, 2)
	require.ErrorContains(t, r.failed(w, errs.Mismatch), "counts 8 and 9")
}

// Quirk Q15: an abort flag that survived in a PCCL master swallows M2C 11.
func TestReleaseWithoutVerdictIsAFailure(t *testing.T) {
	r := connected(t, false, 1, 2)
	op := r.launch(1)
	w := r.await(op)
	r.commence(1)
	r.step(DataEnded{Op: op})
	r.complete(1)
	r.round(1, 2)
	r.failed(w, errs.RankConnectionLost)
	require.True(t, r.finishes[op])
}

// Control spec, section 13.5: the reasons for which a launch is refused.
func TestLaunchRefusals(t *testing.T) {
	launch := func(r *rig, ev CallCollective) CallID {
		ev.Call = r.newCall()
		r.step(ev)
		r.silent()
		return ev.Call
	}
	good := CallCollective{Op: 99, Tag: 1, DType: dtype.Float32, RedOp: dtype.Sum}

	r := newRig(t, Config{})
	r.failed(launch(r, good), errs.InvalidUsage)
	r = connected(t, true, 1)
	r.failed(launch(r, good), errs.TooFewPeers)
	r = connected(t, true, 1, 2)
	bad := good
	bad.DType = 12
	r.failed(launch(r, bad), errs.InvalidArgument)
	bad = good
	bad.RedOp = dtype.Set
	r.failed(launch(r, bad), errs.InvalidArgument)
	r.launch(1)
	r.failed(launch(r, good), errs.InvalidArgument)
	r = connected(t, true, 1, 2)
	r.update()
	r.failed(launch(r, good), errs.Busy)
	require.Empty(t, r.finishes)

	// A tag is free again as soon as M2C 10 came (control spec, section 11).
	r = connected(t, true, 1, 2)
	op := r.launch(1)
	r.succeed(op, 1)
	r.launch(1)
}

func TestAwaitRefusals(t *testing.T) {
	r := connected(t, true, 1, 2)
	r.failed(r.await(7), errs.InvalidUsage)
	op := r.launch(1)
	w := r.await(op)
	r.failed(r.await(op), errs.InvalidUsage)
	r.succeed(op, 1)
	r.ok(w)
	r.failed(r.await(op), errs.InvalidUsage)
}

// Many in flight, awaited in any order.
func TestManyInFlight(t *testing.T) {
	r := connected(t, true, 1, 2)
	var ops []OpID
	for tag := uint64(0); tag < 40; tag++ {
		ops = append(ops, r.launch(tag))
	}
	for tag := uint64(0); tag < 40; tag += 2 {
		r.succeed(ops[tag], tag)
	}
	early := r.await(ops[1])
	for tag := uint64(39); tag < 40; tag -= 2 {
		r.succeed(ops[tag], tag)
	}
	r.ok(early)
	for i := len(ops) - 1; i >= 0; i-- {
		if i != 1 {
			r.ok(r.await(ops[i])) // S1-33
		}
	}
}

// Quirk Q19: with PCCL peers at most sixteen operations are initiated at once.
func TestLaunchQueueWithPCCL(t *testing.T) {
	r := connected(t, false, 1, 2)
	var ops []OpID
	initiated := 0
	for tag := uint64(0); tag < 20; tag++ {
		ops = append(ops, r.launch(tag))
		initiated += len(r.lastSent)
	}
	require.Equal(t, 16, initiated)
	r.commence(5)
	r.step(DataEnded{Op: ops[5]})
	r.abort(5, false)
	r.silent()
	r.complete(5)
	require.Equal(t, uint64(16), r.lastSent[0].(wire.C2MCollectiveCommsInitiate).Tag)
	require.Len(t, r.lastSent, 1)

	r = connected(t, true, 1, 2)
	for tag := uint64(0); tag < 20; tag++ {
		r.launch(tag)
		require.Len(t, r.lastSent, 1)
	}
}

// Control spec, section 13.3: "the peer runs C2M 2 (accept 0) only if no round
// was completed since the operation was launched. If other operations are
// still un-awaited the attempt is refused locally and the await still returns
// the failure; a later await does it."
func TestRoundAfterFailures(t *testing.T) {
	for _, native := range []bool{true, false} {
		r := connected(t, native, 1, 2, 3)
		a, b := r.launch(1), r.launch(2)
		wa := r.await(a)
		r.fail(a, 1)
		r.failed(wa, errs.RankConnectionLost) // b is not awaited
		r.silent()
		r.fail(b, 2)
		r.silent()
		wb := r.await(b)
		r.sent(vote0)
		r.unanswered(wb)
		r.round(1, 2)
		r.failed(wb, errs.RankConnectionLost)
		require.Equal(t, uids(1, 2), r.m.View().Ring)

		c := r.launch(1)
		r.succeed(c, 1)
		r.ok(r.await(c)) // no round is due any more
		r.silent()
	}
}

// Quirk Q18: in a native group the round is run whatever was awaited last; in
// a group with PCCL peers we do what they do.
func TestRoundWhenTheLastAwaitedSucceeded(t *testing.T) {
	for _, native := range []bool{true, false} {
		r := connected(t, native, 1, 2, 3)
		a, b := r.launch(1), r.launch(2)
		r.fail(a, 1)
		r.succeed(b, 2)
		r.failed(r.await(a), errs.RankConnectionLost)
		wb := r.await(b)
		if !native {
			r.silent()
			r.ok(wb)
			continue
		}
		r.sent(vote0)
		r.round(1, 2)
		r.ok(wb)
	}
}

func TestFailedRoundOfAnAwaitIsRepeated(t *testing.T) {
	r := connected(t, true, 1, 2, 3)
	op := r.launch(1)
	w := r.await(op)
	r.fail(op, 1)
	r.in(r.info([]int{1, 2}))
	r.step(Established{Round: want[Establish](r).Round})
	r.in(wire.M2CP2PConnectionsEstablished{})
	r.sent(vote0)
	r.round(1, 2)
	r.failed(w, errs.RankConnectionLost)
}

func TestRoundOfAnAwaitFailsForGood(t *testing.T) {
	r := connected(t, true, 1, 2, 3)
	op := r.launch(1)
	w := r.await(op)
	r.fail(op, 1)
	r.step(MasterGone{})
	require.ErrorContains(t, r.failed(w, errs.RankConnectionLost, errs.MasterLost), "vote")
}

// One kind of operation at a time; overlap is refused, nothing is sent.
func TestPhaseCallsExcludeOperations(t *testing.T) {
	r := connected(t, true, 1, 2)
	op := r.launch(1)
	check := func() {
		for _, c := range []CallID{r.update(), r.optimize(), r.sync("w")} {
			r.failed(c, errs.PendingAsyncOps) // S1-34
			r.silent()
		}
	}
	check()
	r.succeed(op, 1)
	check() // settled, but not awaited
	r.ok(r.await(op))
	r.update()
	r.sent(vote1)
}

// An await that runs the round excludes launches; the pending query
// overlaps with everything.
func TestPendingOverlaps(t *testing.T) {
	r := connected(t, true, 1, 2, 3)
	op := r.launch(1)
	w := r.await(op)
	a, b := r.newCall(), r.newCall()
	r.step(CallPending{Call: a})
	r.sent(wire.C2MCheckPeersPending{})
	r.step(CallPending{Call: b})
	r.silent()
	r.fail(op, 1)
	c := r.newCall()
	r.step(CallCollective{Call: c, Op: 50, Tag: 9, DType: dtype.Float32, RedOp: dtype.Sum})
	r.failed(c, errs.Busy)
	r.in(wire.M2CPeersPendingResponse{PeersPending: true})
	require.True(t, r.ok(a).Pending) // S1-36
	require.True(t, r.ok(b).Pending)
	r.round(1, 2)
	r.failed(w, errs.RankConnectionLost)
}

// A gopccl master is told how the data will travel; PCCL's is not.
func TestWireFormIsTold(t *testing.T) {
	form := wire.FormOf("minmax", dtype.Uint8)
	for _, native := range []bool{true, false} {
		r := newRig(t, Config{})
		c := r.register(native, wire.Ext{})
		r.round(1, 2)
		r.ok(c)
		r.step(CallCollective{Call: r.newCall(), Op: 50, Tag: 4, Count: 100, DType: dtype.Float32, RedOp: dtype.Sum, Form: form})
		want := wire.C2MCollectiveCommsInitiate{Tag: 4, Count: 100, DType: dtype.Float32, Op: dtype.Sum}
		if native {
			want.Form = form
		}
		r.sent(want)
	}
}
