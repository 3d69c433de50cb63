package reduce

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// startMixed is startLimited without bounds.
func (r *ring) startMixed(specs []Spec, epoch uint64, eager func(rank int) bool, order []int, between func(rank int)) (s *started, commence func()) {
	return r.startLimited(specs, epoch, eager, func(int) int64 { return 0 }, order, between)
}

// startLimited begins one operation on every rank at its own time, eagerly where
// eager says so, and commences it when all are launched, in the other order. It returns
// before the commence. ahead is what a rank may send before that.
func (r *ring) startLimited(specs []Spec, epoch uint64, eager func(rank int) bool, ahead func(rank int) int64, order []int, between func(rank int)) (s *started, commence func()) {
	r.seq++
	seq := r.seq
	s = &started{ops: make([]*Op, len(specs)), errs: make([]chan error, len(specs))}
	for _, i := range order {
		op, err := r.eng[i].NewOp(specs[i])
		require.NoError(r.t, err)
		c := make(chan error, 2)
		s.ops[i], s.errs[i] = op, c
		if eager(i) {
			op.Start(Start{Epoch: epoch, Eager: true, Ahead: ahead(i), Ring: r.ids, Self: r.ids[i], Done: func(err error) { c <- err }})
		}
		if between != nil {
			between(i)
		}
	}
	return s, func() {
		for _, i := range slices.Backward(order) {
			op := s.ops[i]
			if eager(i) {
				op.Commence(seq)
				continue
			}
			op.Start(Start{Seq: seq, Epoch: epoch, Ring: r.ids, Self: r.ids[i], Native: true, Done: func(err error) { s.errs[i] <- err }})
		}
	}
}

// Some ranks begin early and some late, in any order, again and again with the
// same tags: the results are those of the oracle.
func TestEagerMeetsLate(t *testing.T) {
	minmax, err := quant.Lookup("minmax")
	require.NoError(t, err)
	for _, n := range []int{2, 3, 5} {
		for _, pool := range []int{1, 3, -3} {
			for _, over := range []func(testing.TB) (a, b net.Conn){memory(transporttest.Options{}), loopback} {
				knows := pool > 0 // otherwise what is ahead, in pieces or not, waits for the number
				pool := max(pool, -pool)
				r := newRing(t, shape{n: n, pool: pool, native: true, knows: true, flows: pool > 1, ahead: knows, cfg: Config{Link: link.Config{FrameBytes: 256}, minStripe: 256}, link: over})
				rng := rand.New(rand.NewPCG(uint64(n), uint64(pool)))
				for k := range 24 {
					count := []int{0, 1, n, 700, 5000}[rng.IntN(5)]
					specs, want := r.specs(rng, dtype.Float32, allOps[rng.IntN(len(allOps))], count, rng.IntN(2) == 0)
					quantized := count >= n && rng.IntN(4) == 0
					for i := range specs {
						specs[i].Tag = uint64(k % 2)
						if quantized {
							specs[i].Quantizer, specs[i].WireType, specs[i].Op = minmax, dtype.Uint8, dtype.Sum
						}
					}
					mask := rng.IntN(1 << n)
					ahead := []int64{0, 1, 700, 5000, 1 << 20}[rng.IntN(5)]
					s, commence := r.startLimited(specs, 1+uint64(k/8), func(i int) bool { return mask>>i&1 != 0 },
						func(int) int64 { return ahead }, rng.Perm(n), nil)
					commence()
					s.ok(t)
					for i := range specs {
						if quantized {
							want = specs[0].Dst
						}
						require.Equal(t, want, specs[i].Dst, "rank %d of %d, operation %d, eager %b", i, n, k, mask)
					}
				}
				r.close()
			}
		}
	}
}

// kept returns the bytes that an engine keeps for operations to come.
func (e *Engine) kept() int { return e.hub.Early().Bytes }

// What came early does not keep what comes behind it, and waits as long as it must.
func TestEarlyFramesLetOthersPass(t *testing.T) {
	r := newRing(t, shape{n: 2, native: true, knows: true, link: loopback})
	rng := rand.New(rand.NewPCG(1, 2))
	first, want := r.specs(rng, dtype.Float32, dtype.Sum, 4000, false)
	op, err := r.eng[0].NewOp(first[0])
	require.NoError(t, err)
	done := make(chan error, 2)
	op.Start(Start{Epoch: 3, Eager: true, Ring: r.ids, Self: r.ids[0], Done: func(err error) { done <- err }})
	for range 20 {
		specs, want := r.specs(rng, dtype.Float32, dtype.Sum, 3000, true)
		for i := range specs {
			specs[i].Tag = 6
		}
		s, commence := r.startMixed(specs, 3, func(int) bool { return true }, []int{1, 0}, nil)
		commence()
		s.ok(t)
		require.Equal(t, want, specs[1].Dst)
	}
	require.Positive(t, r.eng[1].kept())
	second, err := r.eng[1].NewOp(first[1])
	require.NoError(t, err)
	other := make(chan error, 2)
	second.Start(Start{Epoch: 3, Eager: true, Ring: r.ids, Self: r.ids[1], Done: func(err error) { other <- err }})
	require.NoError(t, verdict(t, done))
	require.NoError(t, verdict(t, other))
	require.Zero(t, r.eng[1].kept())
	require.Equal(t, want, first[0].Dst)
	require.Equal(t, want, first[1].Dst)
	op.Finish(false)
	second.Finish(false)
}

func (a *alone) startEager(epoch uint64, spec Spec, ring []wire.UUID, self wire.UUID) (*Op, chan error) {
	op, err := a.e.NewOp(spec)
	require.NoError(a.t, err)
	done := make(chan error, 2)
	op.Start(Start{Epoch: epoch, Eager: true, Ring: ring, Self: self, Done: func(err error) { done <- err }})
	return op, done
}

func bytesSpec(tag uint64, src ...byte) Spec {
	return Spec{Tag: tag, Count: len(src), DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: make([]byte, len(src))}
}

// Frames of an operation that has failed, and of epochs gone by, belong to nobody.
func TestLeftoversOfEagerOperations(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	stale := func(n uint64) {
		t.Helper()
		require.Eventually(t, func() bool { return a.e.Stats().StaleFrames == n }, patience, time.Millisecond)
	}
	// It was never begun here: the machine says that it has failed.
	a.send(2, eagerBit|5, []byte{1})
	require.Eventually(t, func() bool { return a.e.kept() > 0 }, patience, time.Millisecond)
	op, done := a.startEager(5, bytesSpec(3, 1, 2), ids, ids[0])
	a.recv()
	a.e.Spoil(2, 4) // of another epoch
	require.Positive(t, a.e.kept())
	a.e.Spoil(2, 5)
	require.Zero(t, a.e.kept())
	stale(1)
	a.send(2, eagerBit|5, []byte{1})
	stale(2)
	// It fails here.
	op.Abort(errTest)
	require.ErrorIs(t, verdict(t, done), errTest)
	op.Finish(true)
	a.send(3, eagerBit|5, []byte{9})
	stale(3)
	// The next one with its tag takes nothing of it.
	op, err := a.e.NewOp(bytesSpec(3, 1, 2))
	require.NoError(t, err)
	op.Start(Start{Seq: 1, Epoch: 5, Ring: ids, Self: ids[0], Native: true, Done: func(err error) { done <- err }})
	a.send(3, eagerBit|5, []byte{9})
	stale(4)
	a.recv()
	a.send(3, 1, []byte{10})
	a.recv()
	a.send(3, 1, []byte{20})
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{20, 12}, op.spec.Dst)
	op.Finish(false)
	// A new epoch begins with a clean table, and the old one is over.
	a.send(3, eagerBit|6, []byte{30})
	op, done = a.startEager(6, bytesSpec(3, 1, 2), ids, ids[0])
	a.send(3, eagerBit|5, []byte{9})
	stale(5)
	a.send(3, eagerBit|6, []byte{40})
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{40, 32}, op.spec.Dst)
	op.Finish(false)
}

// The connection that frames came from early ends: with all of them here only
// what is lacking counts.
func TestEarlyFramesOfALostConnection(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	a.send(2, eagerBit|1, []byte{1})
	require.Eventually(t, func() bool { return a.e.kept() > 0 }, patience, time.Millisecond)
	a.prev.Close()
	require.Eventually(t, func() bool { return a.e.kept() == 0 }, patience, time.Millisecond)
	op, done := a.startEager(1, bytesSpec(2, 1, 2), ids, ids[0])
	require.ErrorIs(t, verdict(t, done), errs.RankConnectionLost)
	op.Finish(true)
}

// Aborts strike eager operations at any moment, launched or not; buffers come back.
func TestEagerAborts(t *testing.T) {
	for k := range 60 {
		n := 2 + k%3
		r := newRing(t, shape{n: n, native: true, knows: true, cfg: Config{Link: link.Config{FrameBytes: 64}}})
		rng := rand.New(rand.NewPCG(uint64(k), 1))
		specs, _ := r.specs(rng, dtype.Float32, dtype.Sum, 500, true)
		before := keep(specs)
		var wg sync.WaitGroup
		victim := rng.IntN(n)
		s, commence := r.startMixed(specs, 1, func(int) bool { return true }, rng.Perm(n), nil)
		wg.Go(func() { s.ops[victim].Abort(errTest) })
		commence()
		wg.Wait()
		for i, op := range s.ops {
			op.Abort(errTest)
			<-s.errs[i]
			r.eng[i].Spoil(5, 1)
			op.Finish(true)
			require.Equal(t, before[i], specs[i].Src)
		}
		// The next epoch is not disturbed by what is left.
		specs, want := r.specs(rng, dtype.Float32, dtype.Sum, 500, true)
		s, commence = r.startMixed(specs, 2, func(int) bool { return true }, rng.Perm(n), nil)
		commence()
		s.ok(t)
		require.Equal(t, want, specs[0].Dst, fmt.Sprint(k))
		r.close()
	}
}

// The next operation with a tag may come while the last one is still being
// reported: it is another one.
func TestNextEagerOperationWithItsTag(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	op, err := a.e.NewOp(bytesSpec(3, 1, 2))
	require.NoError(t, err)
	reported, goOn := make(chan error, 1), make(chan bool)
	a.send(3, eagerBit|1, []byte{10})
	a.send(3, eagerBit|1, []byte{20})
	require.Eventually(t, func() bool { return a.e.kept() == 2*(transport.HeaderSize+1) }, patience, time.Millisecond)
	go op.Start(Start{Epoch: 1, Eager: true, Ring: ids, Self: ids[0], Done: func(err error) {
		reported <- err
		<-goOn
	}})
	require.NoError(t, verdict(t, reported))
	a.send(3, eagerBit|1, []byte{50})
	require.Eventually(t, func() bool { return a.e.kept() > 0 }, patience, time.Millisecond)
	next, done := a.startEager(1, bytesSpec(3, 1, 2), ids, ids[0])
	close(goOn)
	a.send(3, eagerBit|1, []byte{60})
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{60, 52}, next.spec.Dst)
	require.Equal(t, []byte{20, 12}, op.spec.Dst)
	op.Finish(false)
	next.Finish(false)
	require.Zero(t, a.e.Stats().StaleFrames)
	// What is kept of an epoch goes with it.
	a.send(4, eagerBit|1, []byte{1})
	a.send(4, eagerBit|2, []byte{1})
	require.Eventually(t, func() bool { return a.e.kept() == 2*(transport.HeaderSize+1) }, patience, time.Millisecond)
	op, done = a.startEager(2, bytesSpec(5, 1), ids, ids[0])
	require.Equal(t, transport.HeaderSize+1, a.e.kept())
	op.Abort(errTest)
	verdict(t, done)
	op.Finish(true)
}

// slow is a backend whose first call waits.
type slow struct {
	backend.Backend
	once     sync.Once
	in, goOn chan bool
}

func (s *slow) Reduce(dt dtype.Type, op dtype.Op, dst, a, b []byte) {
	s.once.Do(func() {
		close(s.in)
		<-s.goOn
	})
	s.Backend.Reduce(dt, op, dst, a, b)
}

// Frames that come while those before them are being processed wait for their turn.
func TestFramesBehindEarlyOnes(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	s := &slow{Backend: generic(t), in: make(chan bool), goOn: make(chan bool)}
	a := newAlone(t, Config{Backend: s}, ids[1], ids[1], true)
	a.send(3, eagerBit|1, []byte{10})
	require.Eventually(t, func() bool { return a.e.kept() > 0 }, patience, time.Millisecond)
	op, err := a.e.NewOp(bytesSpec(3, 1, 2))
	require.NoError(t, err)
	done := make(chan error, 1)
	go op.Start(Start{Epoch: 1, Eager: true, Ring: ids, Self: ids[0], Done: func(err error) { done <- err }})
	<-s.in
	a.send(3, eagerBit|1, []byte{20})
	a.send(9, 0, []byte{1}) // the reader is behind it as soon as it has taken the one before
	close(s.goOn)
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{20, 12}, op.spec.Dst)
	op.Finish(false)
}

// Nothing of an operation that is larger than its bound leaves above it, and all that is
// left leaves with the number, over one connection or in pieces over several.
func TestBoundBeforeTheCommence(t *testing.T) {
	for _, pool := range []int{1, 3} {
		r := newRing(t, shape{n: 2, pool: pool, native: true, knows: true, flows: true, ahead: true, cfg: Config{Link: link.Config{FrameBytes: 1024}, minStripe: 2048}})
		rng := rand.New(rand.NewPCG(uint64(pool), 5))
		const ahead = 20_000
		specs, want := r.specs(rng, dtype.Float32, dtype.Sum, 30_000, true)
		begun := func(i int, s Start) (*Op, chan error) {
			op, err := r.eng[i].NewOp(specs[i])
			require.NoError(t, err)
			done := make(chan error, 2)
			s.Epoch, s.Ring, s.Self, s.Native, s.Done = 3, r.ids, r.ids[i], true, func(err error) { done <- err }
			op.Start(s)
			return op, done
		}
		first, done := begun(0, Start{Eager: true, Ahead: ahead})
		// A small one behind it shows that all of what may come has come.
		small, smallWant := r.specs(rng, dtype.Float32, dtype.Sum, 16, true)
		for i := range small {
			small[i].Tag = 77
		}
		s, commence := r.startMixed(small, 3, func(int) bool { return true }, []int{0, 1}, nil)
		commence()
		s.ok(t)
		require.Equal(t, smallWant, small[0].Dst)
		require.Eventually(t, func() bool { return r.eng[1].kept() > ahead*3/4 }, patience, time.Millisecond)
		require.LessOrEqual(t, r.eng[1].kept(), ahead)
		require.Less(t, first.State().Sent, int64(ahead))
		r.seq++
		first.Commence(r.seq)
		// It is known to be commenced there, and not here yet; then it begins with that.
		second, other := begun(1, Start{Seq: r.seq})
		require.NoError(t, verdict(t, done))
		require.NoError(t, verdict(t, other))
		require.Equal(t, want, specs[0].Dst)
		require.Equal(t, want, specs[1].Dst)
		require.Zero(t, r.eng[1].kept())
		first.Finish(false)
		second.Finish(false)
	}
}

// To a neighbour that does not know it nothing leaves before its number that is a piece, or
// belongs to an operation with a bound.
func TestOlderNeighboursGetWhatTheyKnow(t *testing.T) {
	for _, c := range []struct {
		pool  int
		ahead int64
	}{{1, 20_000}, {3, 0}, {3, 20_000}} {
		r := newRing(t, shape{n: 2, pool: c.pool, native: true, knows: true, flows: true, cfg: Config{Link: link.Config{FrameBytes: 1024}, minStripe: 2048}})
		rng := rand.New(rand.NewPCG(uint64(c.pool), 7))
		specs, want := r.specs(rng, dtype.Float32, dtype.Sum, 30_000, true)
		r.seq = 9 // the one behind it is commenced first
		s, commence := r.startLimited(specs, 3, func(int) bool { return true }, func(int) int64 { return c.ahead }, []int{0, 1}, nil)
		r.seq = 0
		small, smallWant := r.specs(rng, dtype.Float32, dtype.Sum, 16, true)
		for i := range small {
			small[i].Tag = 77
		}
		behind, begin := r.startMixed(small, 3, func(int) bool { return true }, []int{0, 1}, nil)
		begin()
		behind.ok(t)
		require.Equal(t, smallWant, small[0].Dst)
		for _, op := range s.ops {
			require.Zero(t, op.State().Sent, "%+v", c)
		}
		commence()
		s.ok(t)
		require.Equal(t, want, specs[0].Dst)
		require.Equal(t, want, specs[1].Dst)
	}
}

// A neighbour that has heard of the commence goes on with the number, to one that has
// begun and has not.
func TestNumberBeforeItsCommence(t *testing.T) {
	for _, pool := range []int{1, 3} {
		r := newRing(t, shape{n: 2, pool: pool, native: true, knows: true, flows: true, ahead: true, cfg: Config{Link: link.Config{FrameBytes: 1024}, minStripe: 2048}})
		rng := rand.New(rand.NewPCG(uint64(pool), 6))
		specs, want := r.specs(rng, dtype.Float32, dtype.Sum, 30_000, true)
		ops, done := make([]*Op, 2), make([]chan error, 2)
		for i := range ops {
			op, err := r.eng[i].NewOp(specs[i])
			require.NoError(t, err)
			ops[i], done[i] = op, make(chan error, 2)
			op.Start(Start{Epoch: 3, Eager: true, Ahead: []int64{5000, 1 << 20}[i], Ring: r.ids, Self: r.ids[i], Done: func(err error) { done[i] <- err }})
		}
		// It has all that comes without more of its own: the commence alone lets that go.
		require.Eventually(t, func() bool {
			ahead := ops[1].State().Received
			return ahead > 0 && ahead == ops[0].State().Sent && ops[0].State().Received == 60_000+ahead
		}, patience, time.Millisecond)
		ops[0].Commence(9)
		require.NoError(t, verdict(t, done[0]), "it has all of the other one, which has the number only")
		require.NoError(t, verdict(t, done[1]))
		ops[1].Commence(9)
		for i, op := range ops {
			require.Equal(t, want, specs[i].Dst)
			op.Finish(false)
		}
	}
}

// Numbers that have passed are of operations gone by: what comes with them is no part of
// one that has none.
func TestPassedNumbersAreOfNoOperation(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	a.e.Skip(8)
	op, done := a.startEager(5, bytesSpec(3, 1, 2), ids, ids[0])
	a.recv()
	a.send(3, 8, []byte{99})
	a.send(3, 9, []byte{10})
	a.recv()
	a.send(3, 9, []byte{20})
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{20, 12}, op.spec.Dst)
	require.EqualValues(t, 1, a.e.Stats().StaleFrames)
	op.Commence(9)
	op.Finish(false)
}

// An operation may begin again as soon as it is known that it has ended: what comes then is
// nothing of the one before, even if that had no number yet.
func TestEndedOperationsTakeNothing(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	op, err := a.e.NewOp(bytesSpec(3, 1, 2))
	require.NoError(t, err)
	done, told := make(chan error, 1), make(chan struct{})
	tell := sync.OnceFunc(func() { close(told) })
	t.Cleanup(tell)
	op.Start(Start{Epoch: 5, Eager: true, Ring: ids, Self: ids[0], Done: func(err error) {
		done <- err
		<-told
	}})
	a.recv()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		op.Abort(errTest)
	}()
	require.Error(t, verdict(t, done))
	a.send(3, 9, []byte{10})
	require.Eventually(t, func() bool {
		a.e.mu.Lock()
		defer a.e.mu.Unlock()
		return a.e.early > 0 || a.e.Stats().StaleFrames > 0
	}, patience, time.Millisecond)
	again, done := a.start(9, bytesSpec(3, 1, 2), ids, ids[0])
	tell()
	a.send(3, 9, []byte{20})
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{20, 12}, again.spec.Dst)
	<-ended
	again.Finish(false)
	op.Finish(true)
}

// Pieces that came early on a connection that has ended since fail the operation that
// they are missing in.
func TestEarlyPiecesOfALostConnection(t *testing.T) {
	for _, lost := range []bool{true, false} {
		ids := []wire.UUID{uuid(0), uuid(1)}
		a := newAlone(t, Config{}, ids[1], ids[1], true)
		second, in := transporttest.Pair(transporttest.Options{})
		a.e.hub.AddReceiver(ids[1], 1, in)
		spec := bytesSpec(3, make([]byte, 256)...)
		pieceOf := func(index int) []byte {
			b := make([]byte, stripeHead+64)
			putStripe(b, 64, index)
			b[stripeHead] = byte(index + 1)
			return b
		}
		a.send(3, eagerBit|stripeBit|5, pieceOf(1))
		b := eagerFrame(3, 5|stripeBit, pieceOf(0))
		_, err := second.Write(b)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return a.e.kept() == 2*len(b) }, patience, time.Millisecond)
		if lost {
			second.Close()
			require.Eventually(t, func() bool { return a.e.kept() == len(b) }, patience, time.Millisecond)
		}
		op, done := a.startEager(5, spec, ids, ids[0])
		require.Zero(t, a.e.kept())
		if lost {
			require.ErrorIs(t, verdict(t, done), errs.RankConnectionLost)
			op.Finish(true)
			continue
		}
		a.send(3, eagerBit|stripeBit|5, pieceOf(2))
		_, err = second.Write(eagerFrame(3, 5|stripeBit, pieceOf(3)))
		require.NoError(t, err)
		require.NoError(t, verdict(t, done))
		for index, at := range map[int]int{0: 128, 1: 192, 2: 0, 3: 64} {
			require.EqualValues(t, index+1, spec.Dst[at], "piece %d", index)
		}
		op.Finish(false)
		second.Close()
	}
}
