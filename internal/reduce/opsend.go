package reduce

import (
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/metadata"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Kinds of frames.
const (
	dataFrame uint8 = iota
	pieceFrame
	metaFrame
)

// A piece's name and the metadata before its data fit in a frame's head.
const _ = uint(link.HeadBytes - (transport.HeaderSize + stripeHead + 1 + wire.MaxMetaSize))

var _ link.Source = (*outStream)(nil)

// Stopped and the others of its interface make an outStream the source of what an
// operation sends.
func (o *outStream) Stopped() bool { return o.op.aborted.Load() }

func (o *outStream) Fail(err error) { o.op.fail(connError(o.op.next, err)) }

func (o *outStream) Settle(async bool) { o.op.settle(async) }

func (o *outStream) RouseBest() { o.flows.RouseBest() }

func (o *outStream) NextFrame(f *link.Frame, batch int) bool {
	op := o.op
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.failErr != nil || o.pos == o.total {
		return false
	}
	var p piece
	if grid := o.striped.Load(); grid == nil {
		p, f.Kind = op.nextInOrder()
	} else {
		p, f.Kind = op.nextPiece(f, grid, batch)
	}
	if p.n == 0 && f.Kind != metaFrame {
		return false
	}
	if o.limited {
		o.credit -= int64(p.n) + link.HeadBytes
	}
	f.Step, f.Off = p.step, p.off
	f.Prompt = o.total <= link.PromptTotal && !op.quantized()
	if f.Kind == metaFrame {
		o.refs++
		return true
	}
	at := op.place(p.first) + p.off
	switch {
	case op.comesEncoded(p.step):
		f.Payload = op.dev.encoded[p.off : p.off+p.n]
	case op.quantized():
		f.Payload = op.code.wire[at : at+p.n]
	case op.source(p.step):
		f.Payload = op.spec.Src[at : at+p.n]
	default:
		f.Payload = op.spec.Dst[at : at+p.n]
	}
	if f.Kind == dataFrame || !op.quantized() {
		op.putHeader(f)
	}
	o.refs++ // a panic before would leave a reference that nobody gives back
	o.pos += int64(p.n)
	o.bytes += uint64(p.n)
	return true
}

// nextInOrder takes what comes next in the stream of all steps, as much of it as
// is ready; nothing has no bytes. A frame is never empty and never crosses the end
// of a step (data spec, section 2.3). op.mu is held.
func (op *Op) nextInOrder() (piece, uint8) {
	c := &op.out.at
	p := piece{step: c.step, first: c.first, off: c.off}
	avail := op.sendable() - op.out.pos
	most := int64(op.piece)
	if op.out.limited {
		if most = min(most, op.out.credit-link.HeadBytes); most < int64(op.align()) {
			return p, dataFrame
		}
		most -= most % int64(op.align())
	}
	if op.quantized() && !op.out.metaSent {
		if !op.metaReady(avail) {
			return p, dataFrame
		}
		op.out.metaSent = true
		return p, metaFrame
	}
	p.n = max(0, int(min(avail, int64(c.size-c.off), most)))
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
	switch {
	case op.source(c.step) && op.dev != nil && op.dev.described:
		return avail > 0
	case !op.forwards(c.step):
		return avail >= int64(c.size)
	}
	from, _ := op.origin(c.step)
	return op.in.described.Load() > int64(from)
}

// putHeader writes the header of f, when the size of all is known.
func (op *Op) putHeader(f *link.Frame) {
	stream := op.id.stream.Load()
	if f.Kind == pieceFrame {
		stream |= stripeBit
	}
	size := len(f.Head) - transport.HeaderSize + len(f.Payload)
	transport.Header{Payload: size, Tag: op.spec.Tag, Stream: stream}.Put((*[transport.HeaderSize]byte)(f.Head))
}

// PrepareFrame encodes what a quantized frame carries. It runs outside of all locks,
// frame after frame, on the owner of the batch.
func (o *outStream) PrepareFrame(f *link.Frame) {
	op := o.op
	q := op.spec.Quantizer
	if q == nil {
		return
	}
	s := &op.spec
	first, count := op.chunk(f.Step, true)
	local := s.Dst
	if op.source(f.Step) {
		local = s.Src
	}
	meta := op.stepMeta(f.Step)
	switch f.Kind {
	case metaFrame:
		f.Head = metadata.Append(f.Head, op.spec.Tag, meta)
		op.putHeader(f)
		return
	case pieceFrame: // in front of its data
		at := len(f.Head)
		f.Head = metadata.Append(append(f.Head, 0), op.spec.Tag, meta)
		f.Head[at] = byte(len(f.Head) - at - 1)
		op.putHeader(f)
	}
	if op.forwards(f.Step) || op.comesEncoded(f.Step) {
		return // received bytes are forwarded as they are
	}
	place := func(off int) int { return (first + op.decoded(off, count)) * op.elem }
	end := f.Off + len(f.Payload)
	owned := op.owns(f.Step)
	adopts := owned && !op.decodesResults()
	for at, block := f.Off, op.encoded(blockElements); at < end; at += block {
		to := min(end, at+block)
		out, in := f.Payload[at-f.Off:to-f.Off], local[place(at):place(to)]
		q.Quantize(s.DType, s.WireType, meta, out, in)
		if adopts {
			// The owner adopts what the other peers will get.
			q.Dequantize(s.DType, s.WireType, meta, dtype.Set, in, out)
			if s.Op == dtype.Avg {
				op.e.cfg.Backend.Finalize(s.DType, in, op.n)
			}
		}
	}
	switch {
	case adopts:
		op.final(place(f.Off), place(end))
	case owned:
		op.finalEncoded(place(f.Off), place(end), f.Payload, meta)
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

// stepMeta returns the metadata of what is sent in step. The first goroutine that
// needs it computes it.
func (op *Op) stepMeta(step int) *quant.Meta {
	sm := &op.out.metas[step]
	sm.once.Do(func() {
		switch {
		case op.forwards(step):
			from, _ := op.origin(step)
			sm.m = op.in.metas[from].m
		case op.source(step) && op.dev != nil && op.dev.described:
			sm.m = op.dev.stage.Params()
		default:
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

// SentFrame: with PCCL peers in the ring the division of avg comes after a chunk was
// sent on.
func (o *outStream) SentFrame(f *link.Frame) {
	op := o.op
	if op.spec.Op == dtype.Avg && op.dividesLate() && (op.owns(f.Step) || op.forwards(f.Step)) && !op.quantized() && !op.aborted.Load() {
		op.e.cfg.Backend.Finalize(op.spec.DType, f.Payload, op.n)
		if op.dev != nil {
			first, _ := op.chunk(f.Step, true)
			op.final(first*op.elem+f.Off, first*op.elem+f.Off+len(f.Payload))
		}
	}
}

// dividesLate: every peer divides every element itself at the end, as PCCL
// does. Among gopccl peers the owner of a chunk divides it once before it
// travels; the bits are the same.
func (op *Op) dividesLate() bool { return !op.native || op.spec.Quantizer != nil }

func (o *outStream) ReleaseFrame(f *link.Frame, whole bool) (idle, over bool) {
	op := o.op
	op.mu.Lock()
	defer op.mu.Unlock()
	o.refs--
	o.begun = o.begun || f.Begun()
	o.short = o.short || !whole
	if o.refs > 0 {
		return false, false
	}
	if over = o.pos == o.total && op.failErr == nil && !o.short; over {
		o.done.Store(true)
	}
	return true, over
}

func (o *outStream) Opener() (link.Opener, bool) {
	op := o.op
	op.mu.Lock()
	defer op.mu.Unlock()
	return link.Opener{Tag: op.spec.Tag, Stream: op.id.stream.Load()}, op.openerDue()
}
