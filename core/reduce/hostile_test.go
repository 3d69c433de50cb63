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
	"github.com/gopccl/gopccl/core/transport"
	"github.com/gopccl/gopccl/core/wire"
)

// Whatever a neighbour writes before it closes: the operation ends, nothing
// panics, memory stays bounded, the in-place buffer comes back.
func FuzzHostileNeighbour(f *testing.F) {
	frame := func(tag, stream uint64, p ...byte) []byte {
		b := make([]byte, transport.HeaderSize)
		transport.Header{Payload: len(p), Tag: tag, Stream: stream}.Put((*[transport.HeaderSize]byte)(b))
		return append(b, p...)
	}
	f.Add([]byte{}, false, false)
	f.Add(frame(1, 1, 1, 2, 3, 4), false, false)
	f.Add(append(frame(1, 1, 1, 2, 3), frame(1, 1, 4, 5, 6, 7, 8)...), false, false)
	f.Add(append(frame(1, 1, make([]byte, 40)...), frame(1, 1, make([]byte, 40)...)...), false, false)
	f.Add(frame(1, 2, 1), false, false)
	f.Add(frame(1, 1<<63, 1), true, false)
	f.Add(frame(1, 1, wire.AppendMeta(nil, &wire.DequantizationMeta{Kind: wire.MetaMinMax, DType: dtype.Float32, Max: 3})...), true, false)
	f.Add(append(frame(1, 1, wire.AppendMeta(nil, &wire.DequantizationMeta{Kind: wire.MetaMinMax, DType: dtype.Float32, Max: 3})...), frame(1, 1, make([]byte, 10)...)...), true, false)
	f.Add(bytes.Repeat([]byte{0xff}, 24), false, false)
	f.Add(make([]byte, 24), true, false)
	f.Add(append(frame(1, eagerBit|1, 1, 2, 3, 4), frame(1, eagerBit|2, make([]byte, 40)...)...), false, true)
	f.Add(append(frame(1, eagerBit|1, make([]byte, 40)...), frame(1, eagerBit|1, make([]byte, 40)...)...), false, true)
	f.Add(append(frame(2, eagerBit|1, 1), frame(1, 1, 1)...), true, true)
	q, err := quant.Lookup("minmax")
	require.NoError(f, err)
	ids := []wire.UUID{uuid(0), uuid(1)}
	f.Fuzz(func(t *testing.T, stream []byte, quantized, eager bool) {
		stream = stream[:min(len(stream), 1<<20)] // the connection holds it at once
		a := newAlone(t, Config{FutureWait: time.Millisecond}, ids[1], ids[1], false)
		src := floats(dtype.Float32, 1, 20)
		spec := Spec{Tag: 1, Count: 20, DType: dtype.Float32, Op: dtype.Sum, Src: src, Dst: src}
		if quantized {
			spec.Quantizer, spec.WireType = q, dtype.Uint8
		}
		var op *Op
		var done chan error
		if eager {
			op, done = a.startEager(1, spec, ids, ids[0])
			op.Commence(1)
		} else {
			op, done = a.start(1, spec, ids, ids[0])
		}
		_, err := a.prev.Write(stream)
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
// of connections. S4-10
func TestTrace(t *testing.T) {
	var mu sync.Mutex
	var events []string
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, name(format, args...))
	}
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{Trace: &trace.Listener{
		OpStarted: func(tag, seq uint64) { note("start %d %d", tag, seq) },
		OpEnded:   func(tag, seq uint64, err error) { note("end %d %d %v", tag, seq, err != nil) },
		ConnLost: func(peer string, number uint32, send bool, err error) {
			note("lost %s %d %v", peer[:8], number, send)
		},
	}}, ids[1], ids[1], true)
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
	require.Equal(t, []string{"start 4 1", "end 4 1 false", "start 4 2", "lost 00000000 0 false", "end 4 2 true"}, events)
	require.EqualValues(t, 1, a.e.Stats().ConnsLost)
	require.EqualValues(t, 2, a.e.Stats().Ops)
	require.EqualValues(t, 1, a.e.Stats().FailedOps)
}

// The roles of the data path can be told apart at run time: every goroutine
// carries a label with its role and its peer. A sender's begins with the first
// thing that nobody else can send. S4-01 S4-03 S4-04
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
	require.Eventually(t, both, patience, time.Millisecond)
	sender := `"gopccl":"sender", "peer":"` + uuid(8).Short()
	require.NotContains(t, labels(), sender)
	for _, c := range a.e.State().Conns {
		require.Equal(t, c.Role == "reader", c.Runs)
	}
	big := make([]byte, 1<<20)
	op, done := a.start(1, Spec{Tag: 4, Count: len(big), DType: dtype.Uint8, Op: dtype.Sum, Src: big, Dst: big}, []wire.UUID{uuid(7), uuid(0), uuid(8)}, uuid(0))
	require.Eventually(t, func() bool { return strings.Contains(labels(), sender) }, patience, time.Millisecond)
	op.Abort(errTest)
	require.Error(t, verdict(t, done))
	a.e.Close()
	require.NotContains(t, labels(), `"gopccl"`)
}
