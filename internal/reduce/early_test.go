package reduce

import (
	"context"
	"log/slog"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
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

// However small the frames are, what is kept takes memory in proportion to what
// came; and it holds all that the protocol allows a neighbour to send.
func TestTinyEarlyFrames(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	frame := len(eagerFrame(1, 1, []byte{1}))
	for _, tags := range []int{1, 8192} {
		a := newAlone(t, Config{}, ids[1], ids[1], true)
		op, ended := a.start(1, bytesSpec(1<<40, 1, 2), ids, ids[0]) // something is wanted from there
		before := a.e.Buffers().InUse
		const many = 40_000
		var b []byte
		for i := range many {
			b = append(b, eagerFrame(uint64(i%tags), 1, []byte{1})...)
		}
		_, err := a.prev.Write(b)
		require.NoError(t, err)
		a.whenKept(many * frame)
		all, _ := a.e.memory()
		require.Less(t, all, 2*many*frame+tags*(earlyCost+partCost))
		require.Zero(t, a.e.Buffers().InUse-before)
		op.Abort(errTest)
		require.Error(t, verdict(t, ended))
		op.Finish(true)
		a.e.BeginEpoch(2)
		all, _ = a.e.memory()
		require.Zero(t, all)
	}
}

// What is announced and never comes takes next to no memory, and what comes is
// read piece by piece into memory that was reserved before it was taken.
func TestAnnouncedEarlyFrames(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	big := eagerFrame(1, 1, make([]byte, 5<<20))
	_, err := a.prev.Write(big[:len(big)/2])
	require.NoError(t, err)
	require.Eventually(t, func() bool { all, _ := a.e.memory(); return all > len(big)/2 }, patience, time.Millisecond)
	all, _ := a.e.memory()
	require.Less(t, all, len(big)*2/3)
	require.LessOrEqual(t, a.e.Buffers().InUse, int64(all))
	const many = 24
	var far []net.Conn
	for i := range many {
		there, here := transporttest.Pair(transporttest.Options{})
		t.Cleanup(func() { there.Close() })
		a.e.AddReceiver(uuid(100+i), 0, here)
		_, err := there.Write(big[:transport.HeaderSize])
		require.NoError(t, err)
		far = append(far, there)
	}
	require.Eventually(t, func() bool { _, strange := a.e.memory(); return strange >= many*smallPart }, patience, time.Millisecond)
	_, strange := a.e.memory()
	require.Less(t, strange, many*2*smallPart)
	for _, c := range far {
		c.Close()
	}
	require.Eventually(t, func() bool { _, strange := a.e.memory(); return strange == 0 }, patience, time.Millisecond)
	a.prev.Close()
	require.Eventually(t, func() bool { all, _ := a.e.memory(); return all == 0 && a.e.Buffers().InUse == 0 }, patience, time.Millisecond)
}

// Strangers who fill what may be kept of them lose their own connections, and
// cost the ring nothing.
func TestStrangersDoNotFillTheMemoryOfNeighbours(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	for i := range 3 {
		there, here := transporttest.Pair(transporttest.Options{Buffer: 8 << 20})
		t.Cleanup(func() { there.Close() })
		a.e.AddReceiver(uuid(100+i), 0, here)
		for range 4 {
			_, _ = there.Write(eagerFrame(1, lastEpoch, make([]byte, 500<<10)))
		}
		there.SetReadDeadline(time.Now().Add(patience))
		_, err := there.Read(make([]byte, 1))
		require.Error(t, err)
		require.False(t, transport.IsTimeout(err), "it was not closed")
	}
	_, strange := a.e.memory()
	require.LessOrEqual(t, strange, maxEarlyStrange)
	a.send(2, eagerBit|1, []byte{1}) // the neighbour launches a little earlier than this peer
	require.Eventually(t, func() bool { return a.e.kept() > 0 }, patience, time.Millisecond)
	op, done := a.startEager(1, bytesSpec(2, 1, 2), ids, ids[0])
	a.send(2, eagerBit|1, []byte{1})
	require.NoError(t, verdict(t, done))
	op.Finish(false)
}

// What is kept of a peer counts as a neighbour's as soon as it is one, and as a
// stranger's when it is none any more.
func TestEarlyMemoryFollowsTheNeighbour(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	a.send(2, eagerBit|1, []byte{1})
	a.whenKept(transport.HeaderSize + 1)
	all, strange := a.e.memory()
	require.Positive(t, all)
	require.Zero(t, strange)
	a.e.Forget(func(wire.UUID) bool { return false })
	again, strange := a.e.memory()
	require.Equal(t, []int{all, all}, []int{again, strange})
	a.e.Trust(ids[1])
	again, strange = a.e.memory()
	require.Equal(t, []int{all, 0}, []int{again, strange})
}

// crowd makes as many strangers connect as an engine takes.
func (a *alone) crowd() {
	for i := range maxStrangers {
		there, here := net.Pipe()
		a.t.Cleanup(func() { there.Close() })
		var u wire.UUID
		u[0], u[1], u[2] = 0xff, byte(i), byte(i>>8)
		a.e.AddReceiver(u, 0, here)
	}
}

// A neighbour is one by its name: also if it connects when this end's round is
// over, and the connections of one that is none any more go last.
func TestNeighboursAreKnownByName(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	for _, former := range []bool{false, true} {
		e := NewEngine(Config{Backend: generic(t)})
		t.Cleanup(e.Close)
		e.Trust(ids[1])
		listed := func(u wire.UUID) bool { return u == ids[1] }
		e.Retain(listed, listed) // the round of this end is over; the neighbour still dials
		prev, in := transporttest.Pair(transporttest.Options{})
		e.AddReceiver(ids[1], 0, in)
		tx, next := transporttest.Pair(transporttest.Options{})
		e.AddSender(ids[1], 0, tx, Link{Native: true})
		a := &alone{t: t, e: e, prev: prev, next: next, rd: transport.NewReader(next, 4096)}
		op, done := a.start(5, bytesSpec(2, 1, 2), ids, ids[0])
		if former { // an operation of an older ring
			e.Forget(func(wire.UUID) bool { return false })
		}
		a.crowd()
		a.send(2, 5, []byte{4})
		a.send(2, 5, []byte{5})
		require.NoError(t, verdict(t, done), "the ring goes on")
		op.Finish(false)
		e.Retain(nil, func(wire.UUID) bool { return false })
		require.Empty(t, e.known)
	}
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
	a := newAlone(t, Config{Logger: slog.New(h)}, ids[1], ids[1], true)
	op, done := a.start(5, bytesSpec(2, 1, 2), ids, ids[0])
	a.send(2, 5, []byte{10})
	a.recv()
	a.prev.Close()
	require.ErrorIs(t, verdict(t, done), errs.RankConnectionLost)
	op.Finish(true)
	require.True(t, h.once.Load())
	a.e.Close()
	p := a.e.cfg.Pool
	require.Zero(t, p.Stats().InUse)
	x, y := p.Get(DefaultFrameBytes+8), p.Get(DefaultFrameBytes+8)
	require.NotEqual(t, unsafe.SliceData(x), unsafe.SliceData(y), "the pool hands the same memory out twice")
}
