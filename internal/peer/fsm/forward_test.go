package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// forwarding is a member of a ring whose master passes results on.
func forwarding(t *testing.T) *rig {
	return connectedAs(t, Config{}, wire.Ext{Collectives: 1, Early: wire.Early{Forward: wire.ForwardVersion}}, true, 1, 2, 3)
}

// launchForward launches an operation that is to be finished forward; its result has 32 bytes.
func (r *rig) launchForward(tag uint64) OpID {
	r.t.Helper()
	c := r.newCall()
	r.op++
	r.step(CallCollective{Call: c, Op: r.op, Tag: tag, Count: 8, DType: dtype.Float32, RedOp: dtype.Sum, Forward: true})
	r.ok(c)
	return r.op
}

// land has an operation complete that may be finished forward.
func (r *rig) land(op OpID, tag uint64) {
	r.t.Helper()
	r.in(wire.M2CCollectiveCommsCommence{Tag: tag, SeqNr: 7, Forward: true})
	r.step(DataEnded{Op: op})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: tag, Holds: true})
}

// The call returns behind C2M 11. The copy is kept until M2C 10, and the tag is not free.
func TestReturnsBeforeTheVerdict(t *testing.T) {
	r := forwarding(t)
	op := r.launchForward(4)
	w := r.await(op)
	r.land(op, 4)
	require.Equal(t, Finish{Op: op, Keep: true}, want[Finish](r))
	r.ok(w)
	next, update := r.newCall(), r.newCall()
	r.step(CallCollective{Call: next, Op: 99, Tag: 4, Count: 8, DType: dtype.Float32, RedOp: dtype.Sum})
	r.unanswered(next)
	r.step(CallUpdate{Call: update})
	r.unanswered(update)
	r.abort(4, false)
	r.in(wire.M2CCollectiveCommsComplete{Tag: 4})
	require.Equal(t, DropResult{Op: op}, want[DropResult](r))
	r.ok(next)
	r.failed(update, errs.PendingAsyncOps) // that one is not awaited
}

// It waits for the verdict where the master did not grant it, or had aborted it before.
func TestWaitsForTheVerdict(t *testing.T) {
	r := forwarding(t)
	op := r.launchForward(4)
	w := r.await(op)
	r.in(wire.M2CCollectiveCommsCommence{Tag: 4, SeqNr: 7})
	r.step(DataEnded{Op: op})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 4, Holds: true})
	r.unanswered(w)
	r.abort(4, false)
	r.complete(4)
	r.ok(w)

	op = r.launchForward(5)
	w = r.await(op)
	r.in(wire.M2CCollectiveCommsCommence{Tag: 5, SeqNr: 8, Forward: true})
	r.abort(5, true)
	r.step(DataEnded{Op: op})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 5, WasAborted: true})
	r.unanswered(w)
}

// More than 16 MiB of results are not kept: the operation beyond that waits.
func TestKeptResultsAreBounded(t *testing.T) {
	r := forwarding(t)
	var calls []CallID
	for tag := range uint64(5) {
		c := r.newCall()
		r.op++
		r.step(CallCollective{Call: c, Op: r.op, Tag: tag, Count: wire.MaxForward / 4, DType: dtype.Float32, RedOp: dtype.Sum, Forward: true})
		r.ok(c)
		calls = append(calls, r.await(r.op))
		r.in(wire.M2CCollectiveCommsCommence{Tag: tag, SeqNr: 7, Forward: true})
		r.step(DataEnded{Op: r.op})
		r.sent(wire.C2MCollectiveCommsComplete{Tag: tag, Holds: tag < 4})
	}
	for _, c := range calls[:4] {
		r.ok(c)
	}
	r.unanswered(calls[4])
}

// The result of others takes the place of a failure, if all have it; the buffers change with the verdict
// alone.
func TestResultOfOthers(t *testing.T) {
	for _, held := range []bool{true, false} {
		r := forwarding(t)
		op := r.launchForward(4)
		w := r.await(op)
		r.in(wire.M2CCollectiveCommsCommence{Tag: 4, SeqNr: 7, Forward: true})
		r.abort(4, true)
		r.step(DataEnded{Op: op})
		data := []byte("12345678123456781234567812345678")
		r.in(wire.M2CResult{Tag: 4, Seq: 7, Data: data})
		r.sent(wire.C2MCollectiveCommsComplete{Tag: 4, Holds: true})
		require.Empty(t, r.finishes)
		r.in(wire.M2CAskResult{Tag: 4, Seq: 7}) // the one that it came from has died
		r.sent(wire.C2MResult{Tag: 4, Seq: 7, Data: data})
		r.in(wire.M2CCollectiveCommsComplete{Tag: 4, Held: held})
		if held {
			require.Equal(t, Finish{Op: op, Restore: true, Result: data}, want[Finish](r))
			r.ok(w)
			r.silent() // no round
		} else {
			require.Equal(t, map[OpID]bool{op: true}, r.finishes)
			r.sent(vote0)
			r.unanswered(w)
		}
	}
}

// A result of another size, of another operation, or for one that has completed, ends the session.
func TestResultsThatFitNothing(t *testing.T) {
	for _, p := range []wire.Packet{
		wire.M2CResult{Tag: 4, Seq: 7, Data: make([]byte, 31)},
		wire.M2CResult{Tag: 4, Seq: 8, Data: make([]byte, 32)},
		wire.M2CResult{Tag: 5, Seq: 7, Data: make([]byte, 32)},
		wire.M2CAskResult{Tag: 4, Seq: 7},
		wire.M2CGivenUp{Tag: 4},
	} {
		r := forwarding(t)
		op := r.launchForward(4)
		r.in(wire.M2CCollectiveCommsCommence{Tag: 4, SeqNr: 7, Forward: true})
		r.abort(4, true)
		r.step(DataEnded{Op: op})
		r.in(p)
		require.Contains(t, want[Disconnect](r).Reason, "protocol violation", "%T", p)
	}
}

// Who has returned what the others repeat is no member any more.
func TestReturnedAlone(t *testing.T) {
	r := forwarding(t)
	op := r.launchForward(4)
	w := r.await(op)
	r.land(op, 4)
	r.ok(w)
	r.abort(4, true)
	r.in(wire.M2CCollectiveCommsComplete{Tag: 4})
	require.Contains(t, want[Disconnect](r).Reason, "join them again")
}

// A caller who gives up an operation that others may have returned hears of the verdict; before the commence,
// as soon as the master says that nobody will return it.
func TestGivingUpForward(t *testing.T) {
	r := forwarding(t)
	op := r.launchForward(4)
	w := r.await(op)
	r.in(wire.M2CCollectiveCommsCommence{Tag: 4, SeqNr: 7, Forward: true})
	r.step(CallCancel{Call: w, Op: op})
	want[AbortData](r)
	r.step(DataEnded{Op: op, Err: errs.New(errs.Canceled, "all-reduce", nil)})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 4, WasAborted: true})
	r.unanswered(w)
	r.abort(4, true)
	r.in(wire.M2CResult{Tag: 4, Seq: 7, Data: make([]byte, 32)})
	r.in(wire.M2CCollectiveCommsComplete{Tag: 4, Held: true})
	r.ok(w)
}

// Close waits for those who may still need what has returned, and not for ever.
func TestCloseWaitsForVerdicts(t *testing.T) {
	for _, verdict := range []bool{true, false} {
		r := forwarding(t)
		op := r.launchForward(4)
		w := r.await(op)
		r.land(op, 4)
		r.ok(w)
		c := r.newCall()
		r.step(CallClose{Call: c})
		r.unanswered(c)
		if verdict {
			r.abort(4, false)
			r.in(wire.M2CCollectiveCommsComplete{Tag: 4})
		} else {
			at, due := r.m.Deadline()
			require.True(t, due)
			r.now = at
			r.step(Tick{})
			require.GreaterOrEqual(t, at, closeGrace)
		}
		r.ok(c)
	}
}
