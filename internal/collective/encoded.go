package collective

import (
	"bytes"
	"sync"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/metadata"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// The blocks of a quantized all-gather or reduce-scatter travel encoded. Each is a row of
// groups (quant.Form) and begins with one. Segments and pieces of its lanes are cut in this
// form, and every frame brings the metadata of its block.
//
// A sum is encoded again at each hop, with parameters of all of it. A block that is gathered is
// encoded by its owner alone and passed on as it came. The owner takes what the
// others decode, so that all members have the same bits.

// code is the encoded form of a quantized operation.
type code struct {
	unit, group int    // bytes and elements of a group
	wire        []byte // all chunks
	places      []int  // where they lie in it
}

// description is the metadata of one block, as it travels and as the quantizer takes it.
type description struct {
	once sync.Once // of lanes out
	m    quant.Meta
	raw  [wire.MaxMetaSize]byte
	size int // of raw; 0: not known yet. Of lanes in guarded by Operation.mu
}

// usualChunk is the length of chunks with which a combination is checked before the group
// is known, and usualGroup the size of a group for which there is room from the start.
const (
	usualChunk = 1 << 20
	usualGroup = 256
)

func (op *Operation) quantized() bool { return op.spec.Quantizer != nil && op.n != 1 }

// adopts reports whether this member takes the decoded form of its own block.
func (op *Operation) adopts() bool { return op.quantized() && op.spec.Kind == plan.AllGather }

// checkQuantizer refuses what the quantizer cannot do with chunks of so many elements.
func (s *Spec) checkQuantizer(least int) error {
	if s.Quantizer == nil {
		return nil
	}
	if s.Kind != plan.AllGather && s.Kind != plan.ReduceScatter {
		return s.invalid("a quantizer belongs to an all-reduce, an all-gather or a reduce-scatter")
	}
	how := s.Op
	if !s.Kind.Combines() {
		how = dtype.Sum // no meaning
	}
	if err := quant.Check(s.Quantizer, s.DType, s.WireType, how, least, true); err != nil {
		return errs.New(errs.InvalidArgument, s.Kind.String(), err)
	}
	return nil
}

// least returns the elements of the smallest chunk that has any.
func (s *Spec) least(l *layout) int {
	least := usualChunk
	for _, c := range l.chunks {
		if c.size > 0 {
			least = min(least, c.size/s.DType.Size())
		}
	}
	return least
}

// whole is the size in bytes of the buffer that has the blocks of all members.
func (s *Spec) whole() int {
	if s.Kind == plan.ReduceScatter {
		return s.src().size
	}
	return s.dst().size
}

func (s *Spec) form() quant.Form { return quant.FormOf(s.Quantizer, s.DType, s.WireType) }

// setForm takes over how elements lie on the wire, and gets memory for them: now, on
// the caller's time, since the goroutine that calls Start has others to serve.
func (op *Operation) setForm() {
	if op.spec.Quantizer == nil {
		return
	}
	f := op.spec.form()
	op.code.unit, op.code.group = f.Bytes, f.Elements
	count := op.spec.whole() / op.spec.DType.Size()
	op.code.wire = op.e.link.Pool.Get((count/f.Elements + min(count, usualGroup)) * f.Bytes)
}

// makePlaces says where the encoded chunks lie.
func (op *Operation) makePlaces() {
	if !op.quantized() {
		return
	}
	at := 0
	op.code.places = make([]int, len(op.chunks))
	for i, c := range op.chunks {
		op.code.places[i] = at
		at += op.encoded(c.size)
	}
	if at > len(op.code.wire) {
		op.e.link.Pool.Put(op.code.wire)
		op.code.wire = op.e.link.Pool.Get(at)
	}
}

// encoded returns the bytes on the wire of so many bytes in memory, from the start of a
// chunk.
func (op *Operation) encoded(raw int) int {
	if !op.quantized() {
		return raw
	}
	n := raw / op.spec.DType.Size()
	return (n + op.code.group - 1) / op.code.group * op.code.unit
}

// decoded returns how many of the bytes in memory of s are whole within its first n bytes
// on the wire.
func (op *Operation) decoded(s *segment, n int) int {
	return min(n/op.code.unit*op.code.group*op.spec.DType.Size(), s.raw)
}

// span returns where in the memory of s the elements of p lie, and how many bytes they have.
func (op *Operation) span(s *segment, p piece) (from, n int) {
	if !op.quantized() {
		return p.off, p.n
	}
	from = op.decoded(s, p.off)
	return from, op.decoded(s, p.off+p.n) - from
}

// align is what sizes of pieces are multiples of.
func (op *Operation) align() int {
	if !op.quantized() {
		return link.MinFrameBytes
	}
	a, b := link.MinFrameBytes, op.code.unit
	for b != 0 {
		a, b = b, a%b
	}
	return link.MinFrameBytes / a * op.code.unit
}

// encode says of the segments of a quantized operation where they lie encoded, and who
// describes them.
func (op *Operation) encode(p *plan.Plan) {
	for i, l := range op.ins {
		l.metas = make([]description, len(l.segs))
		for k := range l.segs {
			l.segs[k].code = op.code.places[p.In[i].Segments[k].Chunk]
		}
	}
	for i, l := range op.outs {
		l.metas = make([]*description, len(l.segs))
		for k := range l.segs {
			s := &l.segs[k]
			s.code = op.code.places[p.Out[i].Segments[k].Chunk]
			s.encodes = s.after == nil || s.after.segment().do.Reduces()
			if s.encodes {
				l.metas[k] = &description{}
			} else {
				l.metas[k] = &s.after.in.metas[s.after.k]
			}
			if s.adopts = s.after == nil && op.adopts(); s.adopts {
				s.saves = op.keeps(op.chunks[op.own].dst, s.raw)
			}
		}
	}
}

// blockBytes is how much of a quantized block, in memory, goes through all that is done
// with it before the next: a cache of the second level holds it in both forms. It is a
// multiple of every group.
const blockBytes = 16 * quant.GatherElements * 8

// describe returns the metadata of segment k. The first goroutine that needs those of a
// segment that is encoded here computes them.
func (l *outLane) describe(k int) *description {
	d, s := l.metas[k], &l.segs[k]
	if !s.encodes {
		return d
	}
	d.once.Do(func() {
		op := l.op
		d.m = op.spec.Quantizer.Params(op.spec.DType, op.spec.WireType, op.bytesAt(s.at, 0, s.raw))
		d.size = len(metadata.Append(d.raw[:0], op.spec.Tag, &d.m))
	})
	return d
}

// PrepareFrame encodes what a quantized frame carries. It runs outside of all locks, frame
// after frame, on the owner of the batch.
func (l *outLane) PrepareFrame(f *link.Frame) {
	op := l.op
	if !op.quantized() {
		return
	}
	d, s := l.describe(f.Step), &l.segs[f.Step]
	f.Head = append(append(f.Head, byte(d.size)), d.raw[:d.size]...)
	size := len(f.Head) - transport.HeaderSize + len(f.Payload)
	transport.Header{Payload: size, Tag: op.spec.Tag, Stream: op.id.stream.Load()}.Put((*[transport.HeaderSize]byte)(f.Head))
	if !s.encodes {
		return // what came is passed on as it is
	}
	q, t, w := op.spec.Quantizer, op.spec.DType, op.spec.WireType
	p := piece{index: s.first + f.Off/l.piece, k: f.Step, off: f.Off, n: len(f.Payload)}
	from, n := op.span(s, p)
	adopted := 0
	if s.adopts {
		adopted = op.chunks[op.own].dst
	}
	if s.adopts && s.saves {
		op.keep(adopted+from, n)
		op.mu.Lock()
		l.saved.add(p.index)
		op.mu.Unlock()
	}
	for end := from + n; from < end; from += blockBytes {
		n := min(blockBytes, end-from)
		at := s.code + op.encoded(from)
		out := op.code.wire[at : at+op.encoded(n)]
		q.Quantize(t, w, &d.m, out, op.bytesAt(s.at, from, n))
		if s.adopts {
			q.Dequantize(t, w, &d.m, dtype.Set, op.mem.dst[adopted+from:adopted+from+n], out)
		}
	}
}

// readMeta reads the metadata in front of a piece, into the reader's scratch memory.
func (l *inLane) readMeta(r *link.Receiver) ([]byte, error) {
	op, b := l.op, r.Scratch()
	if r.Left() < 1 {
		return nil, op.protocol(r, "a piece of a quantized operation came without metadata: do all members pass the same quantization?")
	}
	if err := r.Fill(l, b[:1]); err != nil {
		return nil, err
	}
	size := int(b[0])
	if size < 1 || size > wire.MaxMetaSize || r.Left() <= size {
		return nil, op.protocol(r, "metadata of %d bytes in front of a piece: do all members pass the same quantization?", size)
	}
	return b[:size], r.Fill(l, b[:size])
}

// hold keeps the metadata of segment k, which came as raw. All pieces of it bring the same.
func (l *inLane) hold(r *link.Receiver, k int, raw []byte) (*description, error) {
	op, d := l.op, &l.metas[k]
	op.mu.Lock()
	known := d.size > 0
	op.mu.Unlock()
	if !known {
		m, err := metadata.Read(raw, op.spec.Quantizer, op.spec.DType, op.spec.WireType)
		if err != nil {
			return nil, op.protocol(r, "bad metadata: %w", err)
		}
		op.mu.Lock()
		if d.size == 0 {
			d.m, d.size = m, copy(d.raw[:], raw)
		}
		op.mu.Unlock()
	}
	if !bytes.Equal(d.raw[:d.size], raw) {
		return nil, op.protocol(r, "a piece of block %d came with other metadata than those before", k)
	}
	return d, nil
}

// receiveEncoded reads p to the place of its encoded form, block by block, and decodes it
// into its result, on top of the own contribution where it is a sum.
func (l *inLane) receiveEncoded(r *link.Receiver, seg *segment, p piece, raw []byte) error {
	d, err := l.hold(r, p.k, raw)
	if err != nil {
		return err
	}
	l.save(seg, p)
	op := l.op
	from, n := op.span(seg, p)
	for end := from + n; from < end; from += blockBytes {
		if op.aborted.Load() {
			return link.ErrStopped
		}
		n := min(blockBytes, end-from)
		at := seg.code + op.encoded(from)
		in := op.code.wire[at : at+op.encoded(n)]
		if err := r.Fill(l, in); err != nil {
			return err
		}
		op.decode(seg, &d.m, from, n, in)
	}
	return nil
}

// decode puts n bytes of a block, from on, to their place.
func (op *Operation) decode(seg *segment, m *quant.Meta, from, n int, in []byte) {
	s := &op.spec
	dst := op.bytesAt(seg.at, from, n)
	if seg.do == plan.Set {
		s.Quantizer.Dequantize(s.DType, s.WireType, m, dtype.Set, dst, in)
		return
	}
	how := s.Op
	if how == dtype.Avg {
		how = dtype.Sum
	}
	quant.DequantizeFrom(s.Quantizer, s.DType, s.WireType, m, how, dst, op.mem.src[seg.src+from:seg.src+from+n], in)
	if seg.do.Finishes() && s.Op == dtype.Avg {
		op.e.cfg.Backend.Finalize(s.DType, dst, op.n)
	}
}
