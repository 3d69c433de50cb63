package reduce

import (
	"fmt"
	"math/rand/v2"
	"net"
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

// startMixed begins one operation on every rank at its own time, eagerly where
// eager says so, and commences it when all are launched. It returns before the
// commence.
func (r *ring) startMixed(specs []Spec, epoch uint64, eager func(rank int) bool, order []int, between func(rank int)) (s *started, commence func()) {
	r.seq++
	seq := r.seq
	s = &started{ops: make([]*Op, len(specs)), errs: make([]chan error, len(specs))}
	for _, i := range order {
		op, err := r.eng[i].NewOp(specs[i])
		require.NoError(r.t, err)
		c := make(chan error, 2)
		s.ops[i], s.errs[i] = op, c
		if eager(i) {
			op.Start(Start{Epoch: epoch, Eager: true, Ring: r.ids, Self: r.ids[i], Done: func(err error) { c <- err }})
		}
		if between != nil {
			between(i)
		}
	}
	return s, func() {
		for i, op := range s.ops {
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
		for _, pool := range []int{1, 3} {
			for _, over := range []func(testing.TB) (a, b net.Conn){memory(transporttest.Options{}), loopback} {
				r := newRing(t, shape{n: n, pool: pool, native: true, knows: true, flows: pool > 1, cfg: Config{Link: link.Config{FrameBytes: 256}, minStripe: 256}, link: over})
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
					s, commence := r.startMixed(specs, 1+uint64(k/8), func(i int) bool { return mask>>i&1 != 0 }, rng.Perm(n), nil)
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
