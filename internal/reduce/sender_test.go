package reduce

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// nextAlone takes a frame of an operation that is in a ring and on no connection.
func (op *Op) nextAlone(t *testing.T) *link.Frame {
	f := &link.Frame{Head: make([]byte, transport.HeaderSize, link.HeadBytes)}
	require.True(t, op.out.NextFrame(f, 0))
	return f
}

// An operation whose last frames were dropped because the connection has ended is
// not over: the loss of the connection says why it has failed.
func TestDroppedFramesAreNotSent(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	e := newEngine(Config{Backend: generic(t)})
	defer e.Close()
	for _, whole := range []bool{true, false} {
		op, err := e.NewOp(bytesSpec(2, 1, 2))
		require.NoError(t, err)
		require.NoError(t, op.enterRing(ids, ids[0]))
		first := op.nextAlone(t)
		require.False(t, op.out.NextFrame(&link.Frame{}, 0), "nothing has come")
		op.in.pos.Store(op.in.total)
		last := op.nextAlone(t)
		idle, over := op.out.ReleaseFrame(first, true)
		require.Equal(t, []bool{false, false}, []bool{idle, over})
		idle, over = op.out.ReleaseFrame(last, whole)
		require.Equal(t, []bool{true, whole}, []bool{idle, over})
		require.Equal(t, whole, op.out.done.Load())
		op.Finish(false)
	}
}

// Metadata of an operation that was aborted before it was computed is not sent:
// the next peer would take zeros for the fault of a healthy connection.
func TestAbortedMetadataIsNotSent(t *testing.T) {
	minmax, err := quant.Lookup("minmax")
	require.NoError(t, err)
	ids := []wire.UUID{uuid(0), uuid(1)}
	e := newEngine(Config{Backend: generic(t)})
	defer e.Close()
	src := content(rand.New(rand.NewPCG(1, 1)), dtype.Float32, 20)
	op, err := e.NewOp(Spec{Tag: 2, Count: 20, DType: dtype.Float32, Op: dtype.Sum, Src: src, Dst: src, Quantizer: minmax, WireType: dtype.Uint8})
	require.NoError(t, err)
	require.NoError(t, op.enterRing(ids, ids[0]))
	f := op.nextAlone(t)
	require.Equal(t, metaFrame, f.Kind)
	require.Len(t, f.Head, transport.HeaderSize, "it is computed outside of locks")
	op.Abort(errTest)
	require.True(t, op.out.Stopped(), "so that the connection drops it")
	require.False(t, op.out.NextFrame(&link.Frame{}, 0))
	op.Finish(true)
}

// The memory of a quantized operation is taken, and touched, by who makes it and
// not by who starts it.
func TestEncodedFormIsTakenEarly(t *testing.T) {
	minmax, err := quant.Lookup("minmax")
	require.NoError(t, err)
	e := newEngine(Config{Backend: generic(t)})
	defer e.Close()
	src := make([]byte, 4<<20)
	op, err := e.NewOp(Spec{Count: 1 << 20, DType: dtype.Float32, Op: dtype.Sum, Src: src, Dst: src, Quantizer: minmax, WireType: dtype.Uint8})
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, e.Buffers().InUse)
	op.Finish(true)
	require.Zero(t, e.Buffers().InUse)
}

// A panic of a done function ends nothing but its goroutine's work, and Close
// comes back.
func TestDonePanics(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], true)
	op, err := a.e.NewOp(bytesSpec(2, 1, 2))
	require.NoError(t, err)
	op.Start(Start{Seq: 5, Ring: ids, Self: ids[0], Native: true, Done: func(error) { panic("the caller's") }})
	op.Abort(errTest)
	a.e.Close()
	require.Zero(t, a.e.State().Active)
}
