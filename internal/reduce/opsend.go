package reduce

import (
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// take makes f the next frame that may be sent. A frame is never empty and
// never crosses the end of a step (data spec, section 2.3). The caller is the
// owner of the batch and holds sender.mu.
func (op *Op) take(f *frame) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	c := &op.out.at
	if op.failErr != nil || op.out.pos == op.out.total {
		return false
	}
	avail := op.sendable() - op.out.pos
	f.step, f.off = c.step, c.off
	if op.spec.Quantizer != nil && !op.out.metaSent {
		if !op.metaReady(avail) {
			return false
		}
		op.out.metaSent = true
		op.out.refs++
		f.op, f.kind = op, metaFrame
		return true
	}
	n := int(min(avail, int64(c.size-c.off), int64(op.piece)))
	if n <= 0 {
		return false
	}
	transport.Header{Payload: n, Tag: op.spec.Tag, Stream: op.id.stream}.Put((*[transport.HeaderSize]byte)(f.head))
	at := c.first*op.unit + c.off
	switch {
	case op.spec.Quantizer != nil:
		f.payload = op.code.wire[at : at+n]
	case c.step == 0:
		f.payload = op.spec.Src[at : at+n]
	default:
		f.payload = op.spec.Dst[at : at+n]
	}
	f.op = op
	op.out.refs++
	op.out.pos += int64(n)
	op.out.bytes += uint64(n)
	if c.off += n; c.off == c.size {
		op.enter(c, c.step+1, true)
		op.out.metaSent = false
	}
	return true
}

// metaReady reports whether the metadata of the current send step can be had:
// in the reduce-scatter and for the own finished chunk it is computed from the
// whole chunk, afterwards it is what came with it.
func (op *Op) metaReady(avail int64) bool {
	c := &op.out.at
	if c.step < op.n {
		return avail >= int64(c.size)
	}
	return op.in.metas.Load() >= int64(c.step)
}

// prepare encodes what a quantized frame carries. It runs outside of all locks,
// frame after frame, on the owner of the batch.
func (op *Op) prepare(f *frame) {
	q := op.spec.Quantizer
	if q == nil {
		return
	}
	s := &op.spec
	first, count := op.chunk(f.step, true)
	local := s.Dst
	if f.step == 0 {
		local = s.Src
	}
	meta := &op.out.meta
	if f.kind == pieceFrame {
		meta = op.headMeta(f)
	}
	if f.kind == metaFrame {
		if f.step < op.n {
			op.out.meta = op.params(f.step, local[first*op.elem:(first+count)*op.elem])
		} else {
			op.out.meta = op.code.forward[f.step-op.n]
		}
		op.putMeta(f)
		return
	}
	if f.step >= op.n {
		return // received bytes are forwarded as they are
	}
	from := first + f.off/op.unit
	part := local[from*op.elem : (from+len(f.payload)/op.unit)*op.elem]
	for at := 0; at < len(f.payload); at += blockElements * op.unit {
		out := f.payload[at:min(len(f.payload), at+blockElements*op.unit)]
		in := part[at/op.unit*op.elem:][:len(out)/op.unit*op.elem]
		q.Quantize(s.DType, s.WireType, meta, out, in)
		if f.step == op.n-1 {
			// The owner adopts what everybody else will get.
			q.Dequantize(s.DType, s.WireType, meta, dtype.Set, in, out)
			if s.Op == dtype.Avg {
				op.e.cfg.Backend.Finalize(s.DType, in, op.n)
			}
		}
	}
	if f.step == op.n-1 {
		op.final(from*op.elem, (from+len(f.payload)/op.unit)*op.elem)
	}
}

// params are those of the chunk that is sent in step. All of it was received.
func (op *Op) params(step int, chunk []byte) wire.DequantizationMeta {
	s := &op.spec
	if g, ok := s.Quantizer.(quant.Gatherer); ok && step > 0 && op.code.gathered[step].Elements == len(chunk)/op.elem {
		if m, ok := g.Gathering(s.DType, s.WireType, &op.code.gathered[step]); ok {
			return m
		}
	}
	return s.Quantizer.Params(s.DType, s.WireType, chunk)
}

func (op *Op) putMeta(f *frame) {
	op.out.meta.Tag = op.spec.Tag
	b := wire.AppendMeta(f.head[:transport.HeaderSize], &op.out.meta)
	f.head = b
	transport.Header{Payload: len(b) - transport.HeaderSize, Tag: op.spec.Tag, Stream: op.id.stream}.Put((*[transport.HeaderSize]byte)(b))
	op.mu.Lock()
	op.out.bytes += metaCost(&op.out.meta)
	op.mu.Unlock()
}

// finishSent runs when the kernel has taken a frame whole. With PCCL ends in
// the ring the division of avg comes after a chunk was sent on.
func (op *Op) finishSent(f *frame) {
	if op.spec.Op == dtype.Avg && op.dividesLate() && f.step >= op.n-1 && op.spec.Quantizer == nil && !op.aborted.Load() {
		op.e.cfg.Backend.Finalize(op.spec.DType, f.payload, op.n)
		if op.dev != nil {
			first, _ := op.chunk(f.step, true)
			op.final(first*op.elem+f.off, first*op.elem+f.off+len(f.payload))
		}
	}
}

// dividesLate: every peer divides every element itself at the end, as PCCL
// does. Among gopccl ends the owner of a chunk divides it once before it
// travels; the bits are the same.
func (op *Op) dividesLate() bool { return !op.native || op.spec.Quantizer != nil }

// metaCost is what PCCL counts for a metadata frame (data spec, section 5).
func metaCost(m *wire.DequantizationMeta) uint64 {
	switch {
	case m.Kind == wire.MetaZeroPoint:
		return 27
	case m.DType == dtype.Float64:
		return 43
	default:
		return 35
	}
}

// lastReduce reports whether step finishes the owned chunk.
func (op *Op) lastReduce(step int) bool { return step == op.n-2 && plan.Reduces(op.n, step) }
