package reduce

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Which operation a frame is for, and which operations a connection concerns.

// router answers the questions of the hub.
type router struct{ *Engine }

var _ link.Router = router{}

func (e router) Wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.started.Broadcast()
}

func (e router) Regrouped(peer wire.UUID) {
	pool := e.hub.InUse(peer)
	e.mu.Lock()
	var hit []*Op
	for _, op := range e.ops {
		if op.next == peer {
			hit = append(hit, op)
		}
	}
	e.mu.Unlock()
	for _, op := range hit {
		op.regroup(pool)
	}
}

func (e router) Connected(r *link.Receiver) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, op := range e.ops {
		if op.prev != r.Peer() {
			continue
		}
		if op.in.receiver == nil {
			op.in.receiver = r
		}
		if op.split() && !slices.Contains(op.in.from, r) { // pieces may be on their way over it
			op.in.from = append(slices.Clip(op.in.from), r)
		}
	}
	e.started.Broadcast()
}

func (e router) SenderLost(s *link.Sender, cause error) {
	e.lost(s.Peer(), cause, func(op *Op) bool { return op.sendsOn(s) && !op.out.done.Load() })
}

func (e router) ReceiverLost(r *link.Receiver, cause error) {
	if rest := e.hub.Spared(r); rest != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, op := range e.ops {
			op.without(r, rest)
		}
		e.started.Broadcast()
		return
	}
	e.lost(r.Peer(), cause, func(op *Op) bool { return op.receivesOn(r) && !op.in.done.Load() })
}

func (e router) Route(r *link.Receiver, h transport.Header, kept *link.Early) (link.Sink, link.Verdict, error) {
	if isEager(h.Stream) {
		op, verdict := e.findEager(r, h.Tag, named(h.Stream), isPiece(h.Stream), kept)
		if op == nil {
			return nil, verdict, nil
		}
		return &op.in, verdict, nil
	}
	seq, piece := h.Stream, isPiece(h.Stream)
	if piece {
		seq &^= stripeBit
	}
	op, late := e.find(r, h.Tag, seq, piece)
	switch {
	case late:
		return nil, link.Drop, errs.New(errs.Protocol, opName, fmt.Errorf("a frame of tag %d, sequence %d came, but that operation never started", h.Tag, seq)).
			WithPhase("data phase").WithPeer(r.Peer().String())
	case op == nil:
		return nil, link.Drop, nil
	}
	return &op.in, link.Deliver, nil
}

// Skip says that the operation with this sequence number never starts here,
// though frames of it may come.
func (e *Engine) Skip(seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pass(seq)
	e.started.Broadcast()
}

// Between says whether the time is one in which no operation can run or start,
// such as a round: frames that wait for their operation then, or come
// meanwhile, belong to none that ever starts here.
func (e *Engine) Between(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.between = on; on {
		e.rounds++ // a reader that waits may look only when it is over
	}
	e.started.Broadcast()
}

// pass notes a sequence number: of what is below it and does not run, nothing
// will start. e.mu is held.
func (e *Engine) pass(seq uint64) {
	if !e.any || seq > e.highest {
		e.any, e.highest = true, seq
	}
}

// find returns the running operation that a frame from r belongs to, and binds
// it to r. A frame whose sequence number is beyond all that were started or
// skipped waits for the start; late says that it waited too long. nil: the frame is stale.
func (e *Engine) find(r *link.Receiver, tag, seq uint64, piece bool) (x *Op, late bool) {
	var dead *Op
	defer func() {
		if dead != nil {
			dead.failFrom()
		}
	}()
	e.mu.Lock()
	defer e.mu.Unlock()
	var deadline time.Time
	rounds := e.rounds
	for {
		op := e.ops[opKey{tag, seq}]
		if op == nil {
			op = e.unnamed(r, tag, seq)
		}
		if op != nil && op.eager.replaying && !r.Closed() {
			e.started.Wait()
			continue
		}
		if op != nil {
			ok, lost := op.take(r, piece)
			if lost {
				dead = op
			}
			if !ok {
				op = nil
			}
			return op, false
		}
		if seq>>63 != 0 || e.closed || e.between || e.rounds != rounds || e.any && seq <= e.highest || r.Closed() {
			return nil, false
		}
		if deadline.IsZero() {
			deadline = time.Now().Add(e.cfg.FutureWait)
			r.SetAlarm(e.cfg.FutureWait)
			defer r.StopAlarm()
		} else if !time.Now().Before(deadline) {
			return nil, true
		}
		e.early++
		e.started.Wait()
		e.early--
	}
}

// unnamed returns the operation that began eagerly and has no number yet, if a frame with
// one can be of no other: r's peer has heard of its commence before this one. The last
// operation with the tag has a number that was passed, and the next one is not commenced
// before this peer has launched it. e.mu is held.
func (e *Engine) unnamed(r *link.Receiver, tag, seq uint64) *Op {
	op := e.ahead.ops[tag]
	if op == nil || op.id.key.seq&eagerBit == 0 || op.prev != r.Peer() || op.in.done.Load() || seq>>60 != 0 || e.any && seq <= e.highest {
		return nil
	}
	return op
}

// take binds op, which runs, to r for a frame that r has read; false: the frame is stale.
// gone: one of the connections that bring the operation has ended. Engine.mu is held.
func (op *Op) take(r *link.Receiver, piece bool) (ok, gone bool) {
	if op.prev != r.Peer() || op.in.bound && (op.split() != piece || !piece && op.in.receiver != r) {
		return false, false
	}
	gone = piece && op.bind(r)
	op.in.receiver, op.in.bound = r, true
	return true, gone
}

// findEager returns the operation that a frame with an epoch is for. Without one the
// frame is kept, if its operation is not launched yet, or dropped. A frame that is
// here already is added to what came early, if it is to be kept.
func (e *Engine) findEager(r *link.Receiver, tag, epoch uint64, piece bool, frame *link.Early) (*Op, link.Verdict) {
	var dead *Op
	defer func() {
		if dead != nil {
			dead.failFrom()
		}
	}()
	e.mu.Lock()
	defer e.mu.Unlock()
	a := &e.ahead
	var until time.Time
	for {
		switch {
		case e.closed || r.Closed() || epoch < a.epoch || epoch > a.next || epoch == a.epoch && a.spoiled[tag]:
			return nil, link.Drop
		case epoch > a.epoch || a.ops[tag] == nil || a.ops[tag].in.done.Load():
			// All of the last operation with this tag has come.
			if frame == nil && !e.wanted(r) {
				now := time.Now()
				if until.IsZero() {
					until = now.Add(lingerTime)
					r.SetAlarm(lingerTime)
					defer r.StopAlarm()
				}
				if now.Before(until) {
					e.started.Wait()
					continue
				}
			}
			if frame != nil {
				e.hub.Keep(frame)
			}
			return nil, link.Keep
		}
		op := a.ops[tag]
		if op.eager.replaying {
			e.started.Wait()
			continue
		}
		ok, lost := op.take(r, piece)
		if lost {
			dead = op
		}
		if !ok {
			return nil, link.Drop
		}
		return op, link.Deliver
	}
}

// wanted reports whether anything may be needed that comes behind what r reads.
// e.mu is held.
func (e *Engine) wanted(r *link.Receiver) bool {
	if e.between {
		return true
	}
	for _, op := range e.ops {
		if op.prev == r.Peer() && !op.in.done.Load() {
			return true
		}
	}
	return false
}
