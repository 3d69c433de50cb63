package reduce

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// beginReceive lets r touch the buffers; false: the operation is over, the
// frame is stale.
func (op *Op) beginReceive(r *receiver) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.state != opRunning || op.failErr != nil {
		return false
	}
	if op.in.readers == nil {
		op.in.readers = op.in.alone[:0]
	}
	op.in.readers = append(op.in.readers, r)
	return true
}

// endReceive takes that right back and ends the operation if this was the last frame.
func (op *Op) endReceive(r *receiver) {
	op.mu.Lock()
	i := slices.Index(op.in.readers, r)
	op.in.readers = slices.Delete(op.in.readers, i, i+1)
	if op.failErr != nil {
		r.conn.SetReadDeadline(time.Time{})
	}
	if op.in.striped != nil && op.in.striped.missing == 0 || op.in.at.step == plan.Steps(op.n) {
		op.in.done.Store(true)
	}
	op.mu.Unlock()
	op.settle(false)
}

func (op *Op) protocol(r *receiver, format string, args ...any) error {
	return errs.New(errs.Protocol, opName, fmt.Errorf(format, args...)).
		WithPhase(fmt.Sprintf("tag %d, step %d", op.spec.Tag, op.in.at.step)).WithPeer(r.peer.String())
}

// receive processes the frame whose header r has just read.
func (op *Op) receive(r *receiver) error {
	c := &op.in.at
	left := r.rd.Left()
	if c.step == plan.Steps(op.n) {
		return op.protocol(r, "a frame of %d bytes came after the last step", left)
	}
	if op.spec.Quantizer != nil && !op.in.gotMeta {
		return op.receiveMeta(r, left)
	}
	if left > c.size-c.off {
		return op.protocol(r, "a frame of %d bytes extends over the end of the step, which lacks %d", left, c.size-c.off)
	}
	op.in.bytes += uint64(left)
	for left > 0 {
		if op.aborted.Load() {
			return errAborted
		}
		n := min(left, op.piece)
		var err error
		switch {
		case op.spec.Quantizer != nil:
			err = op.receiveEncoded(r, n)
		case plan.Reduces(op.n, c.step):
			err = op.receiveReduce(r, n)
		default:
			err = op.receiveSet(r, n)
		}
		if err != nil {
			return err
		}
		left -= n
		if c.off == c.size {
			op.enter(c, c.step+1, false)
			op.in.gotMeta = false
			op.in.pos.Store(c.pos)
		} else {
			op.in.pos.Store(c.pos + int64(c.off-c.off%op.unit))
		}
		op.advanced(r)
	}
	return nil
}

// advanced tells the senders how far the stream of all steps is processed.
func (op *Op) advanced(r *receiver) {
	if op.out.striped.Load() == nil {
		r.notify(op.out.sender)
		return
	}
	op.mu.Lock()
	more := op.readyUpTo(op.sendable())
	op.mu.Unlock()
	op.wake(more)
}

// receiveReduce reads n bytes into scratch and combines the whole elements with
// the local contribution. Frames may end inside an element.
func (op *Op) receiveReduce(r *receiver, n int) error {
	c, s := &op.in.at, &op.spec
	k := copy(r.scratch, op.in.carry[:op.in.carried])
	in := r.scratch[:k+n]
	if err := r.fill(op, in[k:]); err != nil {
		return err
	}
	whole := len(in) - len(in)%op.elem
	if op.dev != nil {
		if err := op.dev.await(c.step, (c.off-k+whole)/op.elem); err != nil {
			return err
		}
	}
	if whole > 0 {
		from := c.first*op.elem + c.off - k
		op.save((c.off - k + whole) / op.elem)
		divide := s.Op == dtype.Avg && !op.dividesLate() && op.lastReduce(c.step)
		if err := op.combine(from, from+whole, in[:whole], divide); err != nil {
			return err
		}
		if op.lastReduce(c.step) && op.divided() {
			op.final(from, from+whole)
		}
	}
	op.in.carried = copy(op.in.carry[:], in[whole:])
	c.off += n
	return nil
}

// receiveSet reads n bytes straight into the user's buffer.
func (op *Op) receiveSet(r *receiver, n int) error {
	c, s := &op.in.at, &op.spec
	if op.dev != nil {
		if err := op.dev.await(c.step, 0); err != nil {
			return err
		}
	}
	op.save((c.off + n + op.elem - 1) / op.elem)
	base := c.first * op.elem
	if err := r.fill(op, s.Dst[base+c.off:base+c.off+n]); err != nil {
		return err
	}
	if s.Op == dtype.Avg && op.dividesLate() && c.step == plan.Steps(op.n)-1 {
		// Not sent on any more, so nobody divides it later.
		from, to := c.off-c.off%op.elem, c.off+n
		to -= to % op.elem
		op.e.cfg.Backend.Finalize(s.DType, s.Dst[base+from:base+to], op.n)
		op.final(base+from, base+to)
	} else if op.divided() {
		op.final(base+c.off, base+c.off+n)
	}
	c.off += n
	return nil
}

// receiveEncoded reads n bytes of wire form to their place in op.code.wire and
// decodes the whole elements into the destination.
func (op *Op) receiveEncoded(r *receiver, n int) error {
	c := &op.in.at
	base := c.first * op.unit
	if err := r.fill(op, op.code.wire[base+c.off:base+c.off+n]); err != nil {
		return err
	}
	from, to := c.off/op.unit, (c.off+n)/op.unit
	c.off += n
	if from == to {
		return nil
	}
	if op.dev != nil {
		if err := op.dev.await(c.step, to); err != nil {
			return err
		}
	}
	op.save(to)
	for ; from < to; from = min(to, from+blockElements) {
		op.decode(c, from, min(to, from+blockElements))
	}
	return nil
}

// blockElements is how many elements of a quantized chunk go through all that
// is done with them before the next ones: a cache of the second level holds
// them, in memory and on the wire.
const blockElements = 16 * quant.GatherElements

// decode decodes the elements [from, to) of the current step's chunk into the
// destination.
func (op *Op) decode(c *cursor, from, to int) {
	s, q := &op.spec, op.spec.Quantizer
	base := c.first * op.unit
	in := op.code.wire[base+from*op.unit : base+to*op.unit]
	dst := s.Dst[(c.first+from)*op.elem : (c.first+to)*op.elem]
	if !plan.Reduces(op.n, c.step) {
		q.Dequantize(s.DType, s.WireType, &op.in.meta, dtype.Set, dst, in)
		if s.Op == dtype.Avg {
			op.e.cfg.Backend.Finalize(s.DType, dst, op.n)
		}
		op.final((c.first+from)*op.elem, (c.first+to)*op.elem)
		return
	}
	how := s.Op
	if how == dtype.Avg {
		how = dtype.Sum
	}
	acc := dst
	if !op.inPlace {
		acc = s.Src[(c.first+from)*op.elem : (c.first+to)*op.elem]
	}
	quant.DequantizeFrom(q, s.DType, s.WireType, &op.in.meta, how, dst, acc, in)
	if g, ok := q.(quant.Gatherer); ok {
		known := &op.code.gathered[c.step+1]
		whole := to
		if to*op.unit < c.size {
			whole = to - to%quant.GatherElements
		}
		if known.Elements < whole {
			g.Gather(s.DType, s.WireType, known, s.Dst[(c.first+known.Elements)*op.elem:(c.first+whole)*op.elem])
		}
	}
}

// receiveMeta reads the metadata frame that opens a quantized step.
func (op *Op) receiveMeta(r *receiver, size int) error {
	if size > wire.MaxMetaSize {
		return op.protocol(r, "a step of a quantized operation began with a frame of %d bytes, not with metadata: do all peers pass the same quantization?", size)
	}
	var b [wire.MaxMetaSize]byte
	if err := r.fill(op, r.scratch[:size]); err != nil {
		return err
	}
	copy(b[:], r.scratch[:size])
	m, err := wire.DecodeMeta(b[:size])
	if err == nil {
		err = op.spec.Quantizer.CheckMeta(op.spec.DType, op.spec.WireType, &m)
	}
	if err != nil {
		return op.protocol(r, "bad metadata: %w", err)
	}
	op.in.meta = m
	op.in.gotMeta = true
	op.in.bytes += metaCost(&m)
	if i := op.in.at.step + 1 - op.n; i >= 0 {
		op.code.forward[i] = m
	}
	op.in.metas.Store(int64(op.in.at.step) + 1)
	op.advanced(r)
	return nil
}

// save keeps the original of the first upTo elements of the current step's
// chunk before they are overwritten, once. Every region is overwritten for the
// first time in steps 0 .. n-1; later it holds results.
func (op *Op) save(upTo int) {
	if !op.inPlace || op.in.at.step > op.n-1 {
		return
	}
	end := op.in.at.elems + int64(upTo)
	if end <= op.undo.saved {
		return
	}
	if op.undo.backup == nil {
		op.makeBackup()
	}
	from := (op.in.at.first + int(op.undo.saved-op.in.at.elems)) * op.elem
	to := (op.in.at.first + upTo) * op.elem
	copy(op.undo.backup[from:to], op.spec.Dst[from:to])
	op.undo.saved = end
}

// makeBackup gets the memory for originals. All of it is touched, which may take
// long: no lock is held meanwhile.
func (op *Op) makeBackup() {
	b := op.e.cfg.Pool.Get(len(op.spec.Dst))
	op.mu.Lock()
	op.undo.backup = b
	op.mu.Unlock()
}

// restore writes the saved originals back.
func (op *Op) restore() {
	if op.in.striped != nil {
		op.restorePieces()
		return
	}
	left := op.undo.saved
	for step := 0; left > 0; step++ {
		first, count := op.chunk(step, false)
		n := int(min(left, int64(count)))
		from, to := first*op.elem, (first+n)*op.elem
		copy(op.spec.Dst[from:to], op.undo.backup[from:to])
		left -= int64(n)
	}
	op.undo.saved = 0
}
