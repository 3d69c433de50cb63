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
	if op.reading == nil {
		op.reading = op.alone[:0]
	}
	op.reading = append(op.reading, r)
	return true
}

// endReceive takes that right back and ends the operation if this was the last frame.
func (op *Op) endReceive(r *receiver) {
	op.mu.Lock()
	i := slices.Index(op.reading, r)
	op.reading = slices.Delete(op.reading, i, i+1)
	if op.failErr != nil {
		r.conn.SetReadDeadline(time.Time{})
	}
	if op.in != nil && op.in.missing == 0 || op.recv.step == plan.Steps(op.n) {
		op.rxDone.Store(true)
	}
	op.mu.Unlock()
	op.settle(false)
}

func (op *Op) protocol(r *receiver, format string, args ...any) error {
	return errs.New(errs.Protocol, opName, fmt.Errorf(format, args...)).
		WithPhase(fmt.Sprintf("tag %d, step %d", op.spec.Tag, op.recv.step)).WithPeer(r.peer.String())
}

// receive processes the frame whose header r has just read.
func (op *Op) receive(r *receiver) error {
	c := &op.recv
	left := r.rd.Left()
	if c.step == plan.Steps(op.n) {
		return op.protocol(r, "a frame of %d bytes came after the last step", left)
	}
	if op.spec.Quantizer != nil && !op.gotMeta {
		return op.receiveMeta(r, left)
	}
	if left > c.size-c.off {
		return op.protocol(r, "a frame of %d bytes extends over the end of the step, which lacks %d", left, c.size-c.off)
	}
	op.rxBytes += uint64(left)
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
			op.gotMeta = false
			op.rxPos.Store(c.pos)
		} else {
			op.rxPos.Store(c.pos + int64(c.off-c.off%op.unit))
		}
		op.advanced(r)
	}
	return nil
}

// advanced tells the senders how far the stream of all steps is processed.
func (op *Op) advanced(r *receiver) {
	if op.out.Load() == nil {
		r.notify(op.tx)
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
	c, s := &op.recv, &op.spec
	k := copy(r.scratch, op.carry[:op.nCarry])
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
	op.nCarry = copy(op.carry[:], in[whole:])
	c.off += n
	return nil
}

// receiveSet reads n bytes straight into the user's buffer.
func (op *Op) receiveSet(r *receiver, n int) error {
	c, s := &op.recv, &op.spec
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

// receiveEncoded reads n bytes of wire form to their place in op.wire and
// decodes the whole elements into the destination.
func (op *Op) receiveEncoded(r *receiver, n int) error {
	c := &op.recv
	base := c.first * op.unit
	if err := r.fill(op, op.wire[base+c.off:base+c.off+n]); err != nil {
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
	in := op.wire[base+from*op.unit : base+to*op.unit]
	dst := s.Dst[(c.first+from)*op.elem : (c.first+to)*op.elem]
	if !plan.Reduces(op.n, c.step) {
		q.Dequantize(s.DType, s.WireType, &op.rxMeta, dtype.Set, dst, in)
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
	quant.DequantizeFrom(q, s.DType, s.WireType, &op.rxMeta, how, dst, acc, in)
	if g, ok := q.(quant.Gatherer); ok {
		known := &op.gathered[c.step+1]
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
	op.rxMeta = m
	op.gotMeta = true
	op.rxBytes += metaCost(&m)
	if i := op.recv.step + 1 - op.n; i >= 0 {
		op.forward[i] = m
	}
	op.rxMetas.Store(int64(op.recv.step) + 1)
	op.advanced(r)
	return nil
}

// save keeps the original of the first upTo elements of the current step's
// chunk before they are overwritten, once. Every region is overwritten for the
// first time in steps 0 .. n-1; later it holds results.
func (op *Op) save(upTo int) {
	if !op.inPlace || op.recv.step > op.n-1 {
		return
	}
	end := op.recv.elems + int64(upTo)
	if end <= op.saved {
		return
	}
	if op.backup == nil {
		op.takeBackup()
	}
	from := (op.recv.first + int(op.saved-op.recv.elems)) * op.elem
	to := (op.recv.first + upTo) * op.elem
	copy(op.backup[from:to], op.spec.Dst[from:to])
	op.saved = end
}

// takeBackup gets the memory for originals. All of it is touched, which may take
// long: no lock is held meanwhile.
func (op *Op) takeBackup() {
	b := op.e.cfg.Pool.Get(len(op.spec.Dst))
	op.mu.Lock()
	op.backup = b
	op.mu.Unlock()
}

// restore writes the saved originals back.
func (op *Op) restore() {
	if op.in != nil {
		op.restorePieces()
		return
	}
	left := op.saved
	for step := 0; left > 0; step++ {
		first, count := op.chunk(step, false)
		n := int(min(left, int64(count)))
		from, to := first*op.elem, (first+n)*op.elem
		copy(op.spec.Dst[from:to], op.backup[from:to])
		left -= int64(n)
	}
	op.saved = 0
}
