package reduce

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/internal/wire"
)

// alone is one engine whose neighbours are scripts on raw connections.
type alone struct {
	t    *testing.T
	e    *Engine
	prev *transporttest.Conn // the script writes here
	next *transporttest.Conn // and reads what the engine sends here
	tx   *transporttest.Conn // the engine's end towards next
	rd   *transport.Reader
}

func newAlone(t *testing.T, cfg Config, prev, next wire.UUID, native bool) *alone {
	if cfg.Backend == nil {
		cfg.Backend = generic(t)
	}
	a := &alone{t: t, e: newEngine(cfg)}
	a.e.hub.Trust(prev, next)
	a.e.ExpectEpoch(lastEpoch)
	big := transporttest.Options{Buffer: 4 << 20}
	var in *transporttest.Conn
	a.prev, in = transporttest.Pair(big)
	a.tx, a.next = transporttest.Pair(big)
	a.e.hub.AddReceiver(prev, 0, in)
	a.e.hub.AddSender(next, 0, a.tx, link.Features{Native: native})
	a.rd = transport.NewReader(a.next, 4096)
	t.Cleanup(a.e.Close)
	return a
}

// send writes one frame as the previous peer.
func (a *alone) send(tag, stream uint64, payload []byte) {
	b := make([]byte, transport.HeaderSize, transport.HeaderSize+len(payload))
	transport.Header{Payload: len(payload), Tag: tag, Stream: stream}.Put((*[transport.HeaderSize]byte)(b))
	_, err := a.prev.Write(append(b, payload...))
	require.NoError(a.t, err)
}

// recv reads one frame that the engine sent.
func (a *alone) recv() (transport.Header, []byte) {
	a.next.SetReadDeadline(time.Now().Add(patience))
	h, err := a.rd.Next()
	require.NoError(a.t, err)
	p := make([]byte, h.Payload)
	for n := 0; n < len(p); {
		k, err := a.rd.Payload(p[n:])
		require.NoError(a.t, err)
		n += k
	}
	return h, p
}

func (a *alone) start(seq uint64, spec Spec, ring []wire.UUID, self wire.UUID) (*Op, chan error) {
	op, err := a.e.NewOp(spec)
	require.NoError(a.t, err)
	done := make(chan error, 2)
	op.Start(Start{Seq: seq, Ring: ring, Self: self, Done: func(err error) { done <- err }})
	return op, done
}

func verdict(t *testing.T, done chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("done was not called")
		return nil
	}
}

type capture struct {
	Source string
	Ops    []struct {
		Trace     string
		Tag, Seq  uint64
		DType     string
		Op        string
		Quantizer string
		Wire      string
		InPlace   bool `json:"in_place"`
		Ring      []string
		First     []float64
		Count     int
		Frames    [][]string
		Tx, Rx    []uint64
		Out       []float64
	}
}

func floats(dt dtype.Type, first float64, n int) []byte {
	var b []byte
	for i := range n {
		if dt == dtype.Float32 {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(first)+float32(i)))
		} else {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(first+float64(i)))
		}
	}
	return b
}

// Every peer of the captured PCCL runs is replaced by ours in turn: fed with
// what its neighbour sent, it must send the bytes that PCCL sent (cut into
// frames differently), end with the same result and show the same counters.
// Data spec, sections 2.2, 4 and 5; captures of basic3, chunk8 and abort3.
func TestStandsInForPCCL(t *testing.T) {
	raw, err := os.ReadFile("testdata/pccl_frames.json")
	require.NoError(t, err)
	var c capture
	require.NoError(t, json.Unmarshal(raw, &c))
	for _, o := range c.Ops {
		dt, err := dtype.ParseType(o.DType)
		require.NoError(t, err)
		how, err := dtype.ParseOp(o.Op)
		require.NoError(t, err)
		q, err := quant.Lookup(o.Quantizer)
		require.NoError(t, err)
		wt := dt
		if q != nil {
			wt, err = dtype.ParseType(o.Wire)
			require.NoError(t, err)
		}
		var ids []wire.UUID
		for _, u := range o.Ring {
			b, err := hex.DecodeString(u)
			require.NoError(t, err)
			ids = append(ids, wire.UUID(b))
		}
		n := len(ids)
		for rank := range ids {
			t.Run(name("%s tag %d rank %d", o.Trace, o.Tag, rank), func(t *testing.T) {
				prev, next := (rank+n-1)%n, (rank+1)%n
				a := newAlone(t, Config{}, ids[prev], ids[next], false)
				src := floats(dt, o.First[rank], o.Count)
				dst := src
				if !o.InPlace {
					dst = make([]byte, len(src))
				}
				op, done := a.start(o.Seq, Spec{
					Tag: o.Tag, Count: o.Count, DType: dt, Op: how, Src: src, Dst: dst, Quantizer: q, WireType: wt,
				}, ids, ids[rank])
				// A neighbour cannot be ahead of what it needs from us: the
				// frames of a step follow our own of that step.
				theirs, ours := steps(t, o.Frames[prev], q != nil, n), steps(t, o.Frames[rank], q != nil, n)
				for s := range theirs {
					var got, want []byte
					for _, f := range ours[s] {
						want = append(want, f...)
					}
					for len(got) < len(want) {
						h, p := a.recv()
						require.Equal(t, []uint64{o.Tag, o.Seq}, []uint64{h.Tag, h.Stream})
						got = append(got, p...)
					}
					require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(got), "step %d", s)
					for _, f := range theirs[s] {
						a.send(o.Tag, o.Seq, f)
					}
				}
				require.NoError(t, verdict(t, done))
				for i, want := range o.Out {
					var got float64
					if dt == dtype.Float32 {
						got = float64(math.Float32frombits(binary.LittleEndian.Uint32(dst[4*i:])))
					} else {
						got = math.Float64frombits(binary.LittleEndian.Uint64(dst[8*i:]))
					}
					require.InDelta(t, want, got, 1e-6)
				}
				tx, rx := op.Counters()
				require.Equal(t, []uint64{o.Tx[rank], o.Rx[rank]}, []uint64{tx, rx})
				op.Finish(false)
			})
		}
	}
}

// steps cuts captured frames into the 2(n-1) steps: at the metadata frames, or
// into equal numbers of data frames.
func steps(t *testing.T, frames []string, quantized bool, n int) [][][]byte {
	var out [][][]byte
	per := len(frames) / plan.Steps(n)
	for i, f := range frames {
		b, err := hex.DecodeString(f)
		require.NoError(t, err)
		meta := len(b) >= 20 && b[0] == 0 && b[1] == 3
		if quantized && meta || !quantized && i%per == 0 {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], b)
	}
	require.Len(t, out, plan.Steps(n))
	return out
}

// Frames may be of any size from one byte, and need not end on an element (data
// spec, section 2.3); leftovers of other operations and openers lie between
// them. The neighbour of a ring of two is played by a script.
func TestAnyFrameCut(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		dt := []dtype.Type{dtype.Float32, dtype.Float64, dtype.Int16, dtype.Uint8}[seed%4]
		count := 1 + rng.IntN(200)
		inPlace := seed%3 == 0
		how := allOps[rng.IntN(len(allOps))]
		ids := []wire.UUID{uuid(0), uuid(1)}
		a := newAlone(t, Config{Link: link.Config{FrameBytes: 64}}, ids[1], ids[1], false)
		mine, theirs := content(rng, dt, count), content(rng, dt, count)
		want := oracle(a.e.cfg.Backend, dt, how, [][]byte{mine, theirs})
		unfinished := oracle(a.e.cfg.Backend, dt, map[bool]dtype.Op{true: dtype.Sum, false: how}[how == dtype.Avg], [][]byte{mine, theirs})
		dst := mine
		if !inPlace {
			dst = make([]byte, len(mine))
		}
		size := dt.Size()
		f1, n1 := plan.Chunk(count, 2, 1)
		_, n0 := plan.Chunk(count, 2, 0)
		cut := func(b []byte) {
			for len(b) > 0 {
				if rng.IntN(4) == 0 {
					a.send(9, 3, make([]byte, 1+rng.IntN(300)))
				}
				if rng.IntN(4) == 0 {
					a.send(9, 7|1<<63, []byte{0})
				}
				k := 1 + rng.IntN(min(len(b), 1+rng.IntN(150)))
				a.send(9, 7, b[:k])
				b = b[k:]
			}
		}
		op, done := a.start(7, Spec{Tag: 9, Count: count, DType: dt, Op: how, Src: mine, Dst: dst}, ids, ids[0])
		cut(theirs[f1*size : (f1+n1)*size])
		cut(unfinished[:n0*size])
		require.NoError(t, verdict(t, done))
		require.Equal(t, want, dst, "seed %d", seed)
		op.Finish(false)
		a.e.Close()
	}
}

// What a PCCL receiver asks of a sender, checked on every frame: never empty,
// never over the end of a step, one tag and sequence number. Data spec,
// sections 1.3 and 2.3, quirk Q24.
func TestFramesNeverCrossSteps(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	for _, count := range []int{1, 2, 3, 33, 1000, 5001} {
		a := newAlone(t, Config{Link: link.Config{FrameBytes: 512}}, ids[1], ids[1], false)
		src, dst := make([]byte, 4*count), make([]byte, 4*count)
		op, done := a.start(1, Spec{Tag: 2, Count: count, DType: dtype.Float32, Op: dtype.Sum, Src: src, Dst: dst}, ids, ids[0])
		_, n0 := plan.Chunk(count, 2, 0)
		_, n1 := plan.Chunk(count, 2, 1)
		read := func(left int) {
			for left > 0 {
				h, p := a.recv()
				require.Equal(t, transport.Header{Payload: len(p), Tag: 2, Stream: 1}, h)
				require.LessOrEqual(t, len(p), min(left, 512))
				left -= len(p)
			}
		}
		read(4 * n0)
		if n1 > 0 {
			a.send(2, 1, make([]byte, 4*n1))
			read(4 * n1)
		}
		a.send(2, 1, make([]byte, 4*n0))
		require.NoError(t, verdict(t, done))
		op.Finish(false)
		a.e.Close()
	}
}

// A frame of an operation that is not yet started here waits for its start.
func TestFutureFramesWait(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[1], ids[1], false)
	a.send(2, 5, []byte{10})
	a.send(2, 5, []byte{11})
	src, dst := []byte{1, 2}, make([]byte, 2)
	op, done := a.start(5, Spec{Tag: 2, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: dst}, ids, ids[0])
	require.NoError(t, verdict(t, done))
	require.Equal(t, []byte{11, 12}, dst)
	op.Finish(false)
}

// A frame that announces an operation which never starts is no reason to wait
// for ever: its connection ends.
func TestFutureFrameWaitIsBounded(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{FutureWait: time.Millisecond}, ids[1], ids[1], false)
	op, done := a.start(5, Spec{Tag: 2, Count: 2, DType: dtype.Uint8, Op: dtype.Sum, Src: []byte{1, 2}, Dst: make([]byte, 2)}, ids, ids[0])
	a.send(2, 1<<40, []byte{1})
	err := verdict(t, done)
	require.ErrorIs(t, err, errs.Protocol)
	require.ErrorContains(t, err, ids[1].String())
	op.Finish(true)
}

// Quirk Q24 as a receiver: a header that is not allowed, or a frame beyond the
// end of the step, fails the operation and ends the connection, naming the peer.
func TestBadFrames(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	header := func(length, tag, stream uint64) []byte {
		b := binary.BigEndian.AppendUint64(nil, length)
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, tag), stream)
	}
	for what, bytes := range map[string][]byte{
		"length 0":             header(0, 2, 1),
		"length below header":  header(15, 2, 1),
		"empty payload":        header(16, 2, 1),
		"huge":                 header(1<<30+1, 2, 1),
		"all ones":             header(math.MaxUint64, 2, 1),
		"over the end of step": append(header(16+3, 2, 1), 1, 2, 3),
		"far over the end":     header(1<<30, 2, 1),
	} {
		t.Run(what, func(t *testing.T) {
			a := newAlone(t, Config{}, ids[1], ids[1], false)
			src := []byte{1, 2, 3, 4}
			op, done := a.start(1, Spec{Tag: 2, Count: 4, DType: dtype.Uint8, Op: dtype.Sum, Src: src, Dst: src}, ids, ids[0])
			a.prev.Write(bytes)
			a.prev.SetReadDeadline(time.Now().Add(patience))
			_, err := a.prev.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF, "the connection must end")
			err = verdict(t, done)
			require.ErrorIs(t, err, errs.Protocol)
			op.Finish(true)
			require.Equal(t, []byte{1, 2, 3, 4}, src)
			require.ErrorContains(t, err, ids[1].String())
		})
	}
}

// A frame after the last step ends the connection. The operation itself has all
// its data and goes on sending.
func TestFrameAfterTheLastStep(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	a := newAlone(t, Config{}, ids[0], ids[0], false)
	block, _ := transporttest.Pair(transporttest.Options{Buffer: 1})
	a.e.hub.AddSender(ids[0], 0, block, link.Features{Native: false}) // keeps the operation from completing
	dst := make([]byte, 1)
	op, done := a.start(1, Spec{Tag: 2, Count: 1, DType: dtype.Uint8, Op: dtype.Sum, Src: []byte{1}, Dst: dst}, ids, ids[1])
	a.send(2, 1, []byte{5})
	a.send(2, 1, []byte{6})
	a.prev.SetReadDeadline(time.Now().Add(patience))
	_, err := a.prev.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the connection must end")
	require.Empty(t, done)
	op.Abort(errTest)
	require.ErrorIs(t, verdict(t, done), errTest)
	op.Finish(true)
	require.Equal(t, []byte{6}, dst)
}

// A quantized step that does not begin with sound metadata is a protocol error.
func TestBadMetadata(t *testing.T) {
	ids := []wire.UUID{uuid(0), uuid(1)}
	q, err := quant.Lookup("minmax")
	require.NoError(t, err)
	for what, payload := range map[string][]byte{
		"data first":   make([]byte, 200),
		"empty form":   append(append([]byte{0, 3}, make([]byte, 8)...), 0, 0),
		"one byte":     {3},
		"wrong type":   wire.AppendMeta(nil, &wire.DequantizationMeta{Kind: wire.MetaMinMax, DType: dtype.Float64, Max: 1}),
		"wrong kind":   wire.AppendMeta(nil, &wire.DequantizationMeta{Kind: wire.MetaZeroPoint, Scale: 1}),
		"wrong packet": append([]byte{0, 4}, make([]byte, 18)...),
	} {
		a := newAlone(t, Config{}, ids[1], ids[1], false)
		src := floats(dtype.Float32, 1, 400)
		op, done := a.start(1, Spec{
			Tag: 2, Count: 400, DType: dtype.Float32, Op: dtype.Sum, Src: src, Dst: src, Quantizer: q, WireType: dtype.Uint8,
		}, ids, ids[0])
		a.send(2, 1, payload)
		require.ErrorIs(t, verdict(t, done), errs.Protocol, what)
		op.Finish(true)
		require.Equal(t, floats(dtype.Float32, 1, 400), src)
		a.e.Close()
	}
}
