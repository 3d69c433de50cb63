package reduce

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/metadata"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

var _ link.Sink = (*inStream)(nil)

// Stopped and the others of its interface make an inStream the sink of what an
// operation receives.
func (i *inStream) Stopped() bool { return i.op.aborted.Load() }

func (i *inStream) Fail(err error) { i.op.fail(connError(i.op.prev, err)) }

func (i *inStream) Settle(async bool) { i.op.settle(async) }

func (i *inStream) Received() bool { return i.done.Load() }

func (i *inStream) BeginReceive(r *link.Receiver) bool {
	op := i.op
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.state != opRunning || op.failErr != nil {
		return false
	}
	if i.readers == nil {
		i.readers = i.alone[:0]
	}
	i.readers = append(i.readers, r)
	return true
}

func (i *inStream) EndReceive(r *link.Receiver) {
	op := i.op
	op.mu.Lock()
	at := slices.Index(i.readers, r)
	i.readers = slices.Delete(i.readers, at, at+1)
	if op.failErr != nil {
		r.Resume()
	}
	if i.striped != nil && i.striped.missing == 0 || i.at.step == len(op.comes) {
		i.done.Store(true)
	}
	op.mu.Unlock()
	op.settle(false)
}

func (i *inStream) ReceiveFrame(r *link.Receiver, h transport.Header) error {
	if isPiece(h.Stream) {
		return i.op.receivePiece(r)
	}
	return i.op.receiveInOrder(r)
}

// protocol is the error of a frame that is not as it should be; where names the
// part of the operation that it came for.
func (op *Op) protocol(r *link.Receiver, where, format string, args ...any) error {
	return errs.New(errs.Protocol, opName, fmt.Errorf(format, args...)).
		WithPhase(fmt.Sprintf("tag %d, %s", op.spec.Tag, where)).WithPeer(r.Peer().String())
}

// receiveInOrder processes the frame whose header r has just read, of a stream
// whose frames come one behind the other: its place is where the last one ended.
func (op *Op) receiveInOrder(r *link.Receiver) error {
	refuse := func(format string, args ...any) error {
		return op.protocol(r, fmt.Sprintf("step %d", op.in.at.step), format, args...)
	}
	c := &op.in.at
	left := r.Left()
	if c.step == len(op.comes) {
		return refuse("a frame of %d bytes came after the last step", left)
	}
	var meta *quant.Meta
	if op.quantized() {
		held := &op.in.metas[c.step]
		if meta = &held.m; !held.known {
			return op.receiveMeta(r, refuse)
		}
	}
	if left > c.size-c.off {
		return refuse("a frame of %d bytes reaches past the end of the step, which needs %d more", left, c.size-c.off)
	}
	op.in.bytes += uint64(left)
	for left > 0 {
		if op.aborted.Load() {
			return link.ErrStopped
		}
		p := piece{step: c.step, first: c.first, off: c.off, n: min(left, op.piece)}
		if err := op.receivePart(r, p, meta, true); err != nil {
			return err
		}
		c.off += p.n
		left -= p.n
		if c.off == c.size {
			op.enter(c, c.step+1, false)
			op.in.pos.Store(c.pos)
		} else {
			op.in.pos.Store(c.pos + int64(c.off-c.off%op.unit))
		}
		op.advanced(r)
	}
	return nil
}

// receiveMeta reads the metadata frame that opens a quantized step.
func (op *Op) receiveMeta(r *link.Receiver, refuse func(string, ...any) error) error {
	size := r.Left()
	if size > wire.MaxMetaSize {
		return refuse("a step of a quantized operation began with a frame of %d bytes, not with metadata: do all peers pass the same quantization?", size)
	}
	m, err := op.readMeta(r, size, refuse)
	if err != nil {
		return err
	}
	op.holdMeta(op.in.at.step, *m)
	op.in.described.Store(int64(op.in.at.step) + 1)
	op.advanced(r)
	return nil
}

// readMeta reads size bytes of metadata, at most wire.MaxMetaSize.
func (op *Op) readMeta(r *link.Receiver, size int, refuse func(string, ...any) error) (*quant.Meta, error) {
	if err := r.Fill(&op.in, r.Scratch()[:size]); err != nil {
		return nil, err
	}
	m, err := metadata.Read(r.Scratch()[:size], op.spec.Quantizer, op.spec.DType, op.spec.WireType)
	if err != nil {
		return nil, refuse("bad metadata: %w", err)
	}
	return &m, nil
}

// holdMeta keeps the first metadata of a step and returns it: it counts for the
// whole step, so that all decode, and forward, the same.
func (op *Op) holdMeta(step int, m quant.Meta) *quant.Meta {
	held := &op.in.metas[step]
	if !held.known {
		held.m, held.known = m, true
		op.in.bytes += metaCost(&m)
	}
	return &held.m
}

// receivePiece processes the striped frame whose header r has just read: the
// piece says its place. Several readers may be in it, each with a piece of its own.
func (op *Op) receivePiece(r *link.Receiver) error {
	refuse := func(format string, args ...any) error { return op.protocol(r, "striped", format, args...) }
	if !op.native {
		return refuse("a striped frame came in a group with PCCL peers")
	}
	b := r.Scratch()
	head := stripeHead
	if op.quantized() {
		head++
	}
	if r.Left() <= head {
		return refuse("a striped frame has %d bytes of payload, %d are its head alone", r.Left(), head)
	}
	if err := r.Fill(&op.in, b[:head]); err != nil {
		return err
	}
	g, index, metaSize := int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint32(b[4:])), int(b[head-1])
	var meta *quant.Meta
	if op.quantized() {
		if metaSize > wire.MaxMetaSize || r.Left() <= metaSize {
			return refuse("metadata of %d bytes in front of a piece: do all peers pass the same quantization?", metaSize)
		}
		var err error
		if meta, err = op.readMeta(r, metaSize, refuse); err != nil {
			return err
		}
	}
	p, held, err := op.claim(refuse, g, index, r.Left(), meta)
	if err != nil {
		return err
	}
	for part := p; part.off < p.off+p.n; part.off += part.n {
		if op.aborted.Load() {
			return link.ErrStopped
		}
		part.n = min(p.off+p.n-part.off, op.piece)
		if err := op.receivePart(r, part, held, false); err != nil {
			return err
		}
	}
	more := op.completed(index, p)
	if op.out.striped.Load() == nil {
		r.Notify(op.out.sender)
	} else {
		op.out.flows.Wake(more)
	}
	return nil
}

// advanced tells the senders how far the stream of all steps is processed.
func (op *Op) advanced(r *link.Receiver) {
	if op.out.striped.Load() == nil {
		r.Notify(op.out.sender)
		return
	}
	op.mu.Lock()
	more := op.readyUpTo(op.sendable())
	op.mu.Unlock()
	op.out.flows.Wake(more)
}

// receivePart reads the bytes of p, at most op.piece, and puts them to their use.
// In order parts may begin and end inside an element; pieces do not.
func (op *Op) receivePart(r *link.Receiver, p piece, meta *quant.Meta, inOrder bool) error {
	switch {
	case op.quantized():
		return op.receiveEncoded(r, p, meta, inOrder)
	case op.comes[p.step].Do.Reduces():
		return op.receiveReduce(r, p)
	default:
		return op.receiveSet(r, p)
	}
}

// receiveReduce reads p into scratch and combines the whole elements with the
// local contribution.
func (op *Op) receiveReduce(r *link.Receiver, p piece) error {
	carried := copy(r.Scratch(), op.in.carry[:op.in.carried])
	in := r.Scratch()[:carried+p.n]
	if err := r.Fill(&op.in, in[carried:]); err != nil {
		return err
	}
	off := p.off - carried
	whole := len(in) - len(in)%op.elem
	if err := op.awaitLocal(p.step, (off+whole)/op.elem); err != nil {
		return err
	}
	if whole > 0 {
		op.save(piece{p.step, p.first, off, whole})
		from := p.first*op.elem + off
		last := op.comes[p.step].Do == plan.Finish
		if err := op.combine(from, from+whole, in[:whole], last && op.spec.Op == dtype.Avg && !op.dividesLate()); err != nil {
			return err
		}
		if last && op.divided() {
			op.final(from, from+whole)
		}
	}
	if carried > 0 || whole < len(in) { // in order: one reader has it
		op.in.carried = copy(op.in.carry[:], in[whole:])
	}
	return nil
}

// receiveSet reads p straight into the user's buffer.
func (op *Op) receiveSet(r *link.Receiver, p piece) error {
	s := &op.spec
	if err := op.awaitLocal(p.step, 0); err != nil {
		return err
	}
	op.save(p)
	base := p.first * op.elem
	end := p.off + p.n
	if err := r.Fill(&op.in, s.Dst[base+p.off:base+end]); err != nil {
		return err
	}
	if s.Op == dtype.Avg && op.dividesLate() && p.step == len(op.comes)-1 {
		// Not sent on any more, so that it is divided here or never.
		from, to := p.off-p.off%op.elem, end-end%op.elem
		op.e.cfg.Backend.Finalize(s.DType, s.Dst[base+from:base+to], op.n)
		op.final(base+from, base+to)
	} else if op.divided() {
		op.final(base+p.off, base+end)
	}
	return nil
}

// receiveEncoded reads p, in wire form, to its place in op.code.wire and decodes
// the whole elements into the destination, or has the device do it.
func (op *Op) receiveEncoded(r *link.Receiver, p piece, meta *quant.Meta, inOrder bool) error {
	base := op.place(p.first)
	if err := r.Fill(&op.in, op.code.wire[base+p.off:base+p.off+p.n]); err != nil {
		return err
	}
	_, count := op.chunk(p.step, false)
	from, to := op.decoded(p.off, count), op.decoded(p.off+p.n, count)
	if from == to {
		return nil
	}
	if err := op.awaitLocal(p.step, to); err != nil {
		return err
	}
	if op.decodesResults() && !op.comes[p.step].Do.Reduces() {
		q := op.code.wire[base+op.encoded(from) : base+op.encoded(to)]
		op.finalEncoded((p.first+from)*op.elem, (p.first+to)*op.elem, q, meta)
		return nil
	}
	op.save(piece{p.step, p.first, op.encoded(from), op.encoded(to) - op.encoded(from)})
	for ; from < to; from = min(to, from+blockElements) {
		op.decode(p, from, min(to, from+blockElements), meta, inOrder)
	}
	return nil
}

// blockElements is how many elements of a quantized chunk go through all that
// is done with them before the next ones: a cache of the second level holds
// them, in memory and on the wire.
const blockElements = 16 * quant.GatherElements

// decode decodes the elements [from, to) of p's chunk into the destination.
func (op *Op) decode(p piece, from, to int, meta *quant.Meta, inOrder bool) {
	s, q := &op.spec, op.spec.Quantizer
	base := op.place(p.first)
	in := op.code.wire[base+op.encoded(from) : base+op.encoded(to)]
	dst := s.Dst[(p.first+from)*op.elem : (p.first+to)*op.elem]
	if !op.comes[p.step].Do.Reduces() {
		q.Dequantize(s.DType, s.WireType, meta, dtype.Set, dst, in)
		if s.Op == dtype.Avg {
			op.e.cfg.Backend.Finalize(s.DType, dst, op.n)
		}
		op.final((p.first+from)*op.elem, (p.first+to)*op.elem)
		return
	}
	how := s.Op
	if how == dtype.Avg {
		how = dtype.Sum
	}
	acc := dst
	if !op.inPlace {
		acc = s.Src[(p.first+from)*op.elem : (p.first+to)*op.elem]
	}
	quant.DequantizeFrom(q, s.DType, s.WireType, meta, how, dst, acc, in)
	if g, ok := q.(quant.Gatherer); ok && inOrder {
		op.gather(g, p, to)
	}
}

// gather lets the quantizer see the elements below to of p's chunk, which are
// sent in the next step, while they are in the cache.
func (op *Op) gather(g quant.Gatherer, p piece, to int) {
	s := &op.spec
	known := &op.code.gathered[p.step]
	if _, count := op.chunk(p.step, false); to < count {
		to -= to % quant.GatherElements
	}
	if known.Elements < to {
		g.Gather(s.DType, s.WireType, known, s.Dst[(p.first+known.Elements)*op.elem:(p.first+to)*op.elem])
	}
}

// awaitLocal waits until the local contribution to the first elements of the
// chunk of step is in host memory.
func (op *Op) awaitLocal(step, elements int) error {
	if op.dev == nil {
		return nil
	}
	return op.dev.await(step, elements)
}
