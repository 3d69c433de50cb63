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
	n := len(pool)
	if e.cfg.Flows > 0 {
		n = min(n, e.cfg.Flows)
	}
	if n < 2 || !op.native || op.n < 2 {
		return nil
	}
	_, own := op.chunk(0, true)
	most := op.encoded(own) / (2 * e.minStripe(pool))
	if n = min(n, most); n < 2 || op.isEager() && most < len(pool) {
		return nil // what begins eagerly on one connection is done sooner
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

// nextPiece takes the piece that f's connection is to send next, if it is to send
// one, and puts its name in front. For more than the first frame of a batch, which has batch
// bytes, there has to be enough for all, and it has to be fast: no other connection
// can send what it has taken. op.mu is held.
func (op *Op) nextPiece(f *link.Frame, o *outGrid, batch int) (piece, uint8) {
	s := f.Conn()
	if o.count == 0 || batch > 0 && (o.count < 2*len(op.out.flows.Conns) || batch > s.AtOnce()) {
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
	f.Gauged = true
	f.Head = f.Head[:transport.HeaderSize+stripeHead]
	putStripe(f.Head[transport.HeaderSize:], o.g.bytes, index)
	return p, pieceFrame
}

// attach hands the operation to the connections that send for it.
func (op *Op) attach() {
	o := &op.out
	if o.flows.Conns == nil {
		o.sender.Attach(o)
		o.sender.Kick(true, true)
		return
	}
	for _, s := range o.flows.Conns {
		s.Attach(o)
	}
	o.flows.Wake(len(o.flows.Conns))
}

// detach takes an aborted operation off; see link.Sender.Detach.
func (op *Op) detach() {
	o := &op.out
	if o.flows.Conns == nil && o.sender != nil {
		o.sender.Detach(o)
	}
	for _, s := range o.flows.Conns {
		s.Detach(o)
	}
}

// outBroken reports whether a connection that the operation sends on is gone.
func (op *Op) outBroken() bool { return op.out.sender.Broken() || op.out.flows.Broken() }

func (op *Op) sendsOn(s *link.Sender) bool {
	return op.out.sender == s || slices.Contains(op.out.flows.Conns, s)
}

// leave takes an operation that is over off its connections.
func (op *Op) leave() {
	for _, s := range op.out.flows.Conns {
		s.Leave(&op.out)
	}
}
