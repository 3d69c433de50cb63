package collective

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
)

var _ link.Sink = (*inLane)(nil)

func (l *inLane) Stopped() bool { return l.op.aborted.Load() }

func (l *inLane) Fail(err error) { l.op.fail(l.op.lost(l.peer, err)) }

func (l *inLane) Settle(async bool) { l.op.settle(async) }

func (l *inLane) Received() bool { return l.received.Load() }

func (l *inLane) BeginReceive(*link.Receiver) bool {
	op := l.op
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.state == running && op.failErr == nil
}

// enter lets r touch the memory of the operation until EndReceive. A reader that still waits for
// something else, such as the head of its frame, does not hold up the end of the operation.
func (l *inLane) enter(r *link.Receiver) bool {
	op := l.op
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.state != running || op.failErr != nil {
		return false
	}
	op.readers = append(op.readers, r)
	return true
}

func (l *inLane) EndReceive(r *link.Receiver) {
	op := l.op
	op.mu.Lock()
	at := slices.Index(op.readers, r)
	if at < 0 { // it did not enter
		op.mu.Unlock()
		return
	}
	op.readers = slices.Delete(op.readers, at, at+1)
	if op.failErr != nil {
		r.Resume()
	}
	op.mu.Unlock()
	op.settle(false)
}

// protocol is the error of a frame that is not as it should be.
func (op *Operation) protocol(r *link.Receiver, format string, args ...any) error {
	return errs.New(errs.Protocol, op.name, fmt.Errorf(format, args...)).
		WithPhase(fmt.Sprintf("tag %d", op.spec.Tag)).WithPeer(r.Peer().String())
}

// ReceiveFrame processes the piece in the frame whose header r has just read: it says its
// place. Several readers may be in a lane, each with a piece of its own. None of them
// waits for anything: what comes before its turn to be added is kept.
func (l *inLane) ReceiveFrame(r *link.Receiver, h transport.Header) error {
	op := l.op
	left := r.Left()
	if left < headBytes {
		return op.protocol(r, "a frame has %d bytes of payload, %d are its head alone", left, headBytes)
	}
	b := r.Scratch()[:headBytes]
	if err := r.Fill(l, b); err != nil {
		return err
	}
	size, index, total := int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint32(b[4:])), binary.BigEndian.Uint64(b[8:])
	if size&spareBit != 0 {
		return l.receiveSpared(r, h, size&^spareBit, index, total)
	}
	if err := l.expect(total); err != nil {
		return err
	}
	if !l.enter(r) {
		return link.ErrStopped
	}
	var meta []byte
	if op.quantized() {
		var err error
		if meta, err = l.readMeta(r); err != nil {
			return err
		}
	}
	p, ready, err := l.claim(r, size, index, r.Left())
	if err != nil {
		return err
	}
	seg := &l.segs[p.k]
	switch {
	case p.n == 0:
	case op.quantized():
		err = l.receiveEncoded(r, seg, p, meta)
	case seg.do == plan.Set:
		err = l.receiveSet(r, seg, p)
	case ready:
		err = l.receiveAdd(r, seg, p)
	default:
		if err = l.receiveAhead(r, seg, p); err == nil {
			if !l.turn(seg, p) {
				return nil
			}
			l.add(seg, p)
		}
	}
	if err != nil {
		return err
	}
	l.complete(r, p, false)
	return nil
}

// expect compares what a frame says of the bytes of the lane with what is known of them here.
// Another number ends the operation.
func (l *inLane) expect(total uint64) error {
	if total == l.extent {
		return nil
	}
	op := l.op
	why := fmt.Errorf("the peer sends %d bytes, %d are expected of it", total&(1<<extentBits-1), l.total)
	if total&(1<<extentBits-1) == uint64(l.total) {
		why = fmt.Errorf("the peer sends blocks of other sizes than are expected of it, %d bytes in all", l.total)
	}
	op.fail(errs.New(errs.Mismatch, op.name, why).
		WithPhase(fmt.Sprintf("tag %d", op.spec.Tag)).WithPeer(l.peer.String()).WithHint("pass counts on which both ends agree"))
	return link.ErrStopped
}

// claim checks what a frame says, and that it comes for the first time. ready: it may be
// added to what was there before.
func (l *inLane) claim(r *link.Receiver, size, index, bytes int) (p piece, ready bool, err error) {
	op := l.op
	op.mu.Lock()
	defer op.mu.Unlock()
	if l.piece == 0 {
		if err := l.measure(r, size); err != nil {
			return p, false, err
		}
	}
	if size != l.piece || l.spares != nil {
		return p, false, op.protocol(r, "pieces of %d bytes after pieces of %d", size, l.piece)
	}
	if index >= l.grid.total {
		return p, false, op.protocol(r, "piece %d of %d", index, l.grid.total)
	}
	p = l.at(l.segs, index)
	if bytes != p.n {
		return p, false, op.protocol(r, "piece %d has %d bytes, not %d", index, bytes, p.n)
	}
	if l.claimed.has(index) {
		return p, false, op.protocol(r, "piece %d came twice", index)
	}
	if !l.segs[p.k].gate.passed() {
		return p, false, op.protocol(r, "piece %d came before the result that it has to wait for", index)
	}
	return p, l.mark(p), nil
}

// mark notes that a piece came, and reports whether it may be added to what was there before.
// Operation.mu is held.
func (l *inLane) mark(p piece) (ready bool) {
	l.claimed.add(p.index)
	l.bytes += uint64(p.n)
	before := l.segs[p.k].after
	return before == nil || before.covered(p.off, p.off+p.n)
}

// measure cuts the lane into pieces of so many bytes. Operation.mu is held.
func (l *inLane) measure(r *link.Receiver, size int) error {
	if size < link.MinFrameBytes || size%l.op.align() != 0 || size > link.MaxFrameBytes {
		return l.op.protocol(r, "pieces of %d bytes", size)
	}
	l.grid = cut(l.segs, size)
	n := l.grid.total
	bits := newBitset(4 * ((n + 63) / 64 * 64))
	words := len(bits) / 4
	l.claimed, l.done, l.waiting, l.saved = bits[:words], bits[words:2*words], bits[2*words:3*words], bits[3*words:]
	l.coming, l.missing = n, n
	for k := range l.segs {
		l.segs[k].left = (l.segs[k].size + size - 1) / size
	}
	return nil
}

// receiveSet reads p straight to its place.
func (l *inLane) receiveSet(r *link.Receiver, seg *segment, p piece) error {
	l.save(seg, p)
	for off := p.off; off < p.off+p.n; off += partBytes {
		if l.op.aborted.Load() {
			return link.ErrStopped
		}
		if err := r.Fill(l, l.op.bytesAt(seg.at, off, min(partBytes, p.off+p.n-off))); err != nil {
			return err
		}
	}
	return nil
}

// receiveAdd reads p and adds it to what is there.
func (l *inLane) receiveAdd(r *link.Receiver, seg *segment, p piece) error {
	l.save(seg, p)
	most := min(partBytes, (len(r.Scratch())-link.ScratchExtra)&^63)
	for off := p.off; off < p.off+p.n; off += most {
		if l.op.aborted.Load() {
			return link.ErrStopped
		}
		in := r.Scratch()[:min(most, p.off+p.n-off)]
		if err := r.Fill(l, in); err != nil {
			return err
		}
		l.op.combine(seg, off, in)
	}
	return nil
}

// receiveAhead reads p to where it waits for its turn.
func (l *inLane) receiveAhead(r *link.Receiver, seg *segment, p piece) error {
	at := seg.wait + p.off
	return r.Fill(l, l.op.mem.wait.get(l.op.e)[at:at+p.n])
}

// turn reports whether it is p's turn to be added by now; if not, the reader that processes
// what comes before it adds it.
func (l *inLane) turn(seg *segment, p piece) bool {
	op := l.op
	op.mu.Lock()
	defer op.mu.Unlock()
	if seg.after.covered(p.off, p.off+p.n) {
		return true
	}
	l.waiting.add(p.index)
	l.read()
	return false
}

// read notes that a piece was read. Operation.mu is held.
func (l *inLane) read() {
	if l.coming--; l.coming == 0 {
		l.received.Store(true)
	}
}

// add adds a piece that has waited.
func (l *inLane) add(seg *segment, p piece) {
	op := l.op
	l.save(seg, p)
	for off := p.off; off < p.off+p.n && !op.aborted.Load(); off += partBytes {
		n := min(partBytes, p.off+p.n-off)
		op.combine(seg, off, op.mem.wait.b[seg.wait+off:seg.wait+off+n])
	}
}

// combine adds what came to the own contribution, or to what was added before; or the own
// contribution to what came. Where another member does the same instead of taking what this one
// has finished, a NaN is the same everywhere: processors make others.
func (op *Operation) combine(seg *segment, off int, in []byte) {
	s := &op.spec
	dst := op.bytesAt(seg.at, off, len(in))
	local := dst
	if seg.after == nil {
		local = op.mem.src[seg.src+off : seg.src+off+len(in)]
	}
	if seg.do == plan.Behind {
		local, in = in, local
	}
	op.e.cfg.Backend.Reduce(s.DType, s.Op, dst, local, in)
	if seg.do.Finishes() && s.Op == dtype.Avg {
		op.e.cfg.Backend.Finalize(s.DType, dst, op.n)
	}
	if op.both {
		oneNaN(s.DType, dst)
	}
}

// complete notes that p is processed: what waits for it is added, and what is sent of it
// may leave. waited: p has waited itself.
func (l *inLane) complete(r *link.Receiver, p piece, waited bool) {
	op := l.op
	seg := &l.segs[p.k]
	op.mu.Lock()
	if op.failErr != nil {
		op.mu.Unlock()
		return
	}
	if !waited {
		l.read()
	}
	l.done.add(p.index)
	if l.missing--; l.missing == 0 {
		op.pending--
	}
	seg.left--
	// With the lock under which p was marked: of two readers that complete the parts of
	// one piece to be sent, the last alone makes it ready.
	more := 0
	for i := range seg.sends {
		if s := &seg.sends[i]; p.n > 0 {
			more = max(more, s.out.readyAfter(s.k, p.off, p.off+p.n))
		}
	}
	opened := 0
	if seg.left == 0 {
		for i := range seg.opens {
			opened = max(opened, seg.opens[i].out.open(seg.opens[i].k))
		}
	}
	op.mu.Unlock()
	if p.n == 0 {
		return
	}
	for i := range seg.sends {
		seg.sends[i].out.wake(more, r)
	}
	if opened > 0 {
		for i := range seg.opens {
			seg.opens[i].out.wake(opened, r)
		}
	}
	if seg.adds == nil {
		return
	}
	next := seg.adds.in
	for {
		q, ok := next.unblocked(seg.adds.k, p)
		if !ok {
			return
		}
		next.add(&next.segs[q.k], q)
		next.complete(r, q, true)
	}
}

// unblocked takes a piece of segment k that waited for the bytes of p, if one may be added
// now.
func (l *inLane) unblocked(k int, p piece) (piece, bool) {
	op := l.op
	op.mu.Lock()
	defer op.mu.Unlock()
	if l.piece == 0 || op.failErr != nil {
		return piece{}, false
	}
	seg := &l.segs[k]
	for i := p.off / l.piece; i*l.piece < p.off+p.n; i++ {
		if !l.waiting.has(seg.first + i) {
			continue
		}
		if q := l.at(l.segs, seg.first+i); seg.after.covered(q.off, q.off+q.n) {
			l.waiting.del(q.index)
			return q, true
		}
	}
	return piece{}, false
}
