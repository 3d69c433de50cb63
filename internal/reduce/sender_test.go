package reduce

import (
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// only returns the one connection to the next peer, and claims its batch.
func (a *alone) only(next wire.UUID) *sender {
	a.e.mu.Lock()
	s := a.e.tx[next][0]
	a.e.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = true
	return s
}

func (s *sender) fill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gather()
}

// An operation whose last frames were dropped because the connection has ended is
// not over: whoever noticed the end says why it has failed.
func TestDroppedFramesAreNotSent(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	s := a.only(ids[1])
	op, done := a.start(5, bytesSpec(2, 1, 2), ids, ids[0])
	a.send(2, 5, []byte{10})
	a.send(2, 5, []byte{11})
	require.Eventually(t, op.in.done.Load, patience, time.Millisecond)
	s.fill()
	require.Len(t, s.batch, 2)
	s.mu.Lock()
	s.cause = errTest // close is about to tell the engine
	s.mu.Unlock()
	s.conn.Close()
	s.retire(errTest, false)
	require.Empty(t, s.batch)
	require.False(t, op.out.done.Load())
	require.Empty(t, done)
	a.e.lost(ids[1], 0, true, errTest, func(op *Op) bool { return op.sendsOn(s) && !op.out.done.Load() })
	require.ErrorIs(t, verdict(t, done), errs.RankConnectionLost)
	op.Finish(true)
}

// Metadata of an operation that was aborted before it was computed is not sent:
// the next peer would take zeros for the fault of a healthy connection.
func TestAbortedMetadataIsNotSent(t *testing.T) {
	minmax, err := quant.Lookup("minmax")
	require.NoError(t, err)
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	s := a.only(ids[1])
	src := content(rand.New(rand.NewPCG(1, 1)), dtype.Float32, 20)
	spec := Spec{Tag: 2, Count: 20, DType: dtype.Float32, Op: dtype.Sum, Src: src, Dst: src, Quantizer: minmax, WireType: dtype.Uint8}
	op, done := a.start(5, spec, ids, ids[0])
	s.fill()
	require.NotEmpty(t, s.batch)
	require.Equal(t, metaFrame, s.batch[0].kind)
	op.Abort(errTest)
	require.False(t, s.prepare())
	s.retire(nil, false)
	require.Empty(t, s.batch)
	require.ErrorIs(t, verdict(t, done), errTest)
	op.Finish(true)
	// The connection carries the next one.
	s.mu.Lock()
	s.busy = false
	s.mu.Unlock()
	op, done = a.start(6, bytesSpec(2, 1, 2), ids, ids[0])
	for range 2 {
		if h, _ := a.recv(); h.Stream>>63 == 0 { // no opener
			require.Equal(t, transport.Header{Payload: 1, Tag: 2, Stream: 6}, h)
			break
		}
	}
	op.Abort(errTest)
	require.Error(t, verdict(t, done))
	op.Finish(true)
}

// The memory of a quantized operation is taken, and touched, by who makes it and
// not by who starts it.
func TestEncodedFormIsTakenEarly(t *testing.T) {
	minmax, err := quant.Lookup("minmax")
	require.NoError(t, err)
	e := NewEngine(Config{Backend: generic(t)})
	defer e.Close()
	src := make([]byte, 4<<20)
	op, err := e.NewOp(Spec{Count: 1 << 20, DType: dtype.Float32, Op: dtype.Sum, Src: src, Dst: src, Quantizer: minmax, WireType: dtype.Uint8})
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, e.Buffers().InUse)
	op.Finish(true)
	require.Zero(t, e.Buffers().InUse)
}

// A write that an abort ended before it moved anything says nothing of the speed.
func TestAbortedWritesMeasureNothing(t *testing.T) {
	s := &sender{}
	now := time.Unix(1000, 0)
	write := func(took time.Duration, n int) {
		start := now
		now = now.Add(took)
		s.observe(start, now, n)
	}
	write(time.Second, 1000)
	write(time.Second, 1000)
	require.Equal(t, 1000., s.speed())
	write(time.Second, 0)
	require.Equal(t, 1000., s.speed())
	write(time.Second, 1000)
	require.Equal(t, 500., s.speed(), "the time without a byte counts")
}

// A panic of a done function ends nothing but its goroutine's work, and Close
// comes back.
func TestDonePanics(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{Logger: slog.New(slog.DiscardHandler)}, ids[1], ids[1], true)
	op, err := a.e.NewOp(bytesSpec(2, 1, 2))
	require.NoError(t, err)
	op.Start(Start{Seq: 5, Ring: ids, Self: ids[0], Native: true, Done: func(error) { panic("the caller's") }})
	op.Abort(errTest)
	a.e.Close()
	require.Zero(t, a.e.State().Active)
}
