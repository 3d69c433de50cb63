package collective

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// Marks of stream numbers. Frames of collectives carry the mark of a piece together
// with one of their own, so that those of an all-reduce between the same peers are
// never taken for them. Sequence numbers and epochs are below both.
const (
	mark = uint64(1)<<62 | uint64(1)<<60
	// eagerBit: the number is an epoch.
	eagerBit = uint64(1) << 61
	allBits  = mark | eagerBit | link.OpenerBit
)

// router answers the questions of the hub about frames with the mark.
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
	var hit []*outLane
	for _, op := range e.ops {
		for _, l := range op.outs {
			if l.peer == peer {
				hit = append(hit, l)
			}
		}
	}
	e.mu.Unlock()
	for _, l := range hit {
		l.regroup(pool)
	}
}

func (e router) Connected(r *link.Receiver) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, op := range e.ops {
		if l := op.laneFrom(r.Peer()); l != nil && !slices.Contains(l.from, r) {
			l.from = append(slices.Clip(l.from), r) // pieces may be on their way over it
		}
	}
	e.started.Broadcast()
}

func (e router) SenderLost(s *link.Sender, cause error) {
	e.lost(s.Peer(), cause, func(op *Operation) bool {
		return slices.ContainsFunc(op.outs, func(l *outLane) bool { return slices.Contains(l.flows.All(), s) && !l.done.Load() })
	})
}

func (e router) ReceiverLost(r *link.Receiver, cause error) {
	if rest := e.hub.Spared(r); rest != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, op := range e.ops {
			if l := op.laneFrom(r.Peer()); l != nil && slices.Contains(l.from, r) {
				l.from = slices.DeleteFunc(slices.Clone(l.from), func(o *link.Receiver) bool { return o == r })
			}
		}
		e.started.Broadcast()
		return
	}
	e.lost(r.Peer(), cause, func(op *Operation) bool {
		l := op.laneFrom(r.Peer())
		return l != nil && slices.Contains(l.from, r) && !l.received.Load()
	})
}

func (e router) Route(r *link.Receiver, h transport.Header, kept *link.Early) (link.Sink, link.Verdict, error) {
	number := h.Stream &^ allBits
	if h.Stream&link.OpenerBit != 0 {
		return nil, link.Drop, nil
	}
	if h.Stream&eagerBit != 0 {
		return e.findEager(r, h.Tag, number, kept)
	}
	return e.find(r, h.Tag, number)
}

// unnamed returns the operation that began eagerly and has no number yet, if a frame with
// one can be of no other: r's peer has heard of its commence before this one. The last
// operation with the tag has a number that was passed, and the next one is not commenced
// before this member has launched it. e.mu is held.
func (e *Engine) unnamed(r *link.Receiver, tag, seq uint64) *Operation {
	op := e.ahead.ops[tag]
	if op == nil || op.id.key.seq&eagerBit == 0 || op.received() || e.any && seq <= e.highest || op.laneFrom(r.Peer()) == nil {
		return nil
	}
	return op
}

// laneFrom returns the lane on which data comes from a peer; nil: none does.
func (op *Operation) laneFrom(peer wire.UUID) *inLane {
	if op == nil {
		return nil
	}
	for _, l := range op.ins {
		if l.peer == peer {
			return l
		}
	}
	return nil
}

// Skip says that the operation with this sequence number never starts here, though
// frames of it may come.
func (e *Engine) Skip(seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pass(seq)
	e.started.Broadcast()
}

// Between says whether the time is one in which no operation can run or start, such as a
// round: frames that wait for their operation then, or come meanwhile, belong to
// none that ever starts here.
func (e *Engine) Between(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.between = on; on {
		e.rounds++ // a reader that waits may look only when it is over
	}
	e.started.Broadcast()
}

// pass notes a sequence number: of what is below it and does not run, nothing will
// start. e.mu is held.
func (e *Engine) pass(seq uint64) {
	if !e.any || seq > e.highest {
		e.any, e.highest = true, seq
	}
}

// find returns the lane of a running operation that a frame from r belongs to. A frame
// whose sequence number is beyond all that were started or skipped waits for the
// start, within a bound.
func (e *Engine) find(r *link.Receiver, tag, seq uint64) (link.Sink, link.Verdict, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var deadline time.Time
	rounds := e.rounds
	for {
		op := e.ops[opKey{tag, seq}]
		if op == nil {
			op = e.unnamed(r, tag, seq)
		}
		if l := op.laneFrom(r.Peer()); l != nil && l.replaying && !r.Closed() {
			e.started.Wait()
			continue
		}
		if op != nil && !op.id.absent {
			return e.deliver(op, r)
		}
		if e.closed || r.Closed() || op == nil && (e.between || e.rounds != rounds || e.any && seq <= e.highest) {
			return nil, link.Drop, nil
		}
		if op != nil {
			deadline = time.Time{} // it waits for this peer's own device
		} else if deadline.IsZero() {
			deadline = time.Now().Add(e.cfg.FutureWait)
			r.SetAlarm(e.cfg.FutureWait)
			defer r.StopAlarm()
		} else if !time.Now().Before(deadline) {
			return nil, link.Drop, errs.New(errs.Protocol, "collective", fmt.Errorf("a frame of tag %d, sequence %d came, but that operation never started", tag, seq)).
				WithPhase("data phase").WithPeer(r.Peer().String())
		}
		e.early++
		e.started.Wait()
		e.early--
	}
}

// deliver returns the lane of op that takes what r brings, and binds it to r. e.mu is
// held, and is let go meanwhile if op fails.
func (e *Engine) deliver(op *Operation, r *link.Receiver) (link.Sink, link.Verdict, error) {
	l := op.laneFrom(r.Peer())
	switch {
	case l != nil && !l.bind(r):
		return l, link.Deliver, nil
	case l == nil && !slices.Contains(op.members, r.Peer()):
		return nil, link.Drop, nil
	}
	var from []*link.Receiver
	if l != nil {
		from = slices.Clone(l.from)
	}
	e.mu.Unlock()
	defer e.mu.Lock()
	if l != nil {
		op.failLink(r.Peer(), link.Missing(endedFrom, link.WhyEnded(from)))
		return nil, link.Drop, nil
	}
	err := op.protocol(r, "data came from a member that sends none in this operation")
	op.fail(err)
	return nil, link.Drop, err
}

// bind notes that frames come on r, one of the pool of its peer, and reports whether
// one of these has ended: no operation has heard of a loss before its first frame came.
// Engine.mu is held.
func (l *inLane) bind(r *link.Receiver) (dead bool) {
	if slices.Contains(l.bound, r) {
		return false
	}
	if l.bound == nil {
		l.from, _ = link.Expect(l.op.e.hub.Receivers(l.peer))
	}
	if !slices.Contains(l.from, r) {
		l.from = append(l.from, r)
	}
	l.bound = append(l.bound, r)
	_, lost := link.Expect(l.from)
	return lost && !l.received.Load()
}
