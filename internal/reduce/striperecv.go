package reduce

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// bind notes that pieces come on r, one of pool, and reports whether one of
// them has ended: what it lost before the first piece came was nobody's loss.
// Engine.mu is held.
func (op *Op) bind(pool []*receiver, r *receiver) (dead bool) {
	if slices.Contains(op.in.from, r) {
		return false
	}
	if op.in.from == nil {
		op.in.from = slices.Clip(pool)
	}
	if !slices.Contains(op.in.from, r) {
		op.in.from = append(op.in.from, r)
	}
	return slices.ContainsFunc(op.in.from, func(o *receiver) bool { return o.closed.Load() })
}

// split reports whether the operation comes as pieces. Engine.mu is held.
func (op *Op) split() bool { return op.in.from != nil }

// receivesOn reports whether the operation lacks what r loses. Engine.mu is held.
func (op *Op) receivesOn(r *receiver) bool {
	return op.in.receiver == r || slices.Contains(op.in.from, r)
}

func (op *Op) stripeError(r *receiver, format string, args ...any) error {
	return errs.New(errs.Protocol, opName, fmt.Errorf(format, args...)).
		WithPhase(fmt.Sprintf("tag %d, striped", op.spec.Tag)).WithPeer(r.peer.String())
}

// receivePiece processes the striped frame whose header r has just read. Several
// readers may be in it, each with a piece of its own.
func (op *Op) receivePiece(r *receiver) error {
	if !op.native {
		return op.stripeError(r, "a striped frame came in a group with PCCL ends")
	}
	b := r.scratch
	head := stripeHead
	if op.quantized() {
		head++
	}
	if r.rd.Left() <= head {
		return op.stripeError(r, "a striped frame has %d bytes of payload, %d are its head alone", r.rd.Left(), head)
	}
	if err := r.fill(op, b[:head]); err != nil {
		return err
	}
	g, index, metaSize := int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint32(b[4:])), int(b[head-1])
	var meta wire.DequantizationMeta
	if op.quantized() {
		if metaSize > wire.MaxMetaSize || r.rd.Left() <= metaSize {
			return op.stripeError(r, "metadata of %d bytes in front of a piece: do all peers pass the same quantization?", metaSize)
		}
		if err := r.fill(op, b[:metaSize]); err != nil {
			return err
		}
		var err error
		if meta, err = wire.DecodeMeta(b[:metaSize]); err == nil {
			err = op.spec.Quantizer.CheckMeta(op.spec.DType, op.spec.WireType, &meta)
		}
		if err != nil {
			return op.stripeError(r, "bad metadata: %w", err)
		}
	}
	p, err := op.claim(r, g, index, r.rd.Left(), &meta)
	if err != nil {
		return err
	}
	for off := p.off; off < p.off+p.n; {
		if op.aborted.Load() {
			return errAborted
		}
		n := min(p.off+p.n-off, op.piece)
		if err := op.processPart(r, p, off, n, &meta); err != nil {
			return err
		}
		off += n
	}
	more := op.completed(p)
	if op.out.striped.Load() == nil {
		r.notify(op.out.sender)
	} else {
		op.wake(more)
	}
	return nil
}

// claim checks what a striped frame says, and that nobody said it before. meta
// becomes that of the first piece of the step.
func (op *Op) claim(r *receiver, g, index, size int, meta *wire.DequantizationMeta) (piece, error) {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.in.striped == nil {
		if g < minFrameBytes || g%minFrameBytes != 0 || g > maxFrameBytes {
			return piece{}, op.stripeError(r, "pieces of %d bytes", g)
		}
		in := &inGrid{g: op.newGrid(g)}
		n := op.total(in.g)
		in.claimed, in.done = newBitset(n), newBitset(n)
		if op.inPlace {
			in.saved = newBitset(n)
		}
		for step := range plan.Steps(op.n) {
			_, count := op.chunk(step, false)
			in.missing += (count*op.unit + g - 1) / g
		}
		if op.quantized() {
			op.in.stepMetas = make([]*wire.DequantizationMeta, plan.Steps(op.n))
		}
		op.in.striped = in
	}
	in := op.in.striped
	if g != in.g.bytes {
		return piece{}, op.stripeError(r, "pieces of %d bytes after pieces of %d", g, in.g.bytes)
	}
	p, ok := op.at(in.g, index, false)
	if !ok {
		return piece{}, op.stripeError(r, "piece %d of %d", index, op.total(in.g))
	}
	if size != p.n {
		return piece{}, op.stripeError(r, "piece %d has %d bytes, not %d", index, size, p.n)
	}
	if in.claimed.has(index) {
		return piece{}, op.stripeError(r, "piece %d came twice", index)
	}
	// The neighbour has what overwrites a part again only through what this peer
	// made of that part before: two readers never write the same memory, and
	// what is saved is the original.
	if before := index - op.n*in.g.per; before >= 0 && !in.done.has(before) {
		return piece{}, op.stripeError(r, "piece %d came before piece %d, which it follows from", index, before)
	}
	in.claimed.add(index)
	op.in.bytes += uint64(p.n)
	if op.quantized() {
		op.claimMeta(p.step, meta)
	}
	return p, nil
}

// claimMeta: the first metadata of a step counts for all its pieces, so that
// everybody decodes, and forwards, the same. op.mu is held.
func (op *Op) claimMeta(step int, meta *wire.DequantizationMeta) {
	if first := op.in.stepMetas[step]; first != nil {
		*meta = *first
		return
	}
	m := *meta
	op.in.stepMetas[step] = &m
	op.in.bytes += metaCost(&m)
	if i := step + 1 - op.n; i >= 0 {
		op.code.forward[i] = m
	}
}

// processPart reads n bytes of piece p, from off of its chunk on, and puts them
// to their use.
func (op *Op) processPart(r *receiver, p piece, off, n int, meta *wire.DequantizationMeta) error {
	s := &op.spec
	from, to := (p.first+off/op.unit)*op.elem, (p.first+(off+n)/op.unit)*op.elem
	dst, local := s.Dst[from:to], s.Src[from:to]
	reduces := plan.Reduces(op.n, p.step)
	if op.quantized() {
		at := p.first*op.unit + off
		in := op.code.wire[at : at+n]
		if err := r.fill(op, in); err != nil {
			return err
		}
		if err := op.awaitPart(p, off+n); err != nil {
			return err
		}
		op.savePiece(p)
		if reduces {
			how := s.Op
			if how == dtype.Avg {
				how = dtype.Sum
			}
			quant.DequantizeFrom(s.Quantizer, s.DType, s.WireType, meta, how, dst, local, in)
			return nil
		}
		s.Quantizer.Dequantize(s.DType, s.WireType, meta, dtype.Set, dst, in)
		if s.Op == dtype.Avg {
			op.e.cfg.Backend.Finalize(s.DType, dst, op.n)
		}
		op.final(from, to)
		return nil
	}
	if !reduces {
		if err := op.awaitPart(p, off+n); err != nil {
			return err
		}
		op.savePiece(p)
		if err := r.fill(op, dst); err != nil {
			return err
		}
		op.final(from, to)
		return nil
	}
	in := r.scratch[:n]
	if err := r.fill(op, in); err != nil {
		return err
	}
	if err := op.awaitPart(p, off+n); err != nil {
		return err
	}
	op.savePiece(p)
	if err := op.combine(from, to, in, s.Op == dtype.Avg && op.lastReduce(p.step)); err != nil {
		return err
	}
	if op.lastReduce(p.step) {
		op.final(from, to)
	}
	return nil
}

// awaitPart waits for the local contribution to a part of a piece that ends at
// end of its chunk, in wire bytes.
func (op *Op) awaitPart(p piece, end int) error {
	if op.dev == nil {
		return nil
	}
	return op.dev.await(p.step, end/op.unit)
}

// savePiece keeps the original of a piece before it is overwritten for the
// first time, as save does in order. Its reader alone has the piece.
func (op *Op) savePiece(p piece) {
	if !op.inPlace || p.step > op.n-1 {
		return
	}
	op.mu.Lock()
	saved, backup := op.in.striped.saved.has(p.index), op.undo.backup
	op.mu.Unlock()
	if saved {
		return
	}
	if backup == nil {
		op.undo.once.Do(op.makeBackup)
	}
	from, to := op.extent(p)
	copy(op.undo.backup[from:to], op.spec.Dst[from:to])
	op.mu.Lock()
	op.in.striped.saved.add(p.index)
	op.mu.Unlock()
}

// extent returns where in the user's buffer a piece lies.
func (op *Op) extent(p piece) (from, to int) {
	return (p.first + p.off/op.unit) * op.elem, (p.first + (p.off+p.n)/op.unit) * op.elem
}

// restorePieces writes saved originals back.
func (op *Op) restorePieces() {
	if op.in.striped.saved == nil {
		return // out of place
	}
	for i := range op.total(op.in.striped.g) {
		if !op.in.striped.saved.has(i) {
			continue
		}
		p, _ := op.at(op.in.striped.g, i, false)
		from, to := op.extent(p)
		copy(op.spec.Dst[from:to], op.undo.backup[from:to])
	}
	clear(op.in.striped.saved)
}

// completed notes that p is processed and returns how many pieces that made
// ready to be sent.
func (op *Op) completed(p piece) (more int) {
	op.mu.Lock()
	defer op.mu.Unlock()
	in := op.in.striped
	in.done.add(p.index)
	in.missing--
	for ; in.front < op.total(in.g); in.front++ {
		q, ok := op.at(in.g, in.front, false)
		if !ok {
			continue
		}
		if !in.done.has(in.front) {
			break
		}
		in.pos += int64(q.n)
		if op.quantized() {
			op.in.metas.Store(int64(q.step) + 1)
		}
	}
	op.in.pos.Store(in.pos)
	if op.out.striped.Load() != nil {
		more = op.readyAfter(p)
	}
	return more
}
