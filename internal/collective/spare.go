package collective

import (
	"crypto/subtle"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/erasure"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// A packet that is lost holds up its connection for a round trip or more, and all that stands
// behind it there. A short lane then waits for that packet alone. Over ways that lose packets it
// therefore has spares (docs/spec/extensions.md, "Spare pieces"): pieces form groups, which go
// over different connections, and behind a group travel sums of them, over others (package erasure).
// A receiver that has as much of a group as it has pieces can make the rest.
//
// What is held up comes later, maybe when the operation is long over here, and the next one with
// its tag runs in the same epoch. So frames of such lanes say which of the sender's operations
// with that tag they are of. While one of them is being read, the operation may end.

const (
	// spareBit, in the size of pieces that a frame names: the lane has spares.
	spareBit = 1 << 31
	// spareBytes is what the head of such a frame has more: u32 generation, u16 group, u8 spares that
	// each group has, u8 pieces of the group and 0 in a piece, u8 place of the piece or number of the
	// spare, three that are 0.
	spareBytes = 12
	// indexBytes precede a piece where it is summed up: its index.
	indexBytes = 4
	// leastConns is for how many connections there is one spare at most, connsPerSpare for how many
	// there should be one, and usualConns how many there should be at least. A member asks for no more
	// of them than askedConns in all.
	leastConns, connsPerSpare, usualConns, mostConns = 4, 4, 8, 32
	askedConns                                       = 96
	mostSpares                                       = mostConns / connsPerSpare
	// mostSpared is the most of a lane in bytes: what is longer does not wait for single packets.
	// mostSparePiece bounds one piece.
	mostSpared     = 512 << 10
	mostSparePiece = 64 << 10
	// worthSpares is the least number of lanes of an operation that wait for a lost packet, as far as
	// that can be told, for lanes to have spares, which are bytes more; leftToWait is how many may.
	// Pieces below smallPiece cost the hosts more: for them it is worthSmall.
	worthSpares, leftToWait = 0.3, 0.1
	worthSmall, smallPiece  = 2, 6 << 10
	// mostGenerations bounds the tags whose lanes have spares in one epoch: of each the receiver
	// keeps a number for as long.
	mostGenerations = 256
)

// A piece's name with what spares need fits in a frame's head.
const _ = uint(link.HeadBytes - (transport.HeaderSize + headBytes + spareBytes))

// group is pieces of a lane that have spares together.
type group struct {
	sums   [][]byte // by number of the spare: of the pieces that were added, index and data; nil: none was
	pieces int      // so many were added
	bytes  int      // of the longest of them
	// Out: which connections took something of it, as bits by their place.
	by uint64
	// In: at which places there are pieces, and of which numbers spares, as bits; how many
	// pieces it has, 0: no spare has come; and whether all are there.
	there, heard uint64
	whole        int
	over         bool
	void         bool // its spares are of no use: their sender has given up amid one
}

// sparesOut are those of a lane out. Operation.mu guards them.
type sparesOut struct {
	of, spares int     // of a group: pieces, at most, and spares
	most       int     // groups
	taken      [64]int // what each connection took, by place
	generation uint32
	groups     []group
	open       []int      // of groups, those that take more pieces
	left       []int      // by segment: pieces that were not taken
	ready      []spareRef // those that may be taken
	// Copies of what is sent in place: a result may come, and take the place of a piece that is still
	// to be written, when its spare was quicker. Empty: source and destination are apart.
	kept lazy
}

// spareRef names a spare.
type spareRef struct{ group, number int }

// sparesIn are those of a lane in. Operation.mu guards them.
type sparesIn struct {
	spares int     // of a group
	groups []group // by number
	made   bitset  // pieces that were made of spares
	room   int     // bytes that sums may still take: what others send decides how many there are
}

// add puts a piece into the group, at a place, for so many spares. most is what pieces have at most.
func (g *group) add(e *Engine, spares, most, place, index int, data []byte) {
	if g.sums == nil {
		g.sums = make([][]byte, spares)
	}
	var name [indexBytes]byte
	binary.BigEndian.PutUint32(name[:], uint32(index))
	for number := range g.sums {
		sum := g.sum(e, most, number)
		erasure.Add(sum, name[:], number, place)
		erasure.Add(sum[indexBytes:], data, number, place)
	}
	g.pieces++
	g.bytes = max(g.bytes, len(data))
}

// sum returns that of a number, zero at first.
func (g *group) sum(e *Engine, most, number int) []byte {
	if g.sums[number] == nil {
		g.sums[number] = e.link.Pool.Get(indexBytes + most)[:indexBytes+most]
		clear(g.sums[number])
	}
	return g.sums[number]
}

// release gives the memory of groups back.
func release(e *Engine, groups []group) {
	for i := range groups {
		for _, b := range groups[i].sums {
			e.link.Pool.Put(b)
		}
		groups[i].sums = nil
	}
}

// spareLane returns over how many of the connections a lane with spares goes, of which size its
// pieces are, and how many spares a group of them has; 0: it has none. n and bytes are what it would
// have without. Engine.mu is held.
func (l *outLane) spareLane(pool []*link.Sender, n, bytes, longest int) (conns, piece, spares int) {
	op := l.op
	e := op.e
	wanted, waiting := e.cfg.spares, math.Inf(1)
	if wanted == 0 {
		wanted, waiting = l.worth()
	}
	use := min(max(usualConns, n, wanted*connsPerSpare), mostConns) // if there were as many
	conns = min(len(pool), use)
	cannot := func(s *link.Sender) bool { return !s.Features().Spares || s.Broken() }
	if wanted == 0 || longest == 0 || op.limited || op.quantized() || l.total > mostSpared || slices.ContainsFunc(l.segs, gated) || slices.ContainsFunc(pool[:conns], cannot) {
		return n, bytes, 0
	}
	piece, spares = l.groups(conns, wanted, bytes, longest, waiting)
	asks := spares > 0
	if conns < leastConns { // a pool too small for spares would stay so if nobody asked
		_, more := l.groups(use, wanted, bytes, longest, waiting)
		asks = more > 0
	}
	if asks {
		e.hub.Ask(l.peer, min(max(usualConns, wanted*connsPerSpare), mostConns, askedConns/len(op.outs)))
	}
	if spares == 0 || !op.generation() {
		return n, bytes, 0
	}
	return conns, piece, spares
}

// groups returns how many spares a group has if the lane goes over so many connections, and the size
// of its pieces in bytes; 0 spares: there are too few connections, or the lane is too short for how
// many lanes are waiting.
func (l *outLane) groups(conns, wanted, bytes, longest int, waiting float64) (piece, spares int) {
	e := l.op.e
	if spares = min(wanted, conns/leastConns); spares == 0 {
		return 0, 0
	}
	least := link.LeastFar
	if e.cfg.minStripe < minStripe { // tests
		least = link.MinFrameBytes
	}
	of := conns - spares
	rows := max(1, (longest+of*bytes/2)/(of*bytes)) // whole ones: a group of few pieces has as many spares
	align := l.op.align()
	piece = min(max((longest/(of*rows)+align)/align*align, least), mostSparePiece)
	// Groups of few pieces have as many spares: those of one piece would be copies of it.
	if e.link.FrameBytes < piece || longest <= piece || l.total < int64(len(l.segs)*of*piece/2) || piece < smallPiece && waiting < worthSmall {
		return 0, 0
	}
	return piece, spares
}

func gated(s segment) bool { return s.gate != nil }

// worth returns how many spares a group should have, by what the ways lose, and how many lanes of the
// operation would wait for a lost packet if there were none; 0 spares: they are not worth it. All lanes
// of the operation are taken to be as this one, and all ways as those of this member. What is lost is
// spread evenly, so that the number of connections that are held up is distributed as Poisson has it.
func (l *outLane) worth() (spares int, waiting float64) {
	lost := l.op.e.hub.Lost(float64(l.total) * connsPerSpare / (connsPerSpare - 1)) // of all with spares
	lanes := float64(len(l.op.outs) * l.op.n)
	part := math.Exp(-lost) // of lanes of which so many are held up
	more := 1 - part        // ... and of those of which more are
	if waiting = more * lanes; waiting < worthSpares {
		return 0, waiting
	}
	for spares < mostSpares && (spares == 0 || more*lanes > leftToWait) {
		spares++
		part *= lost / float64(spares)
		more -= part
	}
	return spares, waiting
}

// generation says which of this member's operations with its tag, of those in this epoch that
// have spares, op is; false: it cannot have any. Engine.mu is held.
func (op *Operation) generation() bool {
	e := op.e
	if !op.isEager() {
		return true // its number says it
	}
	if !e.reach(op.id.epoch) {
		return false
	}
	t := e.ahead.generations
	if _, had := t[op.spec.Tag]; !had && len(t) >= mostGenerations {
		return false
	}
	if op.id.generation == 0 {
		t[op.spec.Tag]++
		op.id.generation = t[op.spec.Tag]
	}
	return true
}

// spare gives a lane that is cut groups with so many spares.
func (l *outLane) spare(conns, spares int) {
	x := &sparesOut{of: conns - spares, spares: spares, generation: l.op.id.generation, left: make([]int, len(l.segs))}
	for k := range l.segs {
		x.left[k] = (l.segs[k].size + l.piece - 1) / l.piece
	}
	x.most = 1 // one more, since connections are not ready in turn
	for _, n := range x.left {
		x.most += (n + x.of - 1) / x.of
	}
	if l.op.dev != nil || overlap(l.op.mem.src, l.op.mem.dst) { // a stage may be one memory for both
		x.kept.size = l.grid.total * l.piece
	}
	l.spares = x
}

// place returns that of a connection.
func (l *outLane) place(s *link.Sender) int { return max(slices.Index(l.flows.All(), s), 0) % 64 }

// took puts the piece of a frame into a group that has none of that connection, if there may be as
// many groups, before it can be overwritten here. It returns where it is. Operation.mu is held.
func (l *outLane) took(f *link.Frame, p piece) (at spareRef) {
	x, me := l.spares, uint64(1)<<l.place(f.Conn())
	x.taken[l.place(f.Conn())]++
	if x.kept.size > 0 && l.segs[p.k].at.in == inSrc {
		kept := x.kept.get(l.op.e)[p.index*l.piece:][:p.n]
		copy(kept, f.Payload)
		f.Payload = kept
	}
	i := slices.IndexFunc(x.open, func(g int) bool { return x.groups[g].by&me == 0 })
	if i < 0 && len(x.open) > 0 && len(x.groups) >= x.most {
		i = 0
	}
	if i < 0 {
		x.groups = append(x.groups, group{})
		x.open = append(x.open, len(x.groups)-1)
		i = len(x.open) - 1
	}
	at.group = x.open[i]
	g := &x.groups[at.group]
	at.number = g.pieces
	g.add(l.op.e, x.spares, l.piece, at.number, p.index, f.Payload)
	g.by |= me
	if g.pieces == x.of {
		x.open = slices.Delete(x.open, i, i+1)
		l.close(at.group)
	}
	if x.left[p.k]--; x.left[p.k] == 0 { // what comes next may come much later
		for _, g := range x.open {
			l.close(g)
		}
		x.open = x.open[:0]
	}
	return at
}

// close has the spares of a group sent: no piece comes to it any more.
func (l *outLane) close(group int) {
	x := l.spares
	for number := range x.spares {
		x.ready = append(x.ready, spareRef{group, number})
	}
	l.left += x.spares
}

// nextSpare is NextFrame where no piece is ready.
func (l *outLane) nextSpare(f *link.Frame) bool {
	op, x := l.op, l.spares
	if x == nil || len(x.ready) == 0 || op.holds {
		return false
	}
	i := slices.IndexFunc(x.ready, func(at spareRef) bool { return l.pickForSpare(at) == f.Conn() })
	if f.Left = i < 0; f.Left {
		return false
	}
	at := x.ready[i]
	x.ready = slices.Delete(x.ready, i, i+1)
	l.left--
	g := &x.groups[at.group]
	g.by |= 1 << l.place(f.Conn())
	x.taken[l.place(f.Conn())]++
	f.Payload = g.sums[at.number][:indexBytes+g.bytes]
	l.flows.Took(f.Conn(), len(f.Payload))
	f.More = len(x.ready) > 0
	l.head(f, 0, at, g.pieces)
	l.refs++
	op.refs++
	return true
}

// rank says how well a connection does for so many bytes of a group; less is better.
type rank struct {
	has   bool    // something of the group already
	waits float64 // windows until there is room
	write bool    // one is under way, which may take longer
	taken int     // pieces
}

func (a rank) less(b rank) bool {
	switch {
	case a.has != b.has:
		return b.has
	case a.waits != b.waits:
		return a.waits < b.waits
	case a.write != b.write:
		return b.write
	}
	return a.taken < b.taken
}

// pick returns the connection that sends so many bytes of a group, of those that look for work in a
// moment. free tells whether one with that bit has nothing of it. Operation.mu is held.
func (l *outLane) pick(bytes int, free func(by uint64) bool) (best *link.Sender) {
	var least rank
	for _, s := range l.flows.Conns() {
		if !s.Returns() {
			continue
		}
		place := l.place(s)
		r := rank{has: !free(1 << place), waits: l.flows.Waits(s, bytes), write: s.Writing(), taken: l.spares.taken[place]}
		if best == nil || r.less(least) {
			best, least = s, r
		}
	}
	return best
}

// pickForPiece returns the connection that takes the next piece. Operation.mu is held.
func (l *outLane) pickForPiece() *link.Sender {
	x := l.spares
	return l.pick(l.piece, func(by uint64) bool {
		return len(x.open) == 0 || len(x.groups) < x.most || slices.ContainsFunc(x.open, func(g int) bool { return x.groups[g].by&by == 0 })
	})
}

// pickForSpare returns the connection that takes a spare. Operation.mu is held.
func (l *outLane) pickForSpare(at spareRef) *link.Sender {
	g := &l.spares.groups[at.group]
	return l.pick(indexBytes+g.bytes, func(by uint64) bool { return g.by&by == 0 })
}

// kickPicked has the connection look for work that takes the next piece, or else those that take
// spares.
func (l *outLane) kickPicked(inline bool) {
	var few [mostSpares]*link.Sender
	to := few[:0]
	l.op.mu.Lock()
	switch x := l.spares; {
	case l.count > l.held:
		to = append(to, l.pickForPiece())
	case !l.op.holds:
		for _, at := range x.ready[:min(len(x.ready), len(few))] {
			if s := l.pickForSpare(at); !slices.Contains(to, s) {
				to = append(to, s)
			}
		}
	}
	l.op.mu.Unlock()
	for _, s := range to {
		if s != nil { // one that is back from its write looks by itself
			s.Kick(inline, true)
		}
	}
}

// head writes the head of the frame f, whose payload is set: a piece with that index at a place of its
// group, or a spare of a group of so many pieces.
func (l *outLane) head(f *link.Frame, index int, at spareRef, pieces int) {
	size, more := l.piece, 0
	if l.spares != nil {
		size, more = size|spareBit, spareBytes
	}
	head := f.Head[:transport.HeaderSize+headBytes+more]
	transport.Header{Payload: headBytes + more + len(f.Payload), Tag: l.op.spec.Tag, Stream: l.op.id.stream.Load()}.Put((*[transport.HeaderSize]byte)(head))
	putHead(head[transport.HeaderSize:], size, index, l.extent)
	if x := l.spares; x != nil {
		part{generation: x.generation, group: at.group, spares: x.spares, pieces: pieces, place: at.number}.put(head[transport.HeaderSize+headBytes:])
	}
	f.Head = head
}

// part is what a frame of a lane with spares says of what it carries.
type part struct {
	size, index int // as of all pieces
	generation  uint32
	group       int
	spares      int // of each group
	pieces      int // of the group; 0: it is a piece itself
	place       int // of the piece; of a spare its number
	data        []byte
}

func (p part) put(b []byte) {
	binary.BigEndian.PutUint32(b, p.generation)
	binary.BigEndian.PutUint16(b[4:], uint16(p.group))
	b[6], b[7], b[8] = byte(p.spares), byte(p.pieces), byte(p.place)
	clear(b[9:spareBytes])
}

func parsePart(b []byte) (p part) {
	p.generation, p.group = binary.BigEndian.Uint32(b), int(binary.BigEndian.Uint16(b[4:]))
	p.spares, p.pieces, p.place = int(b[6]), int(b[7]), int(b[8])
	return p
}

// due is a piece that has come, or was made of a spare, and waits to be processed.
type due struct {
	p     piece
	ready bool // it may be added to what was there before
	data  []byte
}

// receiveSpared is ReceiveFrame of a lane with spares, behind what all heads have. The reader
// takes all of the frame before it enters: that may take long, and others may end the operation
// meanwhile.
func (l *inLane) receiveSpared(r *link.Receiver, h transport.Header, size, index int, total uint64) error {
	op := l.op
	if r.Left() < spareBytes {
		return op.protocol(r, "a frame of a lane with spares has %d bytes", r.Left())
	}
	b := r.Scratch()[:spareBytes]
	if err := r.Fill(l, b); err != nil {
		return err
	}
	got := parsePart(b)
	got.size, got.index = size, index
	eager := h.Stream&eagerBit != 0
	if eager && got.generation <= l.past {
		return l.skip(r) // it was held up, and is made of a spare by now
	}
	if err := l.expect(total); err != nil {
		return err
	}
	n := r.Left()
	if op.quantized() || n > indexBytes+mostSparePiece || size > mostSparePiece {
		return op.protocol(r, "pieces of %d bytes with spares", max(n, size))
	}
	if got.data = r.Scratch(); len(got.data) < n {
		got.data = op.e.link.Pool.Get(n)
		defer op.e.link.Pool.Put(got.data)
	}
	got.data = got.data[:n]
	if err := r.Fill(l, got.data); err != nil {
		return err
	}
	if !l.enter(r) {
		return link.ErrStopped
	}
	if eager && !l.generation.CompareAndSwap(0, got.generation) && l.generation.Load() != got.generation {
		return op.protocol(r, "generation %d after %d of a lane", got.generation, l.generation.Load())
	}
	came, err := l.gather(r, got)
	for _, d := range came {
		if d.p.n > 0 {
			l.take(r, d)
		}
	}
	return err
}

// skip reads the rest of a frame and forgets it.
func (l *inLane) skip(r *link.Receiver) error {
	for r.Left() > 0 {
		if err := r.Fill(l, r.Scratch()[:min(r.Left(), len(r.Scratch()))]); err != nil {
			return err
		}
	}
	return nil
}

// gather puts a piece or a spare that came into its group, and returns what can be processed now:
// it, and what can be made.
func (l *inLane) gather(r *link.Receiver, got part) (came []due, err error) {
	op := l.op
	op.mu.Lock()
	defer op.mu.Unlock()
	if err := l.fits(r, got); err != nil {
		return nil, err
	}
	x := l.spares
	g := &x.groups[got.group]
	if g.sums == nil {
		if x.room -= x.spares * buf.Size(indexBytes+l.piece); x.room < 0 {
			return nil, op.protocol(r, "more groups with spares than a lane of %d bytes needs", l.total)
		}
	}
	if got.pieces > 0 {
		if got.place >= x.spares || g.heard>>got.place&1 != 0 || len(got.data) < indexBytes || len(got.data) > indexBytes+l.piece || got.pieces < g.pieces && !g.over {
			return nil, op.protocol(r, "spare %d of %d of group %d, of %d pieces, with %d bytes", got.place, x.spares, got.group, got.pieces, len(got.data))
		}
		if g.heard |= 1 << got.place; g.over || g.void {
			return nil, nil
		}
		g.whole = got.pieces
		if g.sums == nil {
			g.sums = make([][]byte, x.spares)
		}
		sum := g.sum(op.e, l.piece, got.place)
		subtle.XORBytes(sum, sum[:len(got.data)], got.data)
	} else {
		p := l.at(l.segs, got.index)
		switch {
		case len(got.data) != p.n || g.there>>got.place&1 != 0:
			return nil, op.protocol(r, "piece %d has %d bytes, not %d, or place %d is taken", p.index, len(got.data), p.n, got.place)
		case x.made.has(p.index):
			x.made.del(p.index) // once
			return nil, nil
		case l.claimed.has(p.index) || g.over:
			return nil, op.protocol(r, "piece %d came twice", p.index)
		}
		came = append(came, l.claims(p, got.data))
		g.there |= 1 << got.place
		g.add(op.e, x.spares, l.piece, got.place, p.index, got.data)
	}
	missing := g.whole - g.pieces
	if missing == 0 {
		g.over = !g.void
	}
	if g.void || missing <= 0 || missing > bits.OnesCount64(g.heard) {
		return came, nil
	}
	return l.make(r, g, missing, came)
}

// fits checks what holds for all frames of the lane.
func (l *inLane) fits(r *link.Receiver, got part) error {
	op := l.op
	if l.piece == 0 {
		if l.total == 0 || l.total > mostSpared || got.spares < 1 || got.spares > mostSpares || slices.ContainsFunc(l.segs, gated) {
			return op.protocol(r, "a lane of %d bytes with %d spares", l.total, got.spares)
		}
		if err := l.measure(r, got.size); err != nil {
			return err
		}
		l.spares = &sparesIn{
			spares: got.spares, groups: make([]group, min(l.grid.total, 1<<16)), made: newBitset(l.grid.total),
			room: 4 * mostSpared,
		}
	}
	switch x := l.spares; {
	case x == nil || got.size != l.piece || got.spares != x.spares:
		return op.protocol(r, "pieces of %d bytes with %d spares after others", got.size, got.spares)
	case got.group >= len(x.groups) || got.index >= l.grid.total || got.place >= 64 || got.pieces > 64:
		return op.protocol(r, "piece %d of %d, in group %d of %d, place %d", got.index, l.grid.total, got.group, len(x.groups), got.place)
	}
	return nil
}

// make makes the pieces that are missing of a group, of which there are enough spares.
// Operation.mu is held.
func (l *inLane) make(r *link.Receiver, g *group, missing int, came []due) ([]due, error) {
	var sums [][]byte
	var numbers, places []int
	for number := range l.spares.spares {
		if g.heard>>number&1 != 0 && len(numbers) < missing {
			sums, numbers = append(sums, g.sums[number]), append(numbers, number)
		}
	}
	for place := range g.whole {
		if g.there>>place&1 == 0 {
			places = append(places, place)
		}
	}
	if len(places) != missing {
		return came, l.op.protocol(r, "a group of %d pieces has others", g.whole)
	}
	erasure.Solve(sums, numbers, places)
	// Zeros take the place of what an operation that is given up has begun to send.
	g.void = slices.ContainsFunc(sums, func(b []byte) bool {
		index := int(binary.BigEndian.Uint32(b))
		return index >= l.grid.total || l.claimed.has(index)
	})
	if g.over = !g.void; g.void {
		return came, nil
	}
	for _, b := range sums {
		index := int(binary.BigEndian.Uint32(b))
		if l.claimed.has(index) {
			return came, l.op.protocol(r, "two pieces of a group are piece %d", index)
		}
		l.spares.made.add(index)
		p := l.at(l.segs, index)
		came = append(came, l.claims(p, b[indexBytes:indexBytes+p.n]))
	}
	l.op.e.link.Stats.Spared.Add(uint64(missing))
	return came, nil
}

// claims takes a piece that is there, with its data. Operation.mu is held.
func (l *inLane) claims(p piece, data []byte) due {
	return due{p, l.mark(p), data}
}

// take processes a piece that is there.
func (l *inLane) take(r *link.Receiver, d due) {
	op, p := l.op, d.p
	seg := &l.segs[p.k]
	switch {
	case seg.do == plan.Set:
		l.save(seg, p)
		copy(op.bytesAt(seg.at, p.off, p.n), d.data)
	case d.ready:
		l.save(seg, p)
		op.combine(seg, p.off, d.data)
	default:
		copy(op.mem.wait.get(op.e)[seg.wait+p.off:], d.data)
		if !l.turn(seg, p) {
			return
		}
		l.add(seg, p)
	}
	l.complete(r, p, false)
}

// past are the last generations of lanes that have ended, by peer and tag. Guarded by Engine.mu.
type past map[wire.UUID]map[uint64]uint32

// ended notes the generations of the lanes of an operation that is over.
func (t past) ended(op *Operation) {
	for _, l := range op.ins {
		generation := l.generation.Load()
		if generation == 0 {
			continue
		}
		of := t[l.peer]
		if of == nil {
			of = map[uint64]uint32{}
			t[l.peer] = of
		}
		if _, had := of[op.spec.Tag]; had || len(of) < mostGenerations {
			of[op.spec.Tag] = max(of[op.spec.Tag], generation)
		}
	}
}

// over reports whether a frame that came early is none of what will start, but was held up: its
// lane has everything. e.mu is held.
func (e *Engine) over(r *link.Receiver, tag, epoch uint64, frame *link.Early) bool {
	a := &e.ahead
	b := frame.Head()
	if epoch != a.epoch || len(b) < headBytes+spareBytes || binary.BigEndian.Uint32(b)&spareBit == 0 {
		return false
	}
	last := a.past[r.Peer()][tag]
	if l := a.ops[tag].laneFrom(r.Peer()); l != nil {
		last = max(last, l.generation.Load())
	}
	return binary.BigEndian.Uint32(b[headBytes:]) <= last
}
