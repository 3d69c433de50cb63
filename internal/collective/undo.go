package collective

// undo keeps what an operation overwrites of its inputs, and of its outputs if they are
// to be preserved: piece by piece, before the first write to it. A piece that adds to
// what another one has left finds its place saved.
type undo struct {
	backup lazy // as long as Dst
	copied int  // bytes of the own block that are saved
}

// keeps reports whether bytes of Dst are to be saved before they are overwritten. Of data
// on a device that is for the platform.
func (op *Operation) keeps(off, size int) bool {
	if op.dev != nil {
		return false
	}
	return op.spec.Preserve || overlap(op.mem.src, op.mem.dst[off:off+size])
}

// save keeps the original of p, which the caller alone is about to overwrite.
func (l *inLane) save(seg *segment, p piece) {
	if !seg.saves || p.n == 0 {
		return
	}
	op := l.op
	op.keep(op.target(seg, p))
	op.mu.Lock()
	l.saved.add(p.index)
	op.mu.Unlock()
}

// keep saves n bytes of Dst.
func (op *Operation) keep(at, n int) {
	copy(op.undo.backup.get(op.e)[at:at+n], op.mem.dst[at:at+n])
}

// target returns where in Dst the elements of p lie, and how many bytes they have.
func (op *Operation) target(seg *segment, p piece) (at, n int) {
	from, n := op.span(seg, p)
	return seg.at.off + from, n
}

// restore writes the saved originals back. Nothing touches the memory any more.
func (op *Operation) restore() {
	b := op.undo.backup.b
	if b == nil {
		return
	}
	for _, l := range op.ins {
		for i := range l.grid.total {
			if !l.saved.has(i) {
				continue
			}
			p := l.at(l.segs, i)
			at, n := op.target(&l.segs[p.k], p)
			copy(op.mem.dst[at:at+n], b[at:at+n])
			l.saved.del(i)
		}
	}
	for _, l := range op.outs {
		for i := range len(l.saved) * 64 {
			if !l.saved.has(i) {
				continue
			}
			p := l.at(l.segs, i)
			from, n := op.span(&l.segs[p.k], p)
			at := op.chunks[op.own].dst + from
			copy(op.mem.dst[at:at+n], b[at:at+n])
			l.saved.del(i)
		}
	}
	if n := op.undo.copied; n > 0 {
		at := op.chunks[op.own].dst
		copy(op.mem.dst[at:at+n], b[at:at+n])
	}
}
