package reduce

import (
	"math"
	"slices"

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
	if _, own := op.chunk(0, true); op.encoded(own) < 2*n*e.cfg.minStripe {
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

// nextPiece takes the piece that f's connection is to send next, if it is to send
// one, and puts its name in front. For more than the first frame of a batch, which has batch
// bytes, there has to be enough for all, and it has to be fast: what it has taken
// nobody else can send. op.mu is held.
func (op *Op) nextPiece(f *frame, o *outGrid, batch int) (piece, frameKind) {
	s := f.conn
	if o.count == 0 || batch > 0 && (o.count < 2*len(op.out.flows) || batch > s.atOnce()) {
		return piece{}, pieceFrame
	}
	if op.yields(s) {
		f.left = true
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

// rouseBest: the connection that seems fastest now either takes it or calls the next that does.
func (op *Op) rouseBest() {
	best := op.out.flows[0]
	for _, s := range op.out.flows {
		if s.speed() > best.speed() {
			best = s
		}
	}
	best.rouse()
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
