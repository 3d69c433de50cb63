package reduce

import (
	"slices"

	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
)

// bind notes that pieces come on r, one of the pool of the previous peer, and
// reports whether one of them has ended: no operation has heard of a loss before its
// first piece came. Engine.mu is held.
func (op *Op) bind(r *link.Receiver) (dead bool) {
	if slices.Contains(op.in.from, r) {
		return false
	}
	if op.in.from == nil {
		op.in.from, _ = link.Expect(op.e.hub.Receivers(op.prev))
	}
	if !slices.Contains(op.in.from, r) {
		op.in.from = append(op.in.from, r)
	}
	_, dead = link.Expect(op.in.from)
	return dead
}

// without takes r, which has ended and brought nothing, off an operation that may have
// waited for it. rest is what the pool has beside it. Engine.mu is held.
func (op *Op) without(r *link.Receiver, rest []*link.Receiver) {
	if i := slices.Index(op.in.from, r); i >= 0 {
		op.in.from = slices.Delete(slices.Clone(op.in.from), i, i+1)
	}
	if op.in.receiver == r {
		op.in.receiver = rest[0]
	}
}

// split reports whether the operation comes as pieces. Engine.mu is held.
func (op *Op) split() bool { return op.in.from != nil }

// receivers returns the connections that the operation needs. Engine.mu is held.
func (op *Op) receivers() []*link.Receiver {
	if op.in.receiver == nil || slices.Contains(op.in.from, op.in.receiver) {
		return op.in.from
	}
	return append(slices.Clip(op.in.from), op.in.receiver)
}

// failFrom fails the operation because a connection that it needs has ended. No lock is held.
func (op *Op) failFrom() {
	op.e.mu.Lock()
	from := op.receivers() // which nobody changes
	op.e.mu.Unlock()
	op.fail(op.unlinked(op.prev, link.Missing("a connection from the previous peer of the ring has ended", link.WhyEnded(from))))
}

// receivesOn reports whether the operation lacks what r loses. Engine.mu is held.
func (op *Op) receivesOn(r *link.Receiver) bool {
	return op.in.receiver == r || slices.Contains(op.in.from, r)
}

// claim checks what a striped frame says, and that it comes for the first time. meta
// becomes that of the first piece of the step.
func (op *Op) claim(refuse func(string, ...any) error, g, index, size int, meta *quant.Meta) (piece, *quant.Meta, error) {
	op.mu.Lock()
	defer op.mu.Unlock()
	bad := func(format string, args ...any) (piece, *quant.Meta, error) {
		return piece{}, nil, refuse(format, args...)
	}
	if op.in.striped == nil {
		if g < link.MinFrameBytes || g%op.align() != 0 || g > link.MaxFrameBytes {
			return bad("pieces of %d bytes", g)
		}
		in := &inGrid{g: op.newGrid(g)}
		n := op.total(in.g)
		in.claimed, in.done = newBitset(n), newBitset(n)
		for step := range op.comes {
			_, count := op.chunk(step, false)
			in.missing += (op.encoded(count) + g - 1) / g
		}
		if op.inPlace {
			op.cutUndo(g)
		}
		op.in.striped = in
	}
	in := op.in.striped
	if g != in.g.bytes {
		return bad("pieces of %d bytes after pieces of %d", g, in.g.bytes)
	}
	p, ok := op.at(in.g, index, false)
	if !ok {
		return bad("piece %d of %d", index, op.total(in.g))
	}
	if size != p.n {
		return bad("piece %d has %d bytes, not %d", index, size, p.n)
	}
	if in.claimed.has(index) {
		return bad("piece %d came twice", index)
	}
	// The neighbour has what overwrites a part again only through what this peer
	// made of that part before: two readers never write the same memory, and
	// what is saved is the original.
	if before := index - op.n*in.g.per; before >= 0 && !in.done.has(before) {
		return bad("piece %d came before piece %d, which it follows from", index, before)
	}
	in.claimed.add(index)
	op.in.bytes += uint64(p.n)
	if op.quantized() {
		meta = op.holdMeta(p.step, *meta)
	}
	return p, meta, nil
}

// completed notes that p, whose index is given, is processed and returns how many pieces that made
// ready to be sent.
func (op *Op) completed(index int, p piece) (more int) {
	op.mu.Lock()
	defer op.mu.Unlock()
	in := op.in.striped
	in.done.add(index)
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
			op.in.described.Store(int64(q.step) + 1)
		}
	}
	op.in.pos.Store(in.pos)
	if op.out.striped.Load() != nil {
		more = op.readyAfter(p)
	}
	return more
}
