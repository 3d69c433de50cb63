package collective

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// where says in which memory something lies.
type where uint8

const (
	inSrc where = iota
	inDst
	inTemp
)

// spot is a place in one of the memories.
type spot struct {
	in  where
	off int
}

// segment is one chunk on its way over a lane.
type segment struct {
	size  int  // on the wire
	raw   int  // bytes in memory; size but for quantized ones
	code  int  // where its encoded form lies, of quantized ones
	first int  // index of its first piece
	at    spot // where it is taken from, or where its result goes
	// of lanes in
	do    plan.Action
	src   int   // the own contribution, if nothing was added before
	wait  int   // where pieces wait for their turn
	saves bool  // what it overwrites is input, or to be preserved
	adds  *step // what is added to its result
	sends []step
	opens []step // what is sent that waits for all of it
	left  int    // pieces that are not processed
	// of lanes out, quantized
	encodes bool // it is encoded here; otherwise what came is passed on
	adopts  bool // this member takes what the others will decode
	// what comes in before it; nil: nothing
	after *step
	gate  *step // all of it has to be processed before, too; nil: nothing
}

// step names a segment of a lane.
type step struct {
	in  *inLane
	out *outLane
	k   int
}

func (s *step) segment() *segment { return &s.in.segs[s.k] }

// inLane is what comes from one peer: the sink of its frames.
type inLane struct {
	op     *Operation
	peer   wire.UUID
	segs   []segment
	total  int64  // bytes
	extent uint64 // what frames say of that
	// The end of a lane of no bytes is announced by a frame, if the peer may believe that
	// there is something to send.
	announced bool

	// Guarded by Engine.mu.
	from      []*link.Receiver // those that frames may come on; nil: the peer has not connected
	bound     []*link.Receiver // of them, those that brought one
	replaying bool             // what came early is being processed
	past      uint32           // the last generation of one that has ended; constant while frames come
	came      []*link.Early    // what came early, until it is

	received   atomic.Bool   // all of it was read
	generation atomic.Uint32 // of a lane with spares whose operation has no number yet

	// Guarded by Operation.mu, but for what is constant once the first frame has come.
	grid
	claimed bitset        // came, or is being read
	done    bitset        // processed
	waiting bitset        // waits for its turn to be added
	saved   bitset        // what it overwrote is kept
	metas   []description // quantized: by segment
	coming  int           // pieces that are not read
	missing int           // pieces that are not processed
	spares  *sparesIn     // nil: it has none
	bytes   uint64
}

// outLane is what goes to one peer: the source of its frames.
type outLane struct {
	op     *Operation
	peer   wire.UUID
	segs   []segment
	total  int64  // bytes
	extent uint64 // what frames say of that
	flows  link.Flows
	most   int // connections that have enough to send
	done   atomic.Bool

	// Guarded by Operation.mu.
	grid
	ready  bitset         // may be sent, and was not taken yet
	low    int            // no earlier word of ready has a bit
	count  int            // bits in ready
	held   int            // so many of them wait for their turn
	left   int            // pieces that were not taken
	credit int64          // bytes of frames that may be taken before the commence of a limited operation
	refs   int            // frames in batches that refer to memory
	short  bool           // something that was taken was not sent: the loss of its connection fails it
	saved  bitset         // pieces whose place in Dst is kept, of a block that is adopted
	metas  []*description // quantized: by segment
	spares *sparesOut     // nil: it has none
	bytes  uint64
}

// grid is how the segments of a lane are cut: each from its start into pieces of the
// same size, the last of it excepted. An index counts over the whole lane.
type grid struct {
	piece int // bytes; 0: not known yet
	total int // pieces
}

// piece is a part of a segment.
type piece struct {
	index, k int // k: the segment
	off, n   int // in the segment
}

// cut numbers the pieces of segments.
func cut(segs []segment, bytes int) grid {
	g := grid{piece: bytes}
	for i := range segs {
		segs[i].first = g.total
		g.total += (segs[i].size + bytes - 1) / bytes
	}
	g.total = max(g.total, 1) // the announcement of nothing
	return g
}

// at returns the piece with the index, which is below total.
func (g *grid) at(segs []segment, index int) piece {
	lo, hi := 0, len(segs)
	for hi-lo > 1 { // the last segment that begins at or before index
		if mid := (lo + hi) / 2; segs[mid].first <= index {
			lo = mid
		} else {
			hi = mid
		}
	}
	for lo > 0 && segs[lo].size == 0 {
		lo-- // empty ones have no piece of their own
	}
	p := piece{index: index, k: lo}
	p.off = (index - segs[lo].first) * g.piece
	p.n = min(g.piece, segs[lo].size-p.off)
	return p
}

// Extent is what the frames of a lane say of its bytes, by the sizes of its segments.
// Where members may disagree about single blocks, its upper 16 bits are made of them:
// blocks of other sizes may be as many bytes in all, and an empty one has no piece.
func (s *Spec) Extent(sizes []int) uint64 {
	h, total := uint64(14695981039346656037), uint64(0) // FNV-1a, of eight bytes at a time
	for _, n := range sizes {
		h = (h ^ uint64(n)) * 1099511628211
		total += uint64(n)
	}
	if len(sizes) < 2 || !s.ByMember() {
		return total
	}
	h ^= h >> 32
	return total | (h^h>>16)<<extentBits
}

// extentBits is where what Extent says of single blocks begins.
const extentBits = 48

func (s *Spec) extent(segs []segment, total int64) uint64 {
	if len(segs) < 2 || !s.ByMember() {
		return uint64(total)
	}
	sizes := make([]int, len(segs))
	for i := range segs {
		sizes[i] = segs[i].size
	}
	return s.Extent(sizes)
}

// bitset is a set of indices.
type bitset []uint64

func newBitset(n int) bitset    { return make(bitset, (n+63)/64) }
func (b bitset) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }
func (b bitset) add(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bitset) del(i int)      { b[i/64] &^= 1 << (i % 64) }

// assemble makes the lanes of p, and says where everything lies.
func (op *Operation) assemble(p *plan.Plan) {
	op.ins, op.outs = make([]*inLane, len(p.In)), make([]*outLane, len(p.Out))
	for i, l := range p.In {
		op.ins[i] = &inLane{op: op, peer: op.members[l.Peer], segs: make([]segment, len(l.Segments))}
	}
	for i, l := range p.Out {
		op.outs[i] = &outLane{op: op, peer: op.members[l.Peer], segs: make([]segment, len(l.Segments))}
	}
	steps := func(r plan.Ref) *step {
		if r.None() {
			return nil
		}
		return &step{in: op.ins[r.Lane-1], k: r.Segment}
	}
	for i, l := range p.In {
		for k, s := range l.Segments {
			seg := &op.ins[i].segs[k]
			c := op.chunks[s.Chunk]
			*seg = segment{size: op.encoded(c.size), raw: c.size, do: s.Do, src: c.src, after: steps(s.After), gate: steps(s.Gate)}
			op.ins[i].total += int64(seg.size)
		}
		op.ins[i].makeRoom()
	}
	for i, l := range op.ins {
		for k := range l.segs {
			if before := l.segs[k].after; before != nil {
				before.segment().adds = &step{in: op.ins[i], k: k}
			}
		}
	}
	op.locate(p)
	own := inSrc
	if op.both = p.Both; op.both {
		own, op.mem.temp.size = inTemp, op.spec.src().size
	}
	for i, l := range p.Out {
		out := op.outs[i]
		for k, s := range l.Segments {
			c := op.chunks[s.Chunk]
			out.segs[k] = segment{size: op.encoded(c.size), raw: c.size, at: spot{own, c.src}, after: steps(s.After), gate: steps(s.Gate)}
			if gate := out.segs[k].gate; out.segs[k].gated() {
				gate.segment().opens = append(gate.segment().opens, step{out: out, k: k})
			}
			if before := out.segs[k].after; before != nil {
				from := before.segment()
				out.segs[k].at = from.at
				from.sends = append(from.sends, step{out: out, k: k})
			}
			out.total += int64(out.segs[k].size)
		}
		out.extent = op.spec.extent(out.segs, out.total)
		out.prepare()
	}
	if op.quantized() {
		op.encode(p)
	}
	for _, l := range op.ins {
		l.extent = op.spec.extent(l.segs, l.total)
		l.announced = l.total == 0 && op.spec.ByMember()
		l.received.Store(l.total == 0 && !l.announced)
	}
}

// makeRoom says where what comes before its turn to be added waits. A segment takes the
// place of its gate, which has been added when it comes. An empty gate holds nothing back,
// so a segment behind one has a place of its own: it is 64 bytes or so.
func (l *inLane) makeRoom() {
	mem := &l.op.mem.wait
	var room []int // by segment: the bytes of the place that begins with it
	for k := range l.segs {
		if s := &l.segs[k]; s.gated() {
			if room == nil {
				room = make([]int, len(l.segs))
			}
			first := s.gate.k
			for l.segs[first].gated() {
				first = l.segs[first].gate.k
			}
			room[first] = max(room[first], s.size)
		}
	}
	for k := range l.segs {
		switch s := &l.segs[k]; {
		case s.after == nil:
		case s.gated():
			s.wait = l.segs[s.gate.k].wait
		default:
			size := s.size
			if room != nil {
				size = max(size, room[k])
			}
			s.wait = mem.size
			mem.size += size
		}
	}
}

// gated reports whether s waits for something.
func (s *segment) gated() bool { return s.gate != nil && s.gate.segment().size > 0 }

// locate says where the results of what comes in go: to Dst what is final, and what
// replaces something there; to memory of the operation what is on its way. All that is
// added to a chunk is in one place.
func (op *Operation) locate(p *plan.Plan) {
	sums := make([]int, p.Chunks)
	for i := range sums {
		sums[i] = none
	}
	for i, l := range p.In {
		for k, s := range l.Segments {
			seg := &op.ins[i].segs[k]
			last := seg
			for last.adds != nil {
				last = last.adds.segment()
			}
			c := op.chunks[s.Chunk]
			if c.dst != none && (seg.do == plan.Set || last.do.Finishes()) {
				seg.at = spot{inDst, c.dst}
				seg.saves = seg.after == nil && op.keeps(c.dst, c.size)
				continue
			}
			if sums[s.Chunk] == none {
				sums[s.Chunk] = op.mem.temp.size
				op.mem.temp.size += c.size
			}
			seg.at = spot{inTemp, sums[s.Chunk]}
		}
	}
	op.undo.backup.size = len(op.mem.dst)
}

// bytesAt returns n bytes at a spot.
func (op *Operation) bytesAt(s spot, off, n int) []byte {
	var b []byte
	switch s.in {
	case inSrc:
		b = op.mem.src
	case inDst:
		b = op.mem.dst
	default:
		b = op.mem.temp.get(op.e)
	}
	return b[s.off+off : s.off+off+n]
}

const (
	// A segment is cut into at least piecesPerSegment pieces, so that members behind
	// this one begin before all of it is there, unless they got smaller than
	// leastPiece: a frame costs about as much as that many bytes.
	piecesPerSegment = 8
	leastPiece       = 64 << 10
	// A lane is striped over as many connections as get twice minStripe bytes each.
	// It is cut into stripesPerFlow pieces for each, unless they got smaller than a
	// quarter of minStripe: at the end all wait for the piece that a slow connection is
	// still busy with.
	stripesPerFlow = 32
	minStripe      = 64 << 10
	// To a distant peer it is cut for so many times the connections that there are: more
	// may join (link.Flows).
	mayGrow = 4
	// ... and over as many connections as have windows for all of it, in so many pieces
	// for each.
	piecesPerWindow = 4
	// byTurns bounds what goes to each distant peer by turns. Of more, only what windows have
	// room for leaves at once, and all of it together may be more than the queue before the line.
	byTurns = 128 << 10
)

// prepare says what of a lane may be sent at first.
func (l *outLane) prepare() {
	if l.total > 0 || l.op.spec.ByMember() {
		l.left = 1 // choose knows better
	} else {
		l.done.Store(true)
	}
}

// stripes returns over how many of n connections a lane goes whose longest segment has
// so many bytes, and which has flow of them to send at one time, and the size of its
// pieces.
func stripes(n, longest, flow, least int) (conns, piece int) {
	if n = min(n, max(flow/(2*least), 1)); n > 1 {
		return n, max(min(flow/(stripesPerFlow*n), longest/2), least/4)
	}
	return n, max(longest/piecesPerSegment, leastPiece)
}

// choose takes connections for the lane and cuts it; false: there is none that lives. No
// other goroutine knows of the lane yet.
func (l *outLane) choose(pool []*link.Sender, most int) bool {
	n := len(pool)
	if most > 0 {
		n = min(n, most)
	}
	e := l.op.e
	distant := n > 0 && (pool[0].Distant() || e.cfg.distant)
	longest := 0
	for i := range l.segs {
		longest = max(longest, l.segs[i].size)
	}
	flow := longest // what the connections share at one time
	if l.op.spec.Scheme != nil {
		flow = int(min(l.total, math.MaxInt))
	}
	for _, s := range pool[:n] {
		if !s.Features().Flows {
			n = 1
		}
	}
	l.most = flow / (2 * e.cfg.minStripe)
	room, have := n, n
	if n > 1 && distant {
		room *= mayGrow
	}
	n, bytes := stripes(room, longest, flow, e.cfg.minStripe)
	n = min(n, have)
	if have > 1 && distant {
		// All of it is to leave at once, without a window that has to be waited for. Results
		// follow before the parts that went out first are acknowledged: there is room for both.
		if k := min(link.Needed(pool[:have], int(min(l.total, math.MaxInt))), flow/link.LeastFar); k > n {
			n, bytes = k, max(min(bytes, flow/(piecesPerWindow*k)), link.LeastFar)
			l.most = max(l.most, n)
		}
	}
	if n == 1 && distant {
		bytes = max(min(bytes, longest/piecesPerSegment), link.LeastFar)
	}
	if l.op.limited { // so that some of it goes ahead
		bytes = min(bytes, max(int(l.credit/4), leastPiece))
	}
	if e.cfg.piece > 0 {
		bytes = e.cfg.piece
	}
	spares := 0
	if distant {
		all := e.hub.Senders(l.peer)
		if most > 0 {
			all = all[:min(len(all), most)]
		}
		if n, bytes, spares = l.spareLane(all, n, bytes, longest); spares > 0 {
			pool = all
		}
	}
	align := l.op.align()
	bytes = max(min(bytes, e.link.FrameBytes)/align*align, align)
	for l.total/int64(bytes)+int64(len(l.segs)) > math.MaxUint32 {
		bytes *= 2
	}
	l.grid = cut(l.segs, bytes)
	l.left = l.grid.total
	l.ready = newBitset(l.left)
	if l.op.adopts() {
		l.saved = newBitset(l.left)
	}
	if spares > 0 {
		l.spare(n, spares)
	}
	for k := range l.segs {
		if s := &l.segs[k]; s.after == nil && !s.gated() {
			for i := range (s.size + bytes - 1) / bytes {
				l.add(s.first + i)
			}
		}
	}
	if l.total == 0 {
		l.add(0)
	}
	if n > 0 && len(l.op.outs) > 1 && l.count*bytes <= byTurns && distant {
		l.held = l.count
	}
	switch {
	case n > 1:
		l.flows.Use(pool[:n:n])
	case n == 1:
		turn := l.op.id.stream.Load()
		if l.op.isEager() {
			turn = l.op.spec.Tag
		}
		at := link.Turn(pool, turn, int(min(l.total, math.MaxInt)))
		l.flows.Use(pool[at : at+1 : at+1])
	}
	return n > 0 && !l.flows.Broken()
}

// regroup has a striped lane that runs use the connections of the pool.
func (l *outLane) regroup(pool []*link.Sender) {
	op := l.op
	op.mu.Lock()
	n := min(len(pool), l.most)
	runs := op.state == running && op.failErr == nil && op.attached && !l.done.Load() && len(l.flows.Conns()) > 1 && l.spares == nil
	op.mu.Unlock()
	if most := op.e.cfg.Flows; most > 0 {
		n = min(n, most)
	}
	if !runs || n < 2 || slices.ContainsFunc(pool[:n], func(s *link.Sender) bool { return !s.Features().Flows || s.Broken() }) {
		return
	}
	l.flows.Regroup(l, pool[:n:n], func() bool {
		op.mu.Lock()
		defer op.mu.Unlock()
		return op.state != running
	})
}

func (l *outLane) add(i int) {
	l.ready.add(i)
	l.count++
	l.low = min(l.low, i/64)
}

// pop returns the lowest piece that is ready and takes it out.
func (l *outLane) pop() int {
	for l.ready[l.low] == 0 {
		l.low++
	}
	i := l.low*64 + bits.TrailingZeros64(l.ready[l.low])
	l.ready.del(i)
	l.count--
	l.left--
	return i
}

// covered reports whether the bytes from..to of a segment that comes in are processed.
func (s *step) covered(from, to int) bool {
	l := s.in
	if from == to {
		return true
	}
	if l.piece == 0 {
		return false
	}
	first := l.segs[s.k].first
	for i := from / l.piece; i*l.piece < to; i++ {
		if !l.done.has(first + i) {
			return false
		}
	}
	return true
}

// passed reports whether all of a segment that comes in is processed; nil is.
func (s *step) passed() bool { return s == nil || s.covered(0, s.segment().size) }

// readyAfter makes the pieces of segment k ready that the processing of its bytes
// from..to completes, and returns how many. Operation.mu is held.
func (l *outLane) readyAfter(k, from, to int) (more int) {
	s := &l.segs[k]
	if !s.gate.passed() {
		return 0
	}
	if s.encodes { // with parameters of all of it
		if s.after.segment().left > 0 {
			return 0
		}
		from, to = 0, s.size
	}
	for i := from / l.piece; i*l.piece < to; i++ {
		off := i * l.piece
		if s.after.covered(off, min(off+l.piece, s.size)) {
			l.add(s.first + i)
			more++
		}
	}
	return more
}

// open makes the pieces of segment k ready that waited for nothing but its gate, and
// returns how many. Operation.mu is held.
func (l *outLane) open(k int) (more int) {
	s := &l.segs[k]
	for off := 0; off < s.size; off += l.piece {
		if s.after == nil || s.after.covered(off, min(off+l.piece, s.size)) {
			l.add(s.first + off/l.piece)
			more++
		}
	}
	return more
}
