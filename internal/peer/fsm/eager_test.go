package fsm

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// eager returns a rig with a live session over the ring, in epoch 7.
func eager(t *testing.T, ring ...int) *rig {
	t.Helper()
	r := newRig(t, Config{EagerBytes: 1024})
	c := r.register(true, wire.Ext{Switch: true})
	r.eagerRound(7, ring...)
	r.ok(c)
	return r
}

// eagerRound plays a successful round with an epoch.
func (r *rig) eagerRound(epoch uint64, ring ...int) {
	r.t.Helper()
	p := r.info(ring)
	p.Ext.Epoch = epoch
	r.in(p)
	r.step(Established{Round: want[Establish](r).Round})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(ring...)})
}

func initiated(tag uint64) wire.C2MCollectiveCommsInitiate {
	return wire.C2MCollectiveCommsInitiate{Tag: tag, Count: 8, DType: dtype.Float32, Op: dtype.Sum}
}

func (r *rig) isEager(want bool) {
	r.t.Helper()
	s, ok := has[StartData](r)
	require.Equal(r.t, want, ok && s.Eager)
}

// A lone operation begins at its launch; its vote travels with its end.
func TestEagerVotesOnce(t *testing.T) {
	r := eager(t, 2, 1, 3)
	op := r.launch(4)
	require.Equal(t, StartData{Op: op, Tag: 4, Epoch: 7, Eager: true, Ring: uids(2, 1, 3), Self: uid(1), Native: true}, want[StartData](r))
	r.silent()
	w := r.await(op)
	r.step(DataEnded{Op: op})
	r.sent(initiated(4), wire.C2MCollectiveCommsComplete{Tag: 4})
	r.in(wire.M2CCollectiveCommsCommence{Tag: 4, SeqNr: 30})
	require.Equal(t, CommenceData{Op: op, Seq: 30}, want[CommenceData](r))
	r.abort(4, false)
	r.unanswered(w)
	r.complete(4)
	r.ok(w)
	r.silent()
	require.Equal(t, map[OpID]bool{op: false}, r.finishes)
	_, spoiled := has[SpoilData](r)
	require.False(t, spoiled)
	r.launch(4) // the tag is free
	r.isEager(true)
}

// The vote is held back for a moment only.
func TestEagerVoteGoesInTime(t *testing.T) {
	for _, late := range []bool{true, false} {
		r := eager(t, 1, 2)
		op := r.launch(4)
		due, ok := r.m.Deadline()
		require.True(t, ok)
		require.Equal(t, r.now+eagerHold, due)
		r.now = due - time.Nanosecond
		r.step(Tick{})
		r.silent()
		r.now = due
		r.step(Tick{})
		r.sent(initiated(4))
		r.now += time.Hour
		r.step(Tick{})
		r.silent()
		if late {
			r.commence(4)
			r.silent()
			r.step(DataEnded{Op: op})
			r.sent(wire.C2MCollectiveCommsComplete{Tag: 4})
		} else {
			r.step(DataEnded{Op: op})
			r.sent(wire.C2MCollectiveCommsComplete{Tag: 4})
			r.commence(4)
			r.silent()
		}
		r.abort(4, false)
		r.complete(4)
		r.ok(r.await(op))
	}
}

// With several operations under way no peer knows which one others wait for.
func TestEagerVotesAreLetGo(t *testing.T) {
	r := eager(t, 1, 2)
	a := r.launch(1)
	r.silent()
	b := r.launch(2)
	r.isEager(true)
	r.sent(initiated(1), initiated(2))
	r.step(DataEnded{Op: b})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 2})
	r.commence(1)
	r.step(DataEnded{Op: a})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 1})
	// One that cannot begin at once lets others go, too.
	r = eager(t, 1, 2)
	r.launch(1)
	c := r.newCall()
	r.step(CallCollective{Call: c, Op: 77, Tag: 2, Count: 1000, DType: dtype.Float32, RedOp: dtype.Sum})
	r.isEager(false)
	r.sent(initiated(1), wire.C2MCollectiveCommsInitiate{Tag: 2, Count: 1000, DType: dtype.Float32, Op: dtype.Sum})
	r.in(wire.M2CCollectiveCommsCommence{Tag: 2, SeqNr: 9})
	require.Equal(t, StartData{Op: 77, Tag: 2, Seq: 9, Epoch: 7, Ring: uids(1, 2), Self: uid(1), Native: true}, want[StartData](r))
}

func TestWhatIsNotEager(t *testing.T) {
	reduce := func(r *rig, tag, count uint64, eager bool) {
		t.Helper()
		c := r.newCall()
		r.op++
		r.step(CallCollective{Call: c, Op: r.op, Tag: tag, Count: count, DType: dtype.Float32, RedOp: dtype.Sum})
		r.ok(c)
		r.isEager(eager)
	}
	r := eager(t, 1, 2, 3)
	reduce(r, 1, 256, true)
	reduce(r, 2, 257, false)   // too large
	reduce(r, 3, 1<<62, false) // so that bytes overflow
	reduce(r, 4, 0, true)

	r = connected(t, true, 1, 2, 3) // not wanted, or not all can
	reduce(r, 1, 1, false)
	r = eager(t, 1, 2, 3)
	r.update()
	r.round(1, 2, 3) // without an epoch
	reduce(r, 1, 1, false)

	r = eager(t, 1, 2, 3) // somebody of the ring is gone
	r.in(wire.M2CPeerDropped{UUID: uid(3), Addr: addr(3)})
	reduce(r, 1, 1, false)

	// The bytes that are lent are bounded, and come back with the commence.
	r = newRig(t, Config{EagerBytes: 2 * MaxEager})
	r.register(true, wire.Ext{})
	r.eagerRound(1, 1, 2)
	reduce(r, 1, MaxEager/4+1, false)
	reduce(r, 2, MaxEager/4, true)
	reduce(r, 3, MaxEager/4, false)
	r.commence(2)
	reduce(r, 4, MaxEager/4, true)
}

// A failed operation spoils its tag, and nothing begins at once before the ring
// was repaired: leftovers could be taken for something else.
func TestEagerAfterAFailure(t *testing.T) {
	r := eager(t, 1, 2, 3)
	other := r.launch(9)
	op := r.launch(4)
	r.step(DataEnded{Op: op, Err: errors.New("reset")})
	r.sent(wire.C2MCollectiveCommsComplete{Tag: 4, WasAborted: true})
	r.commence(4)
	r.abort(4, true)
	r.complete(4)
	require.Equal(t, SpoilData{Tag: 4, Epoch: 7}, want[SpoilData](r))
	require.True(t, r.finishes[op])
	r.failed(r.await(op), errs.RankConnectionLost)
	late := r.launch(4)
	r.isEager(false)
	r.sent(initiated(4))
	r.succeed(late, 4)
	r.ok(r.await(late))
	r.succeed(other, 9)
	w := r.await(other)
	r.sent(vote0)
	r.eagerRound(8, 1, 2)
	r.ok(w)
	r.launch(4)
	require.Equal(t, uint64(8), want[StartData](r).Epoch)
	r.isEager(true)
}

// Canceled at any moment: the votes are cast, the buffers come back first.
func TestEagerIsCanceled(t *testing.T) {
	r := eager(t, 1, 2, 3)
	op := r.launch(4)
	r.step(CallCancel{Op: op})
	want[AbortData](r)
	r.silent()
	r.step(DataEnded{Op: op, Err: errors.New("canceled")})
	r.sent(initiated(4), wire.C2MCollectiveCommsComplete{Tag: 4, WasAborted: true})
	require.True(t, r.finishes[op])
	r.commence(4)
	r.abort(4, true)
	r.complete(4)
	require.Equal(t, SpoilData{Tag: 4, Epoch: 7}, want[SpoilData](r))
	r.sent(vote0)

	r = eager(t, 1, 2, 3) // when it is over here, and the others still run
	op = r.launch(4)
	r.step(DataEnded{Op: op})
	r.step(CallCancel{Op: op})
	require.NotContains(t, r.finishes, op, "the others may have the result")
	r.commence(4)
	r.abort(4, false)
	r.complete(4)
	require.False(t, r.finishes[op])
	r.ok(r.await(op))
	_, spoiled := has[SpoilData](r)
	require.False(t, spoiled, "everybody has everything")
}

// The end of the session, and packets out of order.
func TestEagerEnds(t *testing.T) {
	r := eager(t, 1, 2)
	op := r.launch(4)
	w := r.await(op)
	r.step(MasterGone{Err: errors.New("reset")})
	want[AbortData](r)
	r.unanswered(w)
	r.step(DataEnded{Op: op, Err: errors.New("aborted")})
	r.failed(w, errs.RankConnectionLost)
	r.silent()

	for _, p := range []wire.Packet{
		wire.M2CCollectiveCommsCommence{Tag: 4}, // of an unknown operation
		wire.M2CCollectiveCommsAbort{Tag: 4},
		wire.M2CCollectiveCommsComplete{Tag: 4},
	} {
		r := eager(t, 1, 2)
		r.launch(4)
		r.in(p)
		want[Disconnect](r)
		require.ErrorIs(t, r.m.ended, errs.Protocol)
	}
	for _, p := range []wire.Packet{wire.M2CCollectiveCommsAbort{Tag: 4}, wire.M2CCollectiveCommsComplete{Tag: 4}} {
		r := eager(t, 1, 2)
		op := r.launch(4)
		r.step(DataEnded{Op: op})
		r.in(p)
		want[Disconnect](r)
	}
}

// A member of the ring that has left fails what it had a part in, unless all
// that are left have everything.
func TestEagerAndTheDead(t *testing.T) {
	for _, over := range []bool{true, false} {
		r := eager(t, 1, 2, 3)
		op := r.launch(4)
		if over {
			r.step(DataEnded{Op: op})
		}
		r.in(wire.M2CPeerDropped{UUID: uid(3), Addr: addr(3)})
		r.now += eagerHold
		r.step(Tick{})
		r.commence(4)
		_, aborted := has[AbortData](r)
		require.Equal(t, !over, aborted)
		if over {
			r.abort(4, false)
			r.complete(4)
			r.ok(r.await(op))
		}
	}
}

// Which ring an operation runs in is what the order of commences and switches
// says: no ring changes while an operation runs without a commence.
func TestEagerAndSwitches(t *testing.T) {
	r := eager(t, 1, 2, 3, 4, 5)
	op := r.launch(4)
	r.silent()
	r.in(wire.M2CPrepareRing{Change: 1, Peers: endpoints(3, 5)})
	r.sent(initiated(4))
	r.step(RingPrepared{Change: 1})
	r.silent()
	next := r.launch(5)
	r.isEager(false)
	r.commence(4)
	r.sent(wire.C2MRingPrepared{Change: 1})
	r.in(wire.M2CSwitchRing{Change: 1, Ring: uids(1, 3, 2, 4, 5)})
	r.commence(5)
	require.Equal(t, uids(1, 3, 2, 4, 5), want[StartData](r).Ring)
	r.step(DataEnded{Op: op})
	r.step(DataEnded{Op: next})
	r.launch(6)
	r.isEager(true)
	require.Equal(t, uids(1, 3, 2, 4, 5), want[StartData](r).Ring)

	// A switch that does not wait for the answer is against the rules.
	r = eager(t, 1, 2, 3, 4, 5)
	r.launch(4)
	r.in(wire.M2CPrepareRing{Change: 1, Peers: endpoints(2, 5)})
	r.in(wire.M2CSwitchRing{Change: 1, Ring: uids(1, 2, 4, 3, 5)})
	want[Disconnect](r)
	require.ErrorIs(t, r.m.ended, errs.Protocol)

	// Given up meanwhile: no answer.
	r = eager(t, 1, 2, 3, 4, 5)
	r.launch(4)
	r.in(wire.M2CPrepareRing{Change: 1, Peers: endpoints(2, 5)})
	r.in(wire.M2CSwitchRing{Change: 1})
	r.commence(4)
	r.silent()
}

// The engine learns of an epoch when its round opens, when it ends, and with every
// failure; the next operation with the tag of one that failed listens to no
// neighbour that begins early, though those with other tags do.
func TestEpochIsToldBeforeAnythingStarts(t *testing.T) {
	r := newRig(t, Config{EagerBytes: 64})
	c := r.register(true, wire.Ext{})
	p := r.info([]int{1, 2})
	p.Ext.Epoch = 7
	r.in(p)
	require.EqualValues(t, 7, want[Establish](r).Epoch)
	r.step(Established{Round: want[Establish](r).Round})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(1, 2)})
	require.Equal(t, RoundOver{Epoch: 7}, want[RoundOver](r))
	r.ok(c)
	launch := func(op OpID, tag uint64) {
		r.step(CallCollective{Call: r.newCall(), Op: op, Tag: tag, Count: 100, DType: dtype.Float32, RedOp: dtype.Sum})
		r.isEager(false)
	}
	launch(50, 1) // keeps the round away
	launch(51, 4)
	r.step(CallCancel{Call: r.newCall(), Op: 51})
	r.commence(4)
	require.Equal(t, SkipData{Seq: want[SkipData](r).Seq}, want[SkipData](r))
	r.abort(4, true)
	r.complete(4)
	require.Equal(t, SpoilData{Tag: 4, Epoch: 7}, want[SpoilData](r))
	launch(52, 4)
	r.commence(4)
	require.Zero(t, want[StartData](r).Epoch)
	launch(53, 5)
	r.commence(5)
	require.EqualValues(t, 7, want[StartData](r).Epoch)
}

// Where the master is far away, large operations begin at their launch, too. What they
// may send before their commence is bounded, and leaves room for others; their votes are
// not held back.
func TestLargeOnesBeginFarFromTheMaster(t *testing.T) {
	r := eager(t, 1, 2, 3)
	reduce := func(tag, count uint64, far bool) StartData {
		t.Helper()
		r.op++
		c := r.newCall()
		r.step(CallCollective{Call: c, Op: r.op, Tag: tag, Count: count, DType: dtype.Float32, RedOp: dtype.Sum, Far: far})
		r.ok(c)
		s, _ := has[StartData](r)
		return s
	}
	const large = 4 << 20 // elements
	vote := func(tag uint64) wire.C2MCollectiveCommsInitiate {
		v := initiated(tag)
		v.Count = large
		return v
	}
	require.False(t, reduce(1, large, false).Eager, "the master is near")
	r.sent(vote(1))
	first := reduce(2, large, true)
	require.True(t, first.Eager)
	require.EqualValues(t, eagerCredit/2, first.Ahead)
	r.sent(vote(2))
	second := reduce(3, large, true)
	require.EqualValues(t, eagerCredit/4, second.Ahead)
	small := reduce(4, 8, true)
	require.True(t, small.Eager)
	require.Zero(t, small.Ahead, "all of it fits")
	lent := func() uint64 { return r.m.lent }
	require.Less(t, lent(), uint64(eagerCredit))
	for tag := uint64(5); reduce(tag, large, true).Eager; tag++ {
		require.LessOrEqual(t, lent(), uint64(eagerCredit))
	}
	require.Greater(t, lent(), uint64(eagerCredit-4*leastAhead))
	// A ring to come waits for all of their commences.
	r.in(wire.M2CPrepareRing{Change: 1, Peers: endpoints(2, 3)})
	r.step(RingPrepared{Change: 1})
	require.False(t, reduce(60, large, true).Eager)
	for _, op := range slices.Clone(r.m.ops) {
		if op.eager {
			require.NotContains(t, r.lastSent, wire.Packet(wire.C2MRingPrepared{Change: 1}))
			r.commence(op.vote.Tag)
		}
	}
	require.Zero(t, lent())
	r.sent(wire.C2MRingPrepared{Change: 1})
}

// What is taken back for a member that leaves is no longer lent.
func TestLargeOnesAreTakenBack(t *testing.T) {
	r := leavers(t, 1, 2, 3, 4)
	r.op++
	r.step(CallCollective{Call: r.newCall(), Op: r.op, Tag: 2, Count: 4 << 20, DType: dtype.Float32, RedOp: dtype.Sum, Far: true})
	require.EqualValues(t, eagerCredit/2, want[StartData](r).Ahead)
	r.in(wire.M2CPrepareLeave{Change: 1, Epoch: 8, Leaver: uid(2), Peers: endpoints(3, 4)})
	want[AbortData](r)
	r.step(DataEnded{Op: r.op, Err: errors.New("taken back")})
	want[RenewData](r)
	require.Zero(t, r.m.lent)
}
