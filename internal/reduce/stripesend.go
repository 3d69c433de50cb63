package reduce

import (
	"math"
	"slices"

	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
)

// flowsFor returns those of the pool to the next peer that an operation which begins
// now is striped over, nil if it is not. Of short chunks there are few pieces, for few
// connections.
func (e *Engine) flowsFor(op *Op, pool []*link.Sender) []*link.Sender {
	if len(pool) < 2 || !op.native || op.n < 2 {
		return nil
	}
	n, most := op.mostFlows(pool)
	if n < 2 || op.isEager() && !op.out.limited && most < len(pool) && !pool[0].Distant() {
		return nil // a small one is done sooner on one connection, unless windows and losses count
	}
	for _, s := range pool[:n] {
		if !s.Features().Flows {
			return nil
		}
	}
	if int64(op.total(op.gridFor(pool[:n]))) > math.MaxUint32 {
		return nil // a frame could not name every piece
	}
	return pool[:n:n]
}

// mostFlows returns of how many connections of the pool there are enough pieces for each,
// and of how many there would be.
func (op *Op) mostFlows(pool []*link.Sender) (n, most int) {
	_, own := op.chunk(0, true)
	bytes := op.encoded(own)
	most = bytes / (2 * op.e.minStripe(pool))
	if len(pool) > 1 && pool[0].Distant() { // all of it is to leave at once, whatever the windows
		most = max(most, link.Needed(pool, bytes))
	}
	n = min(len(pool), most)
	if op.e.cfg.Flows > 0 {
		n = min(n, op.e.cfg.Flows)
	}
	return n, most
}

// regroup has a striped operation that runs use the connections of the pool.
func (op *Op) regroup(pool []*link.Sender) {
	op.mu.Lock()
	runs := op.state == opRunning && op.failErr == nil && op.out.attached && op.out.striped.Load() != nil && !op.out.done.Load()
	op.mu.Unlock()
	if !runs {
		return
	}
	n, _ := op.mostFlows(pool)
	for _, s := range pool[:n] {
		if !s.Features().Flows || s.Broken() {
			return
		}
	}
	if n < 2 {
		return
	}
	op.out.flows.Regroup(&op.out, pool[:n:n], func() bool {
		op.mu.Lock()
		defer op.mu.Unlock()
		return op.state != opRunning
	})
}

// nextPiece takes the piece that f's connection is to send next, if it is to send
// one, and puts its name in front. For more than the first frame of a batch, which has batch
// bytes, there has to be enough for all, and it has to be fast: no other connection
// can send what it has taken. op.mu is held.
func (op *Op) nextPiece(f *link.Frame, o *outGrid, batch int) (piece, uint8) {
	s := f.Conn()
	if o.count == 0 || op.out.limited && op.out.credit < int64(o.g.bytes)+link.HeadBytes ||
		batch > 0 && (o.count < 2*len(op.out.flows.Conns()) || batch > s.AtOnce()) {
		return piece{}, pieceFrame
	}
	// Of the pieces that are not ready yet, each has as many steps before it as
	// the whole chunk of a step takes.
	if op.out.flows.Yields(s, op.out.total-op.out.pos, o.g.bytes) {
		f.Left = true
		return piece{}, pieceFrame
	}
	index := o.pop()
	p, _ := op.at(o.g, index, true)
	f.More = op.out.flows.Took(s, p.n) && o.count > 0
	f.Gauged = true
	f.Head = f.Head[:transport.HeaderSize+stripeHead]
	putStripe(f.Head[transport.HeaderSize:], o.g.bytes, index)
	return p, pieceFrame
}

// attach hands the operation to the connections that send for it.
func (op *Op) attach() {
	o := &op.out
	conns := o.flows.Conns()
	if conns == nil {
		o.sender.Attach(o)
	}
	for _, s := range conns {
		s.Attach(o)
	}
	op.rouse()
	op.mu.Lock()
	o.attached = true
	op.mu.Unlock()
}

// rouse lets the connections that send for the operation look for work.
func (op *Op) rouse() {
	o := &op.out
	conns := o.flows.Conns()
	if conns == nil {
		o.sender.Kick(true, true)
		return
	}
	o.flows.Wake(len(conns))
}

// detach takes an aborted operation off; see link.Sender.Detach.
func (op *Op) detach() {
	o := &op.out
	all := o.flows.All()
	if all == nil && o.sender != nil {
		o.sender.Detach(o)
	}
	for _, s := range all {
		s.Detach(o)
	}
}

// outBroken reports whether a connection that the operation sends on is gone.
func (op *Op) outBroken() bool { return op.out.sender.Broken() || op.out.flows.Broken() }

// failTo fails the operation because of that. No lock is held.
func (op *Op) failTo() {
	why := link.WhyBroken(append(slices.Clone(op.out.flows.All()), op.out.sender))
	op.fail(op.unlinked(op.next, link.Missing(noConnection, why)))
}

func (op *Op) sendsOn(s *link.Sender) bool {
	return op.out.sender == s || slices.Contains(op.out.flows.All(), s)
}

// leave takes an operation that is over off its connections.
func (op *Op) leave() {
	for _, s := range op.out.flows.All() {
		s.Leave(&op.out)
	}
}
