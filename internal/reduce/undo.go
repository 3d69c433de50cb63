package reduce

import (
	"sync"
	"sync/atomic"

	"github.com/gopccl/gopccl/internal/plan"
)

// undo keeps what an operation in place overwrites. Every part of the buffer is
// overwritten for the first time in steps 0 to n-1; later it holds results. The
// chunks of these steps are cut into cells, of which each is copied when the first
// byte of it is about to be overwritten. A cell is a piece of a striped operation,
// which one reader alone has, and otherwise what is processed at a time.
type undo struct {
	cell   int        // elements
	per    int        // cells of the longest chunk
	saved  bitset     // by step and cell; written atomically
	room   [16]uint64 // of saved, so that a GiB costs no allocation
	backup []byte     // made by the first reader that saves
	once   sync.Once
}

// cutUndo prepares cells of so many wire bytes. Nothing is saved yet.
func (op *Op) cutUndo(wire int) {
	u := &op.undo
	_, longest := plan.Chunk(op.spec.Count, op.n, 0)
	u.cell = wire / op.unit * op.group
	u.per = (longest + u.cell - 1) / u.cell
	if words := (u.per*op.n + 63) / 64; words <= len(u.room) {
		u.saved = u.room[:words]
	} else {
		u.saved = newBitset(u.per * op.n)
	}
}

// save keeps the original of p, before it is overwritten.
func (op *Op) save(p piece) {
	u := &op.undo
	if !op.inPlace || p.step > op.n-1 {
		return
	}
	wire := op.encoded(u.cell)
	for i := p.off / wire; i*wire < p.off+p.n; i++ {
		word, bit := &u.saved[(p.step*u.per+i)/64], uint64(1)<<((p.step*u.per+i)%64)
		if atomic.LoadUint64(word)&bit != 0 {
			continue
		}
		// All of the memory is touched, which may take long: no lock is held.
		u.once.Do(func() { u.backup = op.e.cfg.Link.Pool.Get(len(op.spec.Dst)) })
		from, to := op.cellAt(p.step, i)
		copy(u.backup[from:to], op.spec.Dst[from:to])
		atomic.OrUint64(word, bit)
	}
}

// cellAt returns where in the user's buffer a cell lies.
func (op *Op) cellAt(step, i int) (from, to int) {
	first, count := op.chunk(step, false)
	from = min(i*op.undo.cell, count)
	to = min(from+op.undo.cell, count)
	return (first + from) * op.elem, (first + to) * op.elem
}

// restore writes the saved originals back.
func (op *Op) restore() {
	u := &op.undo
	if u.backup == nil {
		return
	}
	for at := range u.per * op.n {
		if u.saved.has(at) {
			from, to := op.cellAt(at/u.per, at%u.per)
			copy(op.spec.Dst[from:to], u.backup[from:to])
		}
	}
	clear(u.saved)
}
