package reduce

import (
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/transport"
)

func (op *Op) nextFrame(f *frame, batch int) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.failErr != nil || op.out.pos == op.out.total {
		return false
	}
	o := op.out.striped.Load()
	var p piece
	if o == nil {
		p, f.kind = op.nextInOrder()
	} else {
		p, f.kind = op.nextPiece(f, o, batch)
	}
	if p.n == 0 && f.kind != metaFrame {
		return false
	}
	f.of, f.step, f.off = op, p.step, p.off
	f.prompt = op.out.total <= promptTotal && !op.quantized()
	op.out.refs++
	if f.kind == metaFrame {
		return true
	}
	at := op.place(p.first) + p.off
	switch {
	case op.quantized():
		f.payload = op.code.wire[at : at+p.n]
	case op.source(p.step):
		f.payload = op.spec.Src[at : at+p.n]
	default:
		f.payload = op.spec.Dst[at : at+p.n]
	}
	if f.kind == dataFrame || !op.quantized() {
		op.putHeader(f)
	}
	op.out.pos += int64(p.n)
	op.out.bytes += uint64(p.n)
	return true
}

// nextInOrder takes what comes next in the stream of all steps, as much of it as
// is ready; nothing has no bytes. A frame is never empty and never crosses the end
// of a step (data spec, section 2.3). op.mu is held.
func (op *Op) nextInOrder() (piece, frameKind) {
	c := &op.out.at
	p := piece{step: c.step, first: c.first, off: c.off}
	avail := op.sendable() - op.out.pos
	if op.quantized() && !op.out.metaSent {
		if !op.metaReady(avail) {
			return p, dataFrame
		}
		op.out.metaSent = true
		return p, metaFrame
	}
	p.n = max(0, int(min(avail, int64(c.size-c.off), int64(op.piece))))
	if c.off += p.n; p.n > 0 && c.off == c.size {
		op.enter(c, c.step+1, true)
		op.out.metaSent = false
	}
	return p, dataFrame
}

// metaReady reports whether the metadata of the current send step can be had:
// in the reduce-scatter and for the own finished chunk it is computed from the
// whole chunk, afterwards it is what came with it.
func (op *Op) metaReady(avail int64) bool {
	c := &op.out.at
	if !op.forwards(c.step) {
		return avail >= int64(c.size)
	}
	from, _ := op.origin(c.step)
	return op.in.described.Load() > int64(from)
}

// putHeader writes the header of f, when the size of all is known.
func (op *Op) putHeader(f *frame) {
	stream := op.id.stream
	if f.kind == pieceFrame {
		stream |= stripeBit
	}
	size := len(f.head) - transport.HeaderSize + len(f.payload)
	transport.Header{Payload: size, Tag: op.spec.Tag, Stream: stream}.Put((*[transport.HeaderSize]byte)(f.head))
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
	if op.source(f.step) {
		local = s.Src
	}
	meta := op.stepMeta(f.step)
	switch f.kind {
	case metaFrame:
		f.head = op.appendMeta(f.head, meta)
		op.putHeader(f)
		return
	case pieceFrame: // in front of its data
		at := len(f.head)
		f.head = op.appendMeta(append(f.head, 0), meta)
		f.head[at] = byte(len(f.head) - at - 1)
		op.putHeader(f)
	}
	if op.forwards(f.step) {
		return // received bytes are forwarded as they are
	}
	place := func(off int) int { return (first + op.decoded(off, count)) * op.elem }
	end := f.off + len(f.payload)
	owned := op.owns(f.step)
	for at, block := f.off, op.encoded(blockElements); at < end; at += block {
		to := min(end, at+block)
		out, in := f.payload[at-f.off:to-f.off], local[place(at):place(to)]
		q.Quantize(s.DType, s.WireType, meta, out, in)
		if owned {
			// The owner adopts what everybody else will get.
			q.Dequantize(s.DType, s.WireType, meta, dtype.Set, in, out)
			if s.Op == dtype.Avg {
				op.e.cfg.Backend.Finalize(s.DType, in, op.n)
			}
		}
	}
	if owned {
		op.final(place(f.off), place(end))
	}
}

// params are those of the chunk that is sent in step. All of it was received.
func (op *Op) params(step int, chunk []byte) quant.Meta {
	s := &op.spec
	if g, ok := s.Quantizer.(quant.Gatherer); ok && !op.source(step) {
		from, _ := op.origin(step)
		if known := &op.code.gathered[from]; known.Elements == len(chunk)/op.elem {
			if m, ok := g.Gathering(s.DType, s.WireType, known); ok {
				return m
			}
		}
	}
	return s.Quantizer.Params(s.DType, s.WireType, chunk)
}

// stepMeta returns the metadata of what is sent in step. Whoever needs it first
// computes it.
func (op *Op) stepMeta(step int) *quant.Meta {
	sm := &op.out.metas[step]
	sm.once.Do(func() {
		if op.forwards(step) {
			from, _ := op.origin(step)
			sm.m = op.in.metas[from].m
		} else {
			first, count := op.chunk(step, true)
			local := op.spec.Dst
			if op.source(step) {
				local = op.spec.Src
			}
			sm.m = op.params(step, local[first*op.elem:(first+count)*op.elem])
		}
		op.mu.Lock()
		op.out.bytes += metaCost(&sm.m)
		op.mu.Unlock()
	})
	return &sm.m
}

// sentFrame: with PCCL ends in the ring the division of avg comes after a chunk was
// sent on.
func (op *Op) sentFrame(f *frame) {
	if op.spec.Op == dtype.Avg && op.dividesLate() && (op.owns(f.step) || op.forwards(f.step)) && !op.quantized() && !op.aborted.Load() {
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

func (op *Op) releaseFrame(f *frame, whole bool) (idle, over bool) {
	op.mu.Lock()
	defer op.mu.Unlock()
	o := &op.out
	o.refs--
	o.begun = o.begun || f.sent > 0
	o.short = o.short || !whole
	if o.refs > 0 {
		return false, false
	}
	if over = o.pos == o.total && op.failErr == nil && !o.short; over {
		o.done.Store(true)
	}
	return true, over
}

func (op *Op) openerFrame() (opener, bool) {
	op.mu.Lock()
	defer op.mu.Unlock()
	return opener{op.spec.Tag, op.id.stream}, op.openerDue()
}
