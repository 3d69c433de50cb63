package link

import (
	"math"
	"slices"
	"sync/atomic"
)

// Flows are the connections of one pool that one stream is sent on at once. A
// connection that can take more takes the next piece that is ready; nothing is
// assigned in advance. So connections may come and go while it runs: what one that goes
// has taken is sent on it, and it takes no more. The zero value has none.
type Flows struct {
	set         atomic.Pointer[flowSet]
	turn        atomic.Uint32
	piece, left atomic.Int64 // bytes of the piece that was left to others last, and of the stream then
}

// flowSet is constant but for rooms.
type flowSet struct {
	conns, all []*Sender
	rooms      []space // by connection; nil: the peer is near
}

// space is what a connection's window has room for.
type space struct {
	room  atomic.Int64 // bytes; below 0: what waits for the next flight, and what is kept for words
	whole int64        // the window, in bytes
}

// after returns how many windows a frame with so many bytes waits for.
func (r *space) after(bytes int) float64 {
	return max(float64(filled(bytes)-r.room.Load()), 0) / float64(r.whole)
}

// waits returns how many bytes may wait for the next flights.
func (r *space) waits() int64 { return min(flights*r.whole, unwaited) }

func newFlowSet(conns, all []*Sender) *flowSet {
	s := &flowSet{conns: conns, all: all}
	if len(conns) > 0 && conns[0].Distant() {
		s.rooms = make([]space, len(conns))
		for i, c := range conns {
			r := &s.rooms[i]
			r.whole = int64(c.Window())
			r.room.Store(r.whole - min(forWords*segment, r.whole/4))
		}
	}
	return s
}

// first returns on which connection without a write that waits so many bytes leave first: the
// one with the most room. Where none has room, and all of the left bytes of the stream can leave
// with the next flights, it is the one with the fewest windows to wait for, of those that are not
// slow. -1: there is none.
func (s *flowSet) first(bytes int, left int64) int {
	at, most := -1, filled(bytes)
	next, least := -1, math.Inf(1)
	behind, best := int64(0), s.fastest().Speed()
	for i := range s.rooms {
		r, c := &s.rooms[i], s.conns[i]
		room := r.room.Load()
		slow := c.Speed() < best/2
		if !slow {
			behind += max(room+r.waits(), 0)
		}
		if !c.Returns() {
			continue
		}
		if room >= most {
			at, most = i, room
		} else if after := r.after(bytes); !slow && filled(bytes)-room <= r.waits() && after < least {
			next, least = i, after
		}
	}
	if at < 0 && left+left/8 <= behind { // packets that are not full are allowed for, as Needed has it
		return next
	}
	return at
}

// fastest returns the connection that seems to be that now.
func (s *flowSet) fastest() *Sender {
	best := s.conns[0]
	for _, c := range s.conns {
		if c.Speed() > best.Speed() {
			best = c
		}
	}
	return best
}

// Conns returns the connections in use. It is not to be changed.
func (f *Flows) Conns() []*Sender {
	if s := f.set.Load(); s != nil {
		return s.conns
	}
	return nil
}

// All returns the connections in use, and those that were. It is not to be changed.
func (f *Flows) All() []*Sender {
	if s := f.set.Load(); s != nil {
		return s.all
	}
	return nil
}

// Use makes conns, which is not changed any more, those in use, and returns which of
// them came and which of the others went. One goroutine at a time calls it.
func (f *Flows) Use(conns []*Sender) (came, gone []*Sender) {
	old := f.set.Load()
	if old == nil {
		f.set.Store(newFlowSet(conns, conns))
		return conns, nil
	}
	next := newFlowSet(conns, slices.Clip(old.all))
	for _, s := range conns {
		if !slices.Contains(old.conns, s) {
			came = append(came, s)
		}
		if !slices.Contains(old.all, s) {
			next.all = append(next.all, s)
		}
	}
	for _, s := range old.conns {
		if !slices.Contains(conns, s) {
			gone = append(gone, s)
		}
	}
	f.set.Store(next)
	return came, gone
}

// Regroup is Use for a stream that runs, of which x is the source: over reports, after
// that, whether it has ended meanwhile, so that nobody takes x off any more. One that
// had ended before it came, which nobody has told x, fails it: the others would leave the
// last pieces to it.
func (f *Flows) Regroup(x Source, conns []*Sender, over func() bool) {
	came, gone := f.Use(conns)
	for _, s := range gone {
		s.Leave(x)
	}
	for _, s := range came {
		s.Attach(x)
	}
	if over() {
		for _, s := range came {
			s.Leave(x)
		}
		return
	}
	for _, s := range came {
		if s.Broken() {
			x.Fail(s.why())
			return
		}
	}
	// All of them look for work, since what was left to one that went, or woke it alone,
	// is theirs now.
	for _, s := range conns {
		s.rouse()
	}
}

// Wake lets idle connections look for work, at most n of them, the fast ones first.
func (f *Flows) Wake(n int) {
	if n > 0 {
		f.wake(f.Conns(), n, func(*Sender) bool { return true })
	}
}

// wake wakes at most n of conns that are idle, in turn: those that are not slow, and then slow
// ones that would take something.
func (f *Flows) wake(conns []*Sender, n int, takes func(slow *Sender) bool) {
	best := 0.0
	for _, s := range conns {
		best = max(best, s.Speed())
	}
	turn := int(f.turn.Add(1))
	for _, fast := range [2]bool{true, false} {
		for i := range conns {
			s := conns[(turn+i)%len(conns)]
			if n > 0 && (s.Speed() >= best/2) == fast && (fast || takes(s)) && s.rouse() {
				n--
			}
		}
	}
}

// RouseBest lets the connection look for work on which what was left, or there is more of, leaves
// first, or else an idle one that would take it.
func (f *Flows) RouseBest() {
	set := f.set.Load()
	if set.rooms == nil {
		set.fastest().rouse()
		return
	}
	piece, left := int(f.piece.Load()), f.left.Load()
	if at := set.first(piece, left); at >= 0 { // as Yields has it: who is roused takes the piece
		set.conns[at].rouse()
		return
	}
	f.wake(set.conns, 1, func(s *Sender) bool { return !set.leaves(s, left, piece) })
}

const (
	// segment is how many bytes a packet carries of a connection (Ethernet, with timestamps).
	segment = 1448
	// besideData is what a frame has beside its data: its head, and what a cipher adds.
	besideData = 64
	// forWords are how many packets of a window are kept for what is sent behind data (pace.Tail),
	// and a pulse; of a small one a quarter.
	forWords = 4
	// flights are how many windows may wait on a connection of a stream that ends with them. In
	// slow start a window doubles with each round trip, so that they leave with the next.
	flights = 2
	// unwaited is less than what the system takes beyond a window without a write that waits
	// (mesh.unsentBytes).
	unwaited = 48 << 10
)

// filled returns what a frame with so many bytes takes of a window, which counts packets: what
// is written at once ends in one that may not be full.
func filled(bytes int) int64 {
	return int64(bytes+besideData+segment-1) / segment * segment
}

// Took says that s has taken so many bytes of the stream. beyond: more than its window has room
// for, so that another one may send what there is more of.
func (f *Flows) Took(s *Sender, bytes int) (beyond bool) {
	set := f.set.Load()
	if set.rooms == nil {
		return false
	}
	i := slices.Index(set.conns, s)
	return i >= 0 && set.rooms[i].room.Add(-filled(bytes)) < 0 && len(set.conns) > 1
}

// Kick has one connection look for work: the one on which a piece of so many bytes leaves first,
// of a stream with so many left, or the only one, at once, on the caller's goroutine if it is
// idle. Where there is none it is one that is idle.
func (f *Flows) Kick(piece int, left int64) {
	set := f.set.Load()
	at := set.first(piece, left)
	if at < 0 && len(set.conns) > 1 {
		f.Wake(1)
		return
	}
	set.conns[max(at, 0)].Kick(true, true)
}

// Yields reports whether s had better leave the next piece to another connection. What its
// window has room for leaves at once, however slow s is. Beyond that one with room sends the
// piece sooner, and of a stream that ends with the next flights each takes its part of them.
// Of longer ones faster connections may be done with all of the last left bytes before s is
// done with one piece.
func (f *Flows) Yields(s *Sender, left int64, piece int) bool {
	set := f.set.Load()
	if i := slices.Index(set.conns, s); set.rooms != nil && i >= 0 {
		if set.rooms[i].room.Load() >= filled(piece) {
			return false
		}
		f.piece.Store(int64(piece))
		f.left.Store(left)
		if at := set.first(piece, left); at >= 0 {
			return at != i
		}
	}
	return set.leaves(s, left, piece)
}

// leaves reports whether others are so much faster that they may be done with all of the last left
// bytes before s is done with one piece.
func (s *flowSet) leaves(c *Sender, left int64, piece int) bool {
	mine := c.Speed()
	best, sum := 0.0, 0.0
	for _, o := range s.conns {
		best = max(best, o.Speed())
		sum += o.Speed()
	}
	if mine >= best/2 {
		return false
	}
	if math.IsInf(sum, 1) {
		// The speed of others is not known, but this one is slower: it counts as a
		// tenth of them.
		sum = 10 * mine * float64(len(s.conns))
	}
	return float64(c.waits()+piece)/mine > float64(left)/sum
}

// Waits returns how many windows a frame with so many bytes waits for on a connection in use, behind
// what the stream has put there; 0: it leaves at once.
func (f *Flows) Waits(s *Sender, bytes int) float64 {
	set := f.set.Load()
	i := slices.Index(set.conns, s)
	if set.rooms == nil || i < 0 {
		return 0
	}
	return set.rooms[i].after(bytes)
}

// Broken reports whether one of the connections has ended.
func (f *Flows) Broken() bool { return slices.ContainsFunc(f.Conns(), (*Sender).Broken) }
