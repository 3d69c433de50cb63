package reduce

import (
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"sync/atomic"
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

// tripwire runs hit before its at-th Reduce.
type tripwire struct {
	backend.Backend
	calls atomic.Int64
	at    atomic.Int64
	hit   func()
}

func (b *tripwire) Reduce(t dtype.Type, op dtype.Op, dst, a, c []byte) {
	if b.calls.Add(1) == b.at.Load() {
		b.hit()
	}
	b.Backend.Reduce(t, op, dst, a, c)
}

// keep returns copies of the sources.
func keep(specs []Spec) [][]byte {
	var out [][]byte
	for _, s := range specs {
		out = append(out, append([]byte(nil), s.Src...))
	}
	return out
}

// An abort at every single frame: all ranks report it, in-place buffers are bit
// for bit as before, out-of-place sources untouched, and the same tag works at
// once afterwards although leftovers are on their way. Data spec, section 6.
func TestAbortAtEveryFrame(t *testing.T) {
	for _, n := range []int{2, 3} {
		for _, inPlace := range []bool{true, false} {
			for at := int64(1); ; at++ {
				wire := &tripwire{Backend: generic(t)}
				var s *started
				ready := make(chan struct{})
				wire.hit = func() {
					<-ready
					for _, op := range s.ops { // the master tells everybody
						op.Abort(errTest)
					}
				}
				r := newRing(t, shape{n: n, cfg: Config{Backend: wire, Link: link.Config{FrameBytes: 64}}})
				rng := rand.New(rand.NewPCG(uint64(at), 1))
				specs, _ := r.specs(rng, dtype.Float32, dtype.Avg, 150, inPlace)
				before := keep(specs)
				wire.at.Store(wire.calls.Load() + at)
				s = r.start(specs)
				close(ready)
				failed := 0
				for _, err := range s.wait(t) {
					if err != nil {
						require.ErrorIs(t, err, errTest) // S0-25
						failed++
					}
				}
				if failed == 0 {
					require.Greater(t, at, int64(5*(n-1)), "not every frame was aborted")
					for _, op := range s.ops {
						op.Finish(false)
					}
					r.close()
					break
				}
				for i, op := range s.ops {
					op.Finish(true)                                                          // late aborts restore as well (quirk Q22)
					require.Equal(t, before[i], specs[i].Src, "rank %d, abort at %d", i, at) // S2-31
				}
				wire.at.Store(0)
				for range 3 {
					r.run(rng, dtype.Float32, dtype.Sum, 150, inPlace) // S2-34
				}
				r.close()
			}
		}
	}
}

// A late abort: the data phase is complete, the verdict is not success. The
// buffer gets its originals back nevertheless (quirk Q22, deviated).
func TestRestoreAfterSuccess(t *testing.T) {
	for _, quantized := range []bool{false, true} {
		for _, n := range []int{2, 3, 5} {
			r := newRing(t, shape{n: n, cfg: Config{Link: link.Config{FrameBytes: 64}}})
			specs, _ := r.specs(rand.New(rand.NewPCG(1, 2)), dtype.Float32, dtype.Sum, 203, true)
			if quantized {
				q, err := quant.Lookup("minmax")
				require.NoError(t, err)
				for i := range specs {
					specs[i].Quantizer, specs[i].WireType = q, dtype.Uint8
				}
			}
			before := keep(specs)
			s := r.start(specs)
			for _, err := range s.wait(t) {
				require.NoError(t, err)
			}
			for i, op := range s.ops {
				require.NotEqual(t, before[i], specs[i].Dst)
				op.Finish(true)
				require.Equal(t, before[i], specs[i].Dst) // S2-31
			}
			for _, e := range r.eng {
				require.EqualValues(t, poolIdle(n), e.Buffers().InUse, "buffers were kept")
			}
			r.close()
		}
	}
}

// poolIdle: what an idle engine holds, one scratch buffer of 64+8 bytes in the smallest class.
func poolIdle(int) int64 { return 4096 }

// An abort ends the phase although nothing moves: both neighbours are stalled,
// a write is stuck in the middle of a frame and a read as well. Nothing of the
// user's memory is touched afterwards, the frame that was begun is completed
// with zeros, and the connection serves the next operation. Data spec, section
// 2.4.
func TestAbortWhileStuck(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	e := newEngine(Config{Backend: generic(t), Link: link.Config{FrameBytes: 1 << 20}})
	t.Cleanup(e.Close)
	prev, in := transporttest.Pair(transporttest.Options{Buffer: 1 << 20})
	out, next := transporttest.Pair(transporttest.Options{Buffer: 1000})
	e.hub.AddReceiver(ids[1], 0, in)
	e.hub.AddSender(ids[1], 0, out, link.Features{Native: false})
	const count = 100_000
	src := make([]byte, count)
	for i := range src {
		src[i] = byte(i)%251 + 1
	}
	before := append([]byte(nil), src...)
	op, err := e.NewOp(Spec{Tag: 3, Count: count, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src})
	require.NoError(t, err)
	done := make(chan error, 2)
	op.Start(Start{Seq: 4, Ring: ids, Self: ids[0], Done: func(err error) { done <- err }})
	frame := make([]byte, transport.HeaderSize+20_000)
	transport.Header{Payload: 50_000, Tag: 3, Stream: 4}.Put((*[transport.HeaderSize]byte)(frame))
	_, err = prev.Write(frame) // a part of the frame only
	require.NoError(t, err)
	require.Eventually(t, func() bool { return out.Written() == 1000 }, patience, time.Millisecond)
	require.Empty(t, done)
	op.Abort(errTest)
	require.ErrorIs(t, verdict(t, done), errTest) // S0-24, S4-12
	op.Finish(true)
	require.Equal(t, before, src)
	for i := range src {
		src[i] = 0xee // ours again: what is sent from now on must not come from here
	}

	// The rest of the frame is owed: the bytes taken from the buffer, then zeros.
	rd := transport.NewReader(next, 4096)
	h, err := rd.Next()
	require.NoError(t, err)
	require.Equal(t, transport.Header{Payload: 50_000, Tag: 3, Stream: 4}, h)
	p := make([]byte, h.Payload)
	for n := 0; n < len(p); {
		k, err := rd.Payload(p[n:])
		require.NoError(t, err)
		n += k
	}
	split := 1000 - transport.HeaderSize
	require.Equal(t, before[:split], p[:split])
	require.Equal(t, make([]byte, len(p)-split), p[split:])
	require.EqualValues(t, len(p)-split, e.Stats().PaddedBytes)
	require.Zero(t, e.Stats().Openers, "the neighbour has seen a frame")

	// The same for the receiving side: the rest of the old frame is skipped.
	_, err = prev.Write(make([]byte, 30_000))
	require.NoError(t, err)
	a := &alone{t: t, e: e, prev: prev, next: next, tx: out, rd: rd}
	small, res := []byte{1, 2}, make([]byte, 2)
	op, done = a.start(5, Spec{Tag: 3, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: small, Dst: res}, ids, ids[0])
	a.send(3, 5, []byte{10})
	a.send(3, 5, []byte{11})
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{11, 12}, res)
	op.Finish(false)
}

// Quirk Q23: whoever gives up before its first frame sends an opener, a frame of
// the tag with another stream number and one byte, unless the next peer is a
// gopccl end. In a world of three with two elements rank 2 has nothing to
// send at first.
func TestOpener(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1), uuid(2)}
	for _, native := range []bool{false, true} {
		for _, early := range []bool{false, true} {
			a := newAlone(t, Config{}, ids[1], ids[0], native)
			src := []byte{1, 2}
			op, err := a.e.NewOp(Spec{Tag: 77, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src})
			require.NoError(t, err)
			done := make(chan error, 2)
			if early {
				op.Abort(errTest) // before the start
			}
			op.Start(Start{Seq: 8, Ring: ids, Self: ids[2], Done: func(err error) { done <- err }})
			op.Abort(errTest)
			op.Abort(errors.New("second"))
			require.ErrorIs(t, verdict(t, done), errTest)
			op.Finish(true)
			if native {
				require.Zero(t, a.e.Stats().Openers)
				continue
			}
			h, p := a.recv()
			require.Equal(t, transport.Header{Payload: 1, Tag: 77, Stream: 8 | 1<<63}, h)
			require.Len(t, p, 1)
			a.e.Close()
			require.EqualValues(t, 1, a.e.Stats().Openers)
		}
	}
}

// The same for an operation whose frames stood behind another one's in the
// same write and never began.
func TestOpenerForFramesThatNeverLeft(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	e := newEngine(Config{Backend: generic(t), Link: link.Config{FrameBytes: 1 << 20}})
	t.Cleanup(e.Close)
	_, in := transporttest.Pair(transporttest.Options{})
	out, next := transporttest.Pair(transporttest.Options{Buffer: 1000})
	e.hub.AddReceiver(ids[1], 0, in)
	e.hub.AddSender(ids[1], 0, out, link.Features{Native: false})
	a := &alone{t: t, e: e, next: next, rd: transport.NewReader(next, 4096)}
	var ops []*Op
	var dones []chan error
	for tag := range uint64(3) {
		b := make([]byte, 100_000)
		op, done := a.start(tag, Spec{Tag: tag, Count: len(b), DType: dtype.Uint8, Op: dtype.Sum, Src: b, Dst: b}, ids, ids[0])
		ops, dones = append(ops, op), append(dones, done)
		require.Eventually(t, func() bool { return out.Written() == 1000 }, patience, time.Millisecond)
	}
	// The first one blocks the connection; the other two form the next batch.
	h, _ := a.recv()
	require.EqualValues(t, 0, h.Tag)
	require.Eventually(t, func() bool { return out.Written() > 51_000 }, patience, time.Millisecond)
	ops[2].Abort(errTest)
	require.ErrorIs(t, verdict(t, dones[2]), errTest)
	for i, want := range []transport.Header{{Payload: 50_000, Tag: 1, Stream: 1}, {Payload: 1, Tag: 2, Stream: 2 | 1<<63}} {
		h, _ := a.recv()
		require.Equal(t, want, h, "frame %d", i)
	}
	for i, op := range ops {
		op.Abort(errTest)
		if i < 2 {
			verdict(t, dones[i])
		}
		op.Finish(true)
	}
}

// stuckConn has writes that no deadline interrupts.
type stuckConn struct {
	net.Conn
	entered, leave chan struct{}
}

func (c stuckConn) Write(b []byte) (int, error) {
	c.entered <- struct{}{}
	<-c.leave
	return c.Conn.Write(b)
}

// done is not called while somebody still reads or writes the buffers: a kernel
// in the middle of a reduce, a write that does not come back.
func TestDoneWaitsForTheLastTouch(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	never := func(e *Engine, done chan error) {
		for range 5000 {
			runtime.Gosched()
			require.Zero(t, e.Stats().FailedOps)
		}
		require.Empty(t, done)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	slow := &tripwire{Backend: generic(t), hit: func() { entered <- struct{}{}; <-leave }}
	slow.at.Store(1)
	a := newAlone(t, Config{Backend: slow}, ids[1], ids[1], true)
	src := []byte{1, 2}
	op, done := a.start(1, Spec{Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src}, ids, ids[0])
	a.send(0, 1, []byte{9})
	<-entered
	op.Abort(errTest)
	never(a.e, done)
	close(leave)
	require.ErrorIs(t, verdict(t, done), errTest)
	op.Finish(true)
	require.Equal(t, []byte{1, 2}, src)

	e := newEngine(Config{Backend: generic(t)})
	t.Cleanup(e.Close)
	_, in := transporttest.Pair(transporttest.Options{})
	out, _ := transporttest.Pair(transporttest.Options{})
	stuck := stuckConn{out, make(chan struct{}), make(chan struct{})}
	e.hub.AddReceiver(ids[1], 0, in)
	e.hub.AddSender(ids[1], 0, stuck, link.Features{Native: true})
	a = &alone{t: t, e: e}
	op, done = a.start(1, Spec{Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src}, ids, ids[0])
	<-stuck.entered
	op.Abort(errTest)
	never(e, done)
	close(stuck.leave)
	require.ErrorIs(t, verdict(t, done), errTest)
	op.Finish(true)
}

// An opener from a neighbour, and frames of operations long gone, are skipped.
func TestStaleFramesAreSkipped(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], false)
	op, done := a.start(5, Spec{Tag: 2, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: []byte{1, 2}, Dst: make([]byte, 2)}, ids, ids[0])
	a.send(2, 5|1<<63, []byte{0})
	a.send(2, 4, make([]byte, 100_000))
	a.send(3, 5, []byte{1, 2, 3})
	a.send(2, 5, []byte{10})
	a.send(2, 5, []byte{11})
	require.NoError(t, verdict(t, done))
	op.Finish(false)
	require.EqualValues(t, 3, a.e.Stats().StaleFrames)
	require.EqualValues(t, 100_004, a.e.Stats().StaleBytes)
}

// Abort from many goroutines at any moment: done is called once, with the first reason.
func TestAbortRaces(t *testing.T) {
	r := newRing(t, shape{n: 3, cfg: Config{Link: link.Config{FrameBytes: 64}}})
	for round := range 200 {
		rng := rand.New(rand.NewPCG(uint64(round), 5))
		specs, _ := r.specs(rng, dtype.Float32, dtype.Sum, 60, true)
		before := keep(specs)
		r.seq++
		s := &started{}
		for i, spec := range specs {
			op, err := r.eng[i].NewOp(spec)
			require.NoError(t, err)
			c := make(chan error, 4)
			s.ops, s.errs = append(s.ops, op), append(s.errs, c)
			go op.Abort(errTest)
			op.Start(Start{Seq: r.seq, Ring: r.ids, Self: r.ids[i], Done: func(err error) { c <- err }})
			go op.Abort(errTest)
		}
		s.wait(t)
		for i, op := range s.ops {
			op.Finish(true)
			require.Equal(t, before[i], specs[i].Src)
		}
	}
	r.run(rand.New(rand.NewPCG(9, 5)), dtype.Float32, dtype.Sum, 60, true)
	r.close()
}

// Without a reason the error says canceled; a finished operation is left alone.
func TestAbortEdges(t *testing.T) {
	r := newRing(t, shape{n: 2})
	specs, want := r.specs(rand.New(rand.NewPCG(1, 5)), dtype.Float32, dtype.Sum, 60, false)
	s := r.start(specs)
	for _, err := range s.wait(t) {
		require.NoError(t, err)
	}
	s.ops[0].Abort(nil)
	s.ops[0].Finish(false)
	s.ops[0].Finish(true)
	s.ops[0].Abort(nil)
	require.Equal(t, want, specs[0].Dst)
	require.Empty(t, s.errs[0])

	op, err := r.eng[0].NewOp(specs[0])
	require.NoError(t, err)
	op.Abort(nil)
	op.Finish(true)
	op, err = r.eng[0].NewOp(specs[0])
	require.NoError(t, err)
	op.Abort(nil)
	done := make(chan error, 1)
	op.Start(Start{Seq: 100, Ring: r.ids, Self: r.ids[0], Native: true, Done: func(err error) { done <- err }})
	require.ErrorIs(t, verdict(t, done), errs.Canceled)
	op.Finish(true)
}
