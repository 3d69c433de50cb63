package reduce

import (
	"encoding/binary"
	"math/bits"

	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
)

// Striping shares one operation's data over all connections to the next peer
// (docs/spec/extensions.md, "Frames of our own"). Every step's chunk is cut into
// pieces of the same size, and each frame carries one of them with its index. So
// frames may travel on any connection and be processed in any order: pieces do
// not overlap, and what a piece of step s+1 needs is the same part of step s.
//
// Whichever connection can take more takes the next piece that is ready, the
// lowest index first; nothing is assigned in advance, so that a slow connection
// costs its own share only. A connection that is much slower than the others
// leaves the last pieces to them.
//
// All connections of a pool belong to the operation: the loss of one of them fails
// it, as the loss of the only one does, and the round that follows makes the pool
// anew.
const (
	// stripeBit marks the stream number of a frame that carries a piece.
	stripeBit = uint64(1) << 62
	// stripeHead is the size of what precedes the data of a piece: u32 size of
	// the operation's pieces, u32 index.
	stripeHead = 8
	// A chunk is striped if it has at least twice minStripe bytes for each
	// connection. It is cut into stripesPerFlow pieces for each, unless they got
	// smaller than a quarter of minStripe: at the end all wait for the piece that
	// a slow connection is still busy with. To a distant peer minStripe is smaller: what
	// a piece costs this host is nothing beside a round trip.
	stripesPerFlow = 32
	minStripe      = 64 << 10
	minStripeFar   = 16 << 10
	// Chunks to a distant peer are cut for so many times the connections that there are:
	// more may join (link.Flows).
	mayGrow = 4
)

// isPiece reports whether a frame of the stream carries a piece.
func isPiece(stream uint64) bool { return stream&(link.OpenerBit|stripeBit) == stripeBit }

// grid is how chunks are cut: piece i of step s has index s*per + i.
type grid struct {
	bytes int // of a piece, on the wire; a multiple of 64
	per   int // pieces of the longest chunk
}

func (op *Op) newGrid(bytes int) grid {
	_, longest := plan.Chunk(op.spec.Count, op.n, 0)
	return grid{bytes, (op.encoded(longest) + bytes - 1) / bytes}
}

// total returns the number of indices. Chunks may be shorter than the longest
// by one element, so that not every index names a piece.
func (op *Op) total(g grid) int { return g.per * len(op.sends) }

// piece is a part of the chunk of one step.
type piece struct {
	step  int
	first int // first element of the chunk
	off   int // wire bytes: place in the chunk
	n     int // wire bytes
}

// at returns the piece with the index; false: there is none.
func (op *Op) at(g grid, index int, sending bool) (piece, bool) {
	if index < 0 || index >= op.total(g) {
		return piece{}, false
	}
	p := piece{step: index / g.per}
	first, count := op.chunk(p.step, sending)
	p.first, p.off = first, index%g.per*g.bytes
	p.n = min(g.bytes, op.encoded(count)-p.off)
	return p, p.n > 0
}

// bitset is a set of indices.
type bitset []uint64

func newBitset(n int) bitset         { return make(bitset, (n+63)/64) }
func (b bitset) has(i int) bool      { return b[i/64]>>(i%64)&1 != 0 }
func (b bitset) add(i int)           { b[i/64] |= 1 << (i % 64) }
func (b bitset) del(i int)           { b[i/64] &^= 1 << (i % 64) }
func (b bitset) word(i int) int      { return i / 64 }
func (b bitset) lowest(word int) int { return word*64 + bits.TrailingZeros64(b[word]) }
func (b bitset) empty(word int) bool { return b[word] == 0 }
func putStripe(b []byte, g, index int) {
	binary.BigEndian.PutUint32(b, uint32(g))
	binary.BigEndian.PutUint32(b[4:], uint32(index))
}

// outGrid is what a striped operation has to send. Guarded by Op.mu.
type outGrid struct {
	g     grid
	ready bitset // may be sent, and was not taken yet
	low   int    // no earlier word of ready has a bit
	count int    // bits in ready
	// While the previous peer sends in order: pieces below next are, or were,
	// ready; they end at pos in the stream of all steps.
	next int
	pos  int64
}

// inGrid is what a striped operation has received. Guarded by Op.mu.
type inGrid struct {
	g       grid
	claimed bitset // came, or is being read
	done    bitset // processed
	missing int    // pieces that are not done
	front   int    // all pieces below it are done
	pos     int64  // they end here in the stream of all steps
}

// minStripe returns what is worth being striped to the peer of a pool.
func (e *Engine) minStripe(pool []*link.Sender) int {
	if len(pool) > 0 && pool[0].Distant() {
		return min(e.cfg.minStripe, minStripeFar)
	}
	return e.cfg.minStripe
}

// gridFor returns how this end cuts chunks that go over so many connections.
func (op *Op) gridFor(flows []*link.Sender) grid {
	_, own := op.chunk(0, true)
	n := len(flows)
	if flows[0].Distant() {
		n *= mayGrow
	}
	bytes := max(op.encoded(own)/(stripesPerFlow*n), op.e.minStripe(flows)/4, link.MinFrameBytes)
	a := op.align()
	return op.newGrid(max(min(bytes, op.e.cfg.Link.FrameBytes)/a*a, a))
}

// stripe prepares to send over flows. op.mu is held.
func (op *Op) stripe(flows []*link.Sender) {
	o := &outGrid{g: op.gridFor(flows)}
	o.ready = newBitset(op.total(o.g))
	op.out.flows.Use(flows)
	op.out.striped.Store(o)
	op.readyUpTo(op.sendable())
	op.readyBeyond()
}

// readyUpTo makes the pieces ready that end at or before pos in the stream of
// all steps, and returns how many. op.mu is held.
func (op *Op) readyUpTo(pos int64) (more int) {
	o := op.out.striped.Load()
	for ; o.next < op.total(o.g); o.next++ {
		p, ok := op.at(o.g, o.next, true)
		if !ok {
			continue
		}
		// A quantized chunk is encoded with parameters of the whole chunk.
		need := o.pos + int64(p.n)
		if op.quantized() && !op.source(p.step) && !op.forwards(p.step) {
			_, count := op.chunk(p.step, true)
			need += int64(op.encoded(count) - p.off - p.n)
		}
		if need > pos {
			break
		}
		o.pos += int64(p.n)
		o.add(o.next)
		more++
	}
	return more
}

// readyBeyond makes the pieces ready that follow from what came as pieces before the
// operation was striped, behind the first gap. op.mu is held.
func (op *Op) readyBeyond() {
	in, o := op.in.striped, op.out.striped.Load()
	if in == nil {
		return
	}
	for index := o.next; index < op.total(o.g); index++ {
		p, ok := op.at(o.g, index, true)
		if !ok || op.source(p.step) {
			continue
		}
		from, to := op.needs(p)
		if op.covered(in.g, p.step-1, from, to) {
			o.add(index)
		}
	}
}

// needs returns which bytes of the chunk that the step before brings p is made of.
func (op *Op) needs(p piece) (from, to int) {
	if op.quantized() && !op.forwards(p.step) {
		_, count := op.chunk(p.step, true)
		return 0, op.encoded(count) // it is encoded with parameters of the whole chunk
	}
	return p.off, p.off + p.n
}

func (o *outGrid) add(i int) {
	o.ready.add(i)
	o.count++
	o.low = min(o.low, o.ready.word(i))
}

// pop returns the lowest piece that is ready and takes it out.
func (o *outGrid) pop() int {
	for o.ready.empty(o.low) {
		o.low++
	}
	i := o.ready.lowest(o.low)
	o.ready.del(i)
	o.count--
	return i
}

// readyAfter makes the pieces ready that the processing of in completes, and
// returns how many. op.mu is held.
func (op *Op) readyAfter(in piece) (more int) {
	o, g := op.out.striped.Load(), op.in.striped.g
	step := in.step + 1
	if step == len(op.sends) {
		return 0
	}
	from, to := op.needs(piece{step: step, off: in.off, n: in.n})
	if !op.covered(g, in.step, from, to) {
		return 0
	}
	for i := from / o.g.bytes; i*o.g.bytes < to; i++ {
		index := step*o.g.per + i
		p, ok := op.at(o.g, index, true)
		if !ok || !op.covered(g, in.step, p.off, p.off+p.n) {
			continue
		}
		o.add(index)
		more++
	}
	return more
}

// covered reports whether the bytes from..to of the chunk that step brings are processed.
func (op *Op) covered(g grid, step, from, to int) bool {
	for j := from / g.bytes; j*g.bytes < to; j++ {
		if !op.in.striped.done.has(step*g.per + j) {
			return false
		}
	}
	return true
}

func (op *Op) quantized() bool { return op.spec.Quantizer != nil }
