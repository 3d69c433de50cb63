package collective

import (
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// startMixed is startLimited without bounds.
func (w *world) startMixed(specs []Spec, epoch uint64, mask int, order []int) (s *started, commence func()) {
	return w.startLimited(specs, epoch, mask, 0, order)
}

// startLimited begins one operation on every member at its own time, eagerly where mask
// says so, and commences it when all are launched, in the other order. ahead is what each
// may send before that, 0: all.
func (w *world) startLimited(specs []Spec, epoch uint64, mask int, ahead int64, order []int) (s *started, commence func()) {
	w.seq++
	seq := w.seq
	s = &started{ops: make([]*Operation, len(specs)), errs: make([]chan error, len(specs))}
	begin := func(i int) Start {
		b := w.begin(i, seq, func(err error) { s.errs[i] <- err })
		b.Epoch = epoch
		return b
	}
	for _, i := range order {
		op, err := w.eng[i].New(specs[i])
		require.NoError(w.t, err)
		s.ops[i], s.errs[i] = op, make(chan error, 2)
		if mask>>i&1 != 0 {
			b := begin(i)
			b.Eager, b.Seq, b.Ahead = true, 0, ahead
			op.Start(b)
		}
	}
	return s, func() {
		for _, i := range slices.Backward(order) {
			op := s.ops[i]
			if mask>>i&1 != 0 {
				op.Commence(seq)
			} else {
				op.Start(begin(i))
			}
		}
	}
}

// Some members begin early and some late, in any order, again and again with the same
// tags and of any kind: the results are those of the oracle.
func TestEagerMeetsLate(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		for _, pool := range []int{1, 3, -3} { // below 0: of older members
			for _, over := range []func(testing.TB) (a, b net.Conn){memoryLink(transporttest.Options{}), loopback} {
				for _, mesh := range []bool{false, true} {
					w := newWorld(t, shape{n: n, pool: max(pool, -pool), older: pool < 0, mesh: mesh, frame: 256, cfg: Config{minStripe: 256}, link: over})
					rng := rand.New(rand.NewPCG(uint64(n), uint64(pool)))
					for i := range 24 {
						k := draw(rng, w, allKinds[rng.IntN(len(allKinds))], []int{0, 1, n, 700}[rng.IntN(4)])
						k.fill(w, rng)
						for m := range k.specs {
							k.specs[m].Tag = uint64(i % 2)
						}
						mask := rng.IntN(1 << n)
						ahead := []int64{0, 1, 2000, 1 << 20}[rng.IntN(4)]
						s, commence := w.startLimited(k.specs, 1+uint64(i/8), mask, ahead, rng.Perm(n))
						commence()
						s.ok(t)
						k.right(t, "operation %d, eager %b", i, mask)
						s.finish(false)
					}
					w.close()
				}
			}
		}
	}
}

// kept returns the bytes that an engine keeps for operations to come.
func (e *Engine) kept() int { return e.hub.Early().Bytes }

// What came early does not keep what comes behind it, and waits as long as it must.
func TestEarlyFramesLetOthersPass(t *testing.T) {
	w := newWorld(t, shape{n: 2, link: loopback})
	rng := rand.New(rand.NewPCG(1, 2))
	fixed := func(tag uint64) *task {
		k := faultCase{kind: plan.AllGather, n: 2}.task(w, rng)
		for i := range k.specs {
			k.specs[i].Tag = tag
		}
		return k
	}
	first := fixed(5)
	op, err := w.eng[0].New(first.specs[0])
	require.NoError(t, err)
	done := make(chan error, 2)
	early := w.begin(0, 0, func(err error) { done <- err })
	early.Eager = true
	op.Start(early)
	for range 20 {
		k := fixed(6)
		s, commence := w.startMixed(k.specs, 1, 3, []int{1, 0})
		commence()
		s.ok(t)
		k.right(t, "behind an early one")
		s.finish(false)
	}
	require.Positive(t, w.eng[1].kept())
	second, err := w.eng[1].New(first.specs[1])
	require.NoError(t, err)
	late := w.begin(1, 0, func(err error) { done <- err })
	late.Eager = true
	second.Start(late)
	require.NoError(t, verdict(t, done))
	require.NoError(t, verdict(t, done))
	require.Zero(t, w.eng[1].kept())
	first.right(t, "the early one")
	op.Finish(false)
	second.Finish(false)
}

// Frames of an operation that has failed, and of epochs gone by, belong to nobody.
func TestLeftoversOfEagerOperations(t *testing.T) {
	a := newAlone(t, 2, false, Config{})
	stale := func(n uint64) {
		t.Helper()
		require.Eventually(t, func() bool { return a.e.link.Stats.StaleFrames.Load() == n }, patience, time.Millisecond)
	}
	kept := func() {
		t.Helper()
		require.Eventually(t, func() bool { return a.e.kept() > 0 }, patience, time.Millisecond)
	}
	send := func(tag, epoch uint64, v ...byte) { a.piece(1, tag, epoch|mark|eagerBit, 64, 0, int64(len(v)), v) }
	spec := func(tag uint64) Spec {
		return Spec{Kind: plan.Broadcast, Tag: tag, Root: 1, DType: dtype.Uint8, Dst: make([]byte, 2)}
	}
	begin := func(epoch uint64, spec Spec) (*Operation, chan error) {
		op, err := a.e.New(spec)
		require.NoError(t, err)
		done := make(chan error, 2)
		op.Start(Start{Epoch: epoch, Eager: true, Members: a.ids, Ring: a.ids, Self: a.ids[0], Done: func(err error) { done <- err }})
		return op, done
	}
	a.e.ExpectEpoch(6)
	// It was never begun here: the machine says that it has failed.
	send(2, 5, 1, 2)
	kept()
	a.e.BeginEpoch(5)
	a.e.Spoil(2, 4) // of another epoch
	require.Positive(t, a.e.kept())
	a.e.Spoil(2, 5)
	require.Zero(t, a.e.kept())
	stale(1)
	send(2, 5, 1, 2)
	stale(2)
	// It fails here.
	op, done := begin(5, spec(3))
	op.Abort(errTest)
	require.ErrorIs(t, verdict(t, done), errTest)
	op.Finish(true)
	send(3, 5, 9, 9)
	stale(3)
	// The next one with its tag takes nothing of it.
	s := spec(3)
	op, done = a.start(1, s)
	send(3, 5, 9, 9)
	stale(4)
	a.piece(1, 3, 1|mark, 64, 0, 2, []byte{10, 11})
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{10, 11}, s.Dst)
	op.Finish(false)
	// A new epoch begins with a clean table, and the old one is over.
	send(3, 6, 30, 31)
	kept()
	s = spec(3)
	op, done = begin(6, s)
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{30, 31}, s.Dst)
	send(3, 5, 9, 9)
	stale(5)
	send(3, lastEpoch+1, 9, 9) // an epoch that nobody has told of
	stale(6)
	op.Finish(false)
}

// The connection that frames came from early ends: what is kept goes with it.
func TestEarlyFramesOfALostConnection(t *testing.T) {
	a := newAlone(t, 2, false, Config{})
	a.piece(1, 2, 1|mark|eagerBit, 64, 0, 100, make([]byte, 64))
	require.Eventually(t, func() bool { return a.e.kept() > 0 }, patience, time.Millisecond)
	a.from[1].Close()
	require.Eventually(t, func() bool { return a.e.kept() == 0 }, patience, time.Millisecond)
	op, done := a.start(1, Spec{Kind: plan.Broadcast, Tag: 2, Root: 1, DType: dtype.Uint8, Dst: make([]byte, 100)})
	require.ErrorIs(t, verdict(t, done), errs.RankConnectionLost)
	op.Finish(true)
}

// Early data of another kind is not taken: its total is another one, and nothing is written.
func TestEarlyDataOfAnotherKind(t *testing.T) {
	a := newAlone(t, 2, false, Config{})
	a.piece(1, 2, 1|mark|eagerBit, 64, 0, 100, make([]byte, 64))
	require.Eventually(t, func() bool { return a.e.kept() > 0 }, patience, time.Millisecond)
	dst := []byte{1, 2, 3}
	op, done := a.start(1, Spec{Kind: plan.Broadcast, Tag: 2, Root: 1, DType: dtype.Uint8, Dst: dst})
	require.ErrorIs(t, verdict(t, done), errs.Mismatch)
	require.Equal(t, []byte{1, 2, 3}, dst)
	op.Finish(true)
	require.False(t, a.e.hub.Receivers(uuid(1))[0].Closed())
}

// Aborts strike eager operations at any moment, launched or not; buffers come back.
func TestEagerAborts(t *testing.T) {
	defer invariants.WatchLocks()()
	for i := range 60 {
		n := 2 + i%3
		w := newWorld(t, shape{n: n, mesh: true, frame: 64})
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		c := faultCase{kind: allKinds[i%len(allKinds)], n: n, mesh: true, restore: true}
		k := c.task(w, rng)
		var wg sync.WaitGroup
		victim := rng.IntN(n)
		s, commence := w.startMixed(k.specs, 1, 1<<n-1, rng.Perm(n))
		wg.Go(func() { s.ops[victim].Abort(errTest) })
		commence()
		wg.Wait()
		for m, op := range s.ops {
			op.Abort(errTest)
			verdict(t, s.errs[m])
			w.eng[m].Spoil(5, 1)
		}
		s.finish(true)
		k.restored(t, true, "%v", c)
		// The next epoch is not disturbed by what is left.
		next := c.task(w, rng)
		s, commence = w.startMixed(next.specs, 2, 1<<n-1, rng.Perm(n))
		commence()
		s.ok(t)
		next.right(t, "%v in the next epoch", c)
		s.finish(false)
		w.balanced(t)
	}
}

// An operation may begin again as soon as it is known that it has ended: what comes then is
// nothing of the one before, even if that had no number yet.
func TestEndedOperationsTakeNothing(t *testing.T) {
	w := newWorld(t, shape{n: 2})
	rng := rand.New(rand.NewPCG(1, 3))
	k := faultCase{kind: plan.AllGather, n: 2}.task(w, rng)
	first, err := w.eng[1].New(k.specs[1])
	require.NoError(t, err)
	done, told := make(chan error, 1), make(chan struct{})
	tell := sync.OnceFunc(func() { close(told) })
	t.Cleanup(tell)
	b := w.begin(1, 0, func(err error) {
		done <- err
		<-told
	})
	b.Eager = true
	first.Start(b)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		first.Abort(errTest)
	}()
	require.Error(t, verdict(t, done))
	s := &started{}
	begin := func(i int) {
		op, err := w.eng[i].New(k.specs[i])
		require.NoError(t, err)
		c := make(chan error, 2)
		s.ops, s.errs = append(s.ops, op), append(s.errs, c)
		b := w.begin(i, 9, func(err error) { c <- err })
		b.Epoch = 2
		op.Start(b)
	}
	begin(0)
	e := w.eng[1]
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.early > 0 || e.link.Stats.StaleFrames.Load() > 0
	}, patience, time.Millisecond)
	begin(1)
	tell()
	s.ok(t)
	k.right(t, "begun again")
	<-ended
	s.finish(false)
	first.Finish(true)
	w.balanced(t)
}

// Nothing of an operation that is larger than its bound leaves above it, and the rest
// leaves with the number, which a member that has begun may hear of later.
func TestBoundBeforeTheCommence(t *testing.T) {
	for _, mesh := range []bool{false, true} {
		for _, pool := range []int{1, 3} {
			w := newWorld(t, shape{n: 3, pool: pool, mesh: mesh, cfg: Config{minStripe: 2048, piece: 1024}})
			rng := rand.New(rand.NewPCG(uint64(pool), 2))
			kind := plan.AllGather
			if mesh {
				kind = plan.AllToAll
			}
			const ahead = 40_000
			k := draw(rng, w, kind, 0)
			k.code, k.varied, k.inPlace = nil, false, false
			for i := range k.counts {
				k.counts[i] = 60_000 / k.dt.Size()
				for j := range k.pairs[i] {
					k.pairs[i][j] = k.counts[i]
				}
			}
			k.fill(w, rng)
			ops, done := make([]*Operation, 3), make([]chan error, 3)
			begin := func(i int) {
				op, err := w.eng[i].New(k.specs[i])
				require.NoError(t, err)
				ops[i], done[i] = op, make(chan error, 2)
				b := w.begin(i, 0, func(err error) { done[i] <- err })
				b.Eager, b.Ahead = true, ahead
				op.Start(b)
			}
			begin(0)
			kept := func() (sum int) {
				for _, e := range w.eng {
					sum += e.kept()
				}
				return sum
			}
			require.Eventually(t, func() bool { return kept() > ahead*3/4 }, patience, time.Millisecond)
			require.LessOrEqual(t, kept(), ahead)
			begin(1)
			begin(2)
			ops[0].Commence(9)
			ops[1].Commence(9)
			// The last one has not heard of it, and gets all from those that have.
			require.Eventually(t, func() bool {
				return !slices.ContainsFunc(ops[2].State().Lanes, func(l LaneState) bool { return !l.Sends && l.Bytes < l.Total })
			}, patience, time.Millisecond)
			ops[2].Commence(9)
			for i := range 3 {
				require.NoError(t, verdict(t, done[i]))
			}
			k.right(t, "mesh %v, %d connections", mesh, pool)
			for _, op := range ops {
				op.Finish(false)
			}
			require.Zero(t, kept())
		}
	}
}
