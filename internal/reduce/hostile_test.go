package reduce

import (
	"bytes"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Whatever a neighbour writes before it closes: the operation ends, nothing
// panics, memory stays bounded, the in-place buffer comes back.
func FuzzHostileNeighbour(f *testing.F) {
	frame := func(tag, stream uint64, p ...byte) []byte {
		b := make([]byte, transport.HeaderSize)
		transport.Header{Payload: len(p), Tag: tag, Stream: stream}.Put((*[transport.HeaderSize]byte)(b))
		return append(b, p...)
	}
	f.Add([]byte{}, false, false, false)
	f.Add(frame(1, 1, 1, 2, 3, 4), false, false, false)
	f.Add(append(frame(1, 1, 1, 2, 3), frame(1, 1, 4, 5, 6, 7, 8)...), false, false, false)
	f.Add(append(frame(1, 1, make([]byte, 40)...), frame(1, 1, make([]byte, 40)...)...), false, false, false)
	f.Add(frame(1, 2, 1), false, false, false)
	f.Add(frame(1, 1<<63, 1), true, false, false)
	f.Add(frame(1, 1, wire.AppendMeta(nil, &wire.DequantizationMeta{Kind: wire.MetaMinMax, DType: dtype.Float32, Max: 3})...), true, false, false)
	f.Add(append(frame(1, 1, wire.AppendMeta(nil, &wire.DequantizationMeta{Kind: wire.MetaMinMax, DType: dtype.Float32, Max: 3})...), frame(1, 1, make([]byte, 10)...)...), true, false, false)
	f.Add(bytes.Repeat([]byte{0xff}, 24), false, false, false)
	f.Add(make([]byte, 24), true, false, false)
	f.Add(append(frame(1, eagerBit|1, 1, 2, 3, 4), frame(1, eagerBit|2, make([]byte, 40)...)...), false, true, false)
	f.Add(append(frame(1, eagerBit|1, make([]byte, 40)...), frame(1, eagerBit|1, make([]byte, 40)...)...), false, true, false)
	f.Add(append(frame(2, eagerBit|1, 1), frame(1, 1, 1)...), true, true, false)
	meta := wire.AppendMeta(nil, &wire.DequantizationMeta{Kind: wire.MetaMinMax, DType: dtype.Float32, Max: 3})
	pieces := func(quantized bool, order ...int) (b []byte) {
		for _, step := range order { // each has one piece
			_, count := plan.Chunk(20, 3, plan.RecvChunk(0, 3, step))
			p, unit := stripeFrame(64, step, nil), 4
			if quantized {
				p, unit = append(append(p, byte(len(meta))), meta...), 1
			}
			b = append(b, frame(1, 1|stripeBit, append(p, make([]byte, count*unit)...)...)...)
		}
		return b
	}
	f.Add(pieces(false, 0, 1), false, false, true)
	f.Add(pieces(true, 0, 1, 2), true, true, true)
	f.Add(pieces(false, 3, 0), false, false, true)
	f.Add(pieces(true, 3, 0), true, true, true)
	f.Add(append(pieces(false, 0), frame(1, 1, make([]byte, 28)...)...), false, false, true)
	q, err := quant.Lookup("minmax")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, stream []byte, quantized, eager, native bool) {
		stream = stream[:min(len(stream), 1<<20)] // the connection holds it at once
		ids := []wire.UUID{uuid(0), uuid(1)}
		if native { // a third step brings the first chunk again
			ids = append(ids, uuid(2))
		}
		a := newAlone(t, Config{FutureWait: time.Millisecond}, ids[len(ids)-1], ids[1], native)
		src := floats(dtype.Float32, 1, 20)
		spec := Spec{Tag: 1, Count: 20, DType: dtype.Float32, Op: dtype.Sum, Src: src, Dst: src}
		if quantized {
			spec.Quantizer, spec.WireType = q, dtype.Uint8
		}
		op, err := a.e.NewOp(spec)
		require.NoError(t, err)
		done := make(chan error, 2)
		if eager {
			op.Start(Start{Epoch: 1, Eager: true, Ring: ids, Self: ids[0], Done: func(err error) { done <- err }})
			op.Commence(1)
		} else {
			op.Start(Start{Seq: 1, Ring: ids, Self: ids[0], Native: native, Done: func(err error) { done <- err }})
		}
		_, err = a.prev.Write(stream)
		require.True(t, err == nil || len(stream) >= transport.HeaderSize)
		a.prev.Close()
		verdict(t, done)
		op.Finish(true)
		require.Equal(t, floats(dtype.Float32, 1, 20), src)
		require.LessOrEqual(t, a.e.Buffers().PeakUsed, int64(4<<20))
		a.e.Close()
	})
}

// A listener sees every operation begin and end, with its error, and the loss
// of connections.
func TestTrace(t *testing.T) {
	var mu sync.Mutex
	var events []string
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, name(format, args...))
	}
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{Link: link.Config{Trace: &trace.Listener{
		OpStarted: func(tag, seq uint64) { note("start %d %d", tag, seq) },
		OpEnded:   func(tag, seq uint64, err error) { note("end %d %d %v", tag, seq, err != nil) },
		ConnLost: func(peer string, number uint32, send bool, err error) {
			note("lost %s %d %v", peer[:8], number, send)
		},
	}}}, ids[1], ids[1], true)
	spec := Spec{Tag: 4, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: []byte{1, 2}, Dst: make([]byte, 2)}
	_, done := a.start(1, spec, ids, ids[0])
	a.send(4, 1, []byte{1})
	a.send(4, 1, []byte{1})
	require.NoError(t, verdict(t, done))
	_, done = a.start(2, spec, ids, ids[0])
	a.prev.Close()
	require.Error(t, verdict(t, done))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"start 4 1", "end 4 1 false", "start 4 2", "lost 00000000 0 false", "end 4 2 true"}, events) // S4-10
	require.EqualValues(t, 1, a.e.Stats().ConnsLost)
	require.EqualValues(t, 2, a.e.Stats().Ops)
	require.EqualValues(t, 1, a.e.Stats().FailedOps)
}

// The roles of the data path can be told apart at run time: every goroutine
// carries a label with its role and its peer. A sender's begins with the first
// thing that nobody else can send.
func TestGoroutinesAreLabelled(t *testing.T) {
	a := newAlone(t, Config{}, uuid(7), uuid(8), true)
	labels := func() string {
		var b bytes.Buffer
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
		return b.String()
	}
	both := func() bool {
		text := labels()
		return strings.Contains(text, `"gopccl":"reader", "peer":"`+uuid(7).Short()) &&
			strings.Contains(text, `"gopccl":"watcher", "peer":"`+uuid(8).Short())
	}
	require.Eventually(t, both, patience, time.Millisecond) // S4-01, S4-04
	sender := `"gopccl":"sender", "peer":"` + uuid(8).Short()
	require.NotContains(t, labels(), sender)
	for _, c := range a.e.State().Conns {
		require.Equal(t, c.Role == "reader", c.Runs)
	}
	big := make([]byte, 1<<20)
	op, done := a.start(1, Spec{Tag: 4, Count: len(big), DType: dtype.Uint8, Op: dtype.Sum, Src: big, Dst: big}, []wire.UUID{uuid(7), uuid(0), uuid(8)}, uuid(0))
	require.Eventually(t, func() bool { return strings.Contains(labels(), sender) }, patience, time.Millisecond) // S4-03
	op.Abort(errTest)
	require.Error(t, verdict(t, done))
	a.e.Close()
	require.NotContains(t, labels(), `"gopccl"`)
}
