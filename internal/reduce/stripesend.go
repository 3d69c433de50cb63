package reduce

import (
	"math"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/transport"
)

// flowsFor returns the connections that an operation which begins now is
// striped over, nil if it is not. e.mu is held.
func (e *Engine) flowsFor(op *Op) []*sender {
	pool := e.tx[op.next]
	n := len(pool)
	if e.cfg.Flows > 0 {
		n = min(n, e.cfg.Flows)
	}
	if n < 2 || !op.native || op.n < 2 {
		return nil
	}
	if _, own := op.chunk(0, true); own*op.unit < 2*n*e.cfg.minStripe {
		return nil
	}
	for _, s := range pool[:n] {
		if !s.link.Flows {
			return nil
		}
	}
	if int64(op.total(op.gridFor(n))) > math.MaxUint32 {
		return nil // a frame could not name every piece
	}
	return append([]*sender(nil), pool[:n]...)
}

// nextPiece takes the piece that s is to send next, if s is to send one, and puts
// its name in front. For more than the first frame of a batch, which has batch
// bytes, there has to be enough for all, and s has to be fast: what it has taken
// nobody else can send. op.mu is held.
func (op *Op) nextPiece(f *frame, o *outGrid, s *sender, batch int) (piece, frameKind) {
	if o.count == 0 || batch > 0 && (o.count < 2*len(op.out.flows) || batch > s.atOnce()) {
		return piece{}, pieceFrame
	}
	if op.yields(s) {
		s.yielded = op
		return piece{}, pieceFrame
	}
	index := o.pop()
	p, _ := op.at(o.g, index, true)
	f.head = f.head[:transport.HeaderSize+stripeHead]
	putStripe(f.head[transport.HeaderSize:], o.g.bytes, index)
	return p, pieceFrame
}

// wake lets idle connections look for work, at most n of them, the fast ones first.
func (op *Op) wake(n int) {
	if n == 0 {
		return
	}
	best := 0.0
	for _, s := range op.out.flows {
		best = max(best, s.speed())
	}
	turn := int(op.out.turn.Add(1))
	for _, fast := range [2]bool{true, false} {
		for i := range op.out.flows {
			s := op.out.flows[(turn+i)%len(op.out.flows)]
			if n > 0 && (s.speed() >= best/2) == fast && s.rouse() {
				n--
			}
		}
	}
}

// wakeBest sees to it that somebody takes what a slow connection left. The one
// that seems fastest now either takes it or calls the next that does.
func (op *Op) wakeBest() {
	best := op.out.flows[0]
	for _, s := range op.out.flows {
		if s.speed() > best.speed() {
			best = s
		}
	}
	best.rouse()
}

// rouse kicks the connection if nobody works on it; false: somebody does, and
// will look for work before it stops.
func (s *sender) rouse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy || s.pending || s.cause != nil {
		return false
	}
	s.pending = true
	s.bell.Signal()
	return true
}

// attach hands the operation to whoever sends for it.
func (op *Op) attach() {
	if op.out.flows == nil {
		op.out.sender.attach(op)
		op.out.sender.kick(true, true)
		return
	}
	for _, s := range op.out.flows {
		s.attach(op)
	}
	op.wake(len(op.out.flows))
}

// detach takes an aborted operation off; see sender.detach.
func (op *Op) detach() {
	if op.out.flows == nil && op.out.sender != nil {
		op.out.sender.detach(op)
	}
	for _, s := range op.out.flows {
		s.detach(op)
	}
}

// outBroken reports whether a connection that the operation sends on is gone.
func (op *Op) outBroken() bool {
	return op.out.sender.broken.Load() || slices.ContainsFunc(op.out.flows, func(s *sender) bool { return s.broken.Load() })
}

func (op *Op) sendsOn(s *sender) bool { return op.out.sender == s || slices.Contains(op.out.flows, s) }

// leave takes an operation that is over off its connections.
func (op *Op) leave() {
	for _, s := range op.out.flows {
		s.mu.Lock()
		s.remove(op)
		s.mu.Unlock()
	}
}

// Speed of a connection: the bytes that went between two writes which both had
// to wait, per second. A connection that never makes a writer wait has none, and
// counts as the fastest.
const (
	waited = time.Millisecond
	// What was measured so long ago counts no more.
	recent = 200 * time.Millisecond
	// A speed is forgotten after that many bytes without a wait.
	forget = 8 << 20
	// One write takes what the connection sends in atOnceTime, at least a piece;
	// before anything is known of it and at most atOnceUnknown bytes.
	atOnceTime    = 5 * time.Millisecond
	atOnceUnknown = 256 << 10
	// backlog is what the system holds of a connection that makes writers wait:
	// unsent bytes are bounded where it can be (platform.LimitUnsent).
	backlog = 192 << 10
)

// gauge measures the speed of one connection. Owned by the holder of busy.
type gauge struct {
	since time.Time // a write that had to wait ended then; zero: none, or idle since
	bytes int       // that went since then
	quick int       // bytes without a wait
}

func (s *sender) speed() float64 {
	if v := s.rate.Load(); v != 0 {
		return math.Float64frombits(v)
	}
	return math.Inf(1)
}

// atOnce returns how many bytes one write may take.
func (s *sender) atOnce() int {
	return int(min(s.speed()*atOnceTime.Seconds(), atOnceUnknown))
}

// observe takes the measure of a write of n bytes.
func (s *sender) observe(start, now time.Time, n int) {
	p := &s.gauge
	p.bytes += n
	if now.Sub(start) < waited {
		if p.quick += n; p.quick >= forget {
			s.rate.Store(0)
		}
		return
	}
	p.quick = 0
	if p.bytes == 0 {
		return // an abort: the next write tells how slow it is
	}
	if !p.since.IsZero() {
		rate := float64(p.bytes) / now.Sub(p.since).Seconds()
		if v := s.rate.Load(); v != 0 {
			w := min(1, now.Sub(p.since).Seconds()/recent.Seconds())
			rate = w*rate + (1-w)*math.Float64frombits(v)
		}
		s.rate.Store(math.Float64bits(rate))
	}
	p.since, p.bytes = now, 0
}

// yields reports whether s had better leave what is left to faster
// connections: they would be done with all of it before s is done with one
// piece. op.mu is held.
func (op *Op) yields(s *sender) bool {
	mine := s.speed()
	best, sum := 0.0, 0.0
	for _, o := range op.out.flows {
		best = max(best, o.speed())
		sum += o.speed()
	}
	if mine >= best/2 {
		return false
	}
	if math.IsInf(sum, 1) {
		// Nobody knows how fast the others are, but this one is slower: it
		// counts as a tenth of them.
		sum = 10 * mine * float64(len(op.out.flows))
	}
	// Of the pieces that are not ready yet, each has as many steps before it as
	// the whole chunk of a step takes.
	left := float64(op.out.total - op.out.pos)
	return float64(backlog+op.out.striped.Load().g.bytes)/mine > left/sum
}
