package reduce

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

func eagerFrame(tag, epoch uint64, payload []byte) []byte {
	b := make([]byte, transport.HeaderSize)
	transport.Header{Payload: len(payload), Tag: tag, Stream: eagerBit | epoch}.Put((*[transport.HeaderSize]byte)(b))
	return append(b, payload...)
}

// whenKept waits until so many bytes are kept.
func (a *alone) whenKept(bytes int) {
	a.t.Helper()
	require.Eventually(a.t, func() bool { return a.e.kept() == bytes }, patience, time.Millisecond)
}

// Frames of an operation that has failed before anything was begun here in its
// epoch are not taken for those of the next operation with its tag, whoever told
// the engine of the epoch first.
func TestFailureIsTheFirstNewsOfItsEpoch(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	for name, tell := range map[string]func(e *Engine){
		"nobody":    func(*Engine) {},
		"the round": func(e *Engine) { e.BeginEpoch(5) },
		"another":   func(e *Engine) { e.Spoil(9, 5) },
	} {
		for _, late := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				a := newAlone(t, Config{}, ids[1], ids[1], true)
				tell(a.e)
				if !late {
					a.send(7, eagerBit|5, []byte{100}) // the neighbour began and has failed
					a.whenKept(transport.HeaderSize + 1)
				}
				a.e.Spoil(7, 5) // it was never begun here
				if late {
					a.send(7, eagerBit|5, []byte{100})
				}
				require.Eventually(t, func() bool { return a.e.Stats().StaleFrames == 1 }, patience/10, time.Millisecond)
				op, err := a.e.NewOp(bytesSpec(7, 1, 2))
				require.NoError(t, err)
				done := make(chan error, 2)
				op.Start(Start{Seq: 1, Epoch: 5, Ring: ids, Self: ids[0], Native: true, Done: func(err error) { done <- err }})
				a.send(7, 1, []byte{10})
				a.recv()
				_, sentOn := a.recv()
				require.Equal(t, []byte{12}, sentOn)
				a.send(7, 1, []byte{20})
				require.NoError(t, verdict(t, done))
				require.Equal(t, []byte{20, 12}, op.spec.Dst)
				op.Finish(false)
			})
		}
	}
}

// An operation that must not listen takes nothing that came early, even if
// nobody has said that what came had failed.
func TestWhoDoesNotListenTakesNothingEarly(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	a.send(7, eagerBit|5, []byte{100})
	a.whenKept(transport.HeaderSize + 1)
	op, err := a.e.NewOp(bytesSpec(7, 1, 2))
	require.NoError(t, err)
	done := make(chan error, 2)
	op.Start(Start{Seq: 1, Epoch: 0, Ring: ids, Self: ids[0], Native: true, Done: func(err error) { done <- err }})
	a.send(7, 1, []byte{10})
	a.send(7, 1, []byte{20})
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{20, 12}, op.spec.Dst)
	op.Finish(false)
}

// An operation of an epoch gone by that is still being reported does not take
// what a neighbour sends for the next one with its tag.
func TestEpochTakesItsOperationsAlong(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	op, err := a.e.NewOp(bytesSpec(3, 1, 2))
	require.NoError(t, err)
	reported, goOn := make(chan error, 1), make(chan bool)
	op.Start(Start{Epoch: 1, Eager: true, Ring: ids, Self: ids[0], Done: func(err error) {
		reported <- err
		<-goOn
	}})
	op.Abort(errTest)
	require.ErrorIs(t, verdict(t, reported), errTest)
	a.e.BeginEpoch(2)
	a.send(3, eagerBit|2, []byte{50})
	a.whenKept(transport.HeaderSize + 1)
	next, done := a.startEager(2, bytesSpec(3, 1, 2), ids, ids[0])
	a.send(3, eagerBit|2, []byte{60})
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{60, 52}, next.spec.Dst)
	close(goOn)
	op.Finish(true)
	next.Finish(false)
}

// Frames of an epoch that this peer cannot know of belong to nobody.
func TestEpochsOfTheFarFuture(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	a.send(1, eagerBit|1<<60, []byte{1})
	a.send(1, eagerBit|(lastEpoch+1), []byte{1})
	a.send(1, eagerBit|lastEpoch, []byte{1})
	a.whenKept(transport.HeaderSize + 1)
	require.EqualValues(t, 2, a.e.Stats().StaleFrames)
}

// After the end of an operation nothing of the engine keeps the caller's memory
// alive.
func TestNothingIsKept(t *testing.T) {
	r := newRing(t, shape{n: 2, native: true, knows: true, link: loopback})
	var freed atomic.Int32
	func() {
		var specs []Spec
		for range 2 {
			src, dst := new([4 << 20]byte), new([4 << 20]byte)
			runtime.SetFinalizer(src, func(*[4 << 20]byte) { freed.Add(1) })
			runtime.SetFinalizer(dst, func(*[4 << 20]byte) { freed.Add(1) })
			specs = append(specs, Spec{Tag: 5, Count: 4 << 20, DType: dtype.Uint8, Op: dtype.Sum, Src: src[:], Dst: dst[:]})
		}
		r.start(specs).ok(t)
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		return freed.Load() == 4
	}, patience, 10*time.Millisecond, "buffers that were given back")
}

// quarrelsome is a log handler that panics once.
type quarrelsome struct {
	slog.Handler
	once *atomic.Bool
}

func (quarrelsome) Enabled(context.Context, slog.Level) bool { return true }

func (h quarrelsome) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "peer to peer connection lost" && h.once.CompareAndSwap(false, true) {
		panic("the caller's log handler")
	}
	return nil
}

// A panic of the caller's log handler gives no buffer back twice, and leaves no
// operation without an end.
func TestLogHandlerPanics(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	h := quarrelsome{once: new(atomic.Bool)}
	a := newAlone(t, Config{Link: link.Config{Logger: slog.New(h)}}, ids[1], ids[1], true)
	op, done := a.start(5, bytesSpec(2, 1, 2), ids, ids[0])
	a.send(2, 5, []byte{10})
	a.recv()
	a.prev.Close()
	require.ErrorIs(t, verdict(t, done), errs.RankConnectionLost)
	op.Finish(true)
	require.True(t, h.once.Load())
	a.e.Close()
	p := a.e.cfg.Link.Pool
	require.Zero(t, p.Stats().InUse)
	require.Positive(t, p.Stats().Cached, "what the connection's frame needed")
	x, y := p.Get(1), p.Get(1)
	require.Positive(t, p.Stats().Hits, "one of them is that")
	require.NotSame(t, unsafe.SliceData(x), unsafe.SliceData(y), "the pool hands the same memory out twice")
}
