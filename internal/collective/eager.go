package collective

import (
	"github.com/gopccl/gopccl/internal/link"
)

// An eager operation begins before its sequence number is known (docs/spec/extensions.md,
// "Eager start"). Its frames carry the epoch in the place of the number: in one
// epoch a tag names one operation at a time, and a peer that launches the next one
// with the same tag knows that all members have everything of the last one, unless
// that failed; then no peer begins with this tag until the next epoch.
//
// Other members may launch later. What comes for them until then is kept, as it
// came, and processed at the launch. The sender bounds what it may have on its way so. Of
// an operation that is larger, what is above the bound is sent when its number is known,
// with that: a reader can wait then, because all members have launched it.

// ahead is what an engine knows of eager operations. Guarded by Engine.mu. ops and
// spoiled belong to epoch, which only reach changes.
type ahead struct {
	epoch   uint64                // the newest that has begun
	next    uint64                // the newest that may begin
	ops     map[uint64]*Operation // that listen, by tag
	spoiled map[uint64]bool
	// Of lanes with spares: the last generation of this member's operations, by tag, and of the
	// lanes from others that have ended.
	generations map[uint64]uint32
	past        past
}

func newAhead() ahead {
	return ahead{ops: map[uint64]*Operation{}, spoiled: map[uint64]bool{}, generations: map[uint64]uint32{}, past: past{}}
}

// own reports whether a stream is of eager frames of this room.
func own(stream uint64) bool { return stream&allBits == mark|eagerBit }

// ExpectEpoch says that peers may begin operations in epoch as soon as this one has told
// the master that it is ready for it. Frames of later epochs are stale.
func (e *Engine) ExpectEpoch(epoch uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ahead.next = max(e.ahead.next, epoch&^allBits)
}

// BeginEpoch says that epoch has begun: what belongs to earlier ones is over.
func (e *Engine) BeginEpoch(epoch uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reach(epoch &^ allBits)
}

// reach is how the engine learns of an epoch, from the first of three events: the end
// of the round that begins it, an operation that starts or one that has failed. It
// reports whether epoch is the newest. e.mu is held.
func (e *Engine) reach(epoch uint64) bool {
	a := &e.ahead
	if epoch == 0 || epoch < a.epoch {
		return false
	}
	if epoch == a.epoch {
		return true
	}
	a.epoch, a.next = epoch, max(a.next, epoch)
	clear(a.ops)
	clear(a.spoiled)
	clear(a.generations)
	clear(a.past)
	e.hub.DropEarly(func(_, stream uint64) bool { return own(stream) && stream&^allBits < epoch })
	e.started.Broadcast()
	return true
}

// Spoil says that an operation with tag has failed: what still comes for it from eager
// peers is dropped, until the next epoch.
func (e *Engine) Spoil(tag, epoch uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reach(epoch &^ allBits) {
		e.spoil(tag)
	}
}

func (e *Engine) spoil(tag uint64) {
	a := &e.ahead
	a.spoiled[tag] = true
	e.hub.DropEarly(func(t, stream uint64) bool { return t == tag && own(stream) && stream&^allBits == a.epoch })
	e.started.Broadcast()
}

// findEager returns the lane that a frame with an epoch is for. Without one the frame is
// kept, if its operation is not launched yet, or dropped. A frame that is here already
// is added to what came early, if it is to be kept.
func (e *Engine) findEager(r *link.Receiver, tag, epoch uint64, frame *link.Early) (link.Sink, link.Verdict, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := &e.ahead
	for {
		switch {
		case e.closed || r.Closed() || epoch < a.epoch || epoch > a.next || epoch == a.epoch && a.spoiled[tag]:
			return nil, link.Drop, nil
		case epoch > a.epoch || a.ops[tag] == nil || a.ops[tag].received():
			// All of the last operation with this tag has come.
			if frame != nil && e.over(r, tag, epoch, frame) {
				return nil, link.Drop, nil
			}
			if frame != nil {
				e.hub.Keep(frame)
			}
			return nil, link.Keep, nil
		}
		op := a.ops[tag]
		l := op.laneFrom(r.Peer())
		if l == nil && a.past[r.Peer()][tag] > 0 { // the last one had a lane from there: it may be of that
			if frame == nil {
				return nil, link.Keep, nil
			}
			if e.over(r, tag, epoch, frame) {
				return nil, link.Drop, nil
			}
		}
		if l == nil || !l.replaying {
			return e.deliver(op, r)
		}
		e.started.Wait()
	}
}

// received reports whether all data has come.
func (op *Operation) received() bool {
	for _, l := range op.ins {
		if !l.received.Load() {
			return false
		}
	}
	return true
}

// listen makes op the one that eager frames with its tag are for, and notes in its lanes
// what came before. e.mu is held.
func (e *Engine) listen(op *Operation) {
	a := &e.ahead
	if !e.reach(op.id.epoch) || op.n < 2 || a.spoiled[op.spec.Tag] {
		return
	}
	a.ops[op.spec.Tag] = op
	op.id.listens = true
	for _, l := range op.ins {
		l.past = a.past[l.peer][op.spec.Tag]
		l.came = e.hub.TakeEarly(l.peer, op.spec.Tag, mark|eagerBit|a.epoch)
		for _, x := range l.came {
			l.bind(x.From())
			l.replaying = true
		}
	}
}

// replayHere is how much of what came early the goroutine that launches processes.
const replayHere = 512 << 10

// replay processes what came before the launch, on the goroutine that launches unless it
// would be busy for long. The connections' readers wait if more of it comes.
func (e *Engine) replay(op *Operation) {
	bytes := 0
	for _, l := range op.ins {
		for _, x := range l.came {
			bytes += x.Bytes()
		}
	}
	if bytes <= replayHere {
		e.replayAll(op)
		return
	}
	e.replays.Add(1) // Close waits for op first, which is not over yet
	go func() {
		defer e.replays.Done()
		e.hub.Labelled("reader", op.members[op.me], func() { e.replayAll(op) }, op.fail)
	}()
}

func (e *Engine) replayAll(op *Operation) {
	for _, l := range op.ins {
		if l.came != nil {
			e.replayLane(l)
		}
	}
}

func (e *Engine) replayLane(l *inLane) {
	defer func() {
		e.mu.Lock()
		l.replaying = false
		e.started.Broadcast()
		e.mu.Unlock()
	}()
	came := l.came
	l.came = nil
	for _, x := range came {
		if err := e.hub.Replay(x, l); err != nil {
			x.From().Close(err)
		}
	}
}

// Commence tells an operation that began eagerly its sequence number: a member that did
// not begin so uses it. The operation may be over.
func (op *Operation) Commence(seq uint64) {
	e := op.e
	e.mu.Lock()
	e.pass(seq)
	op.mu.Lock()
	op.id.number, op.id.unnamed = seq, false
	limited := op.limited
	if limited {
		op.limited = false
		op.id.stream.Store(mark | seq)
	}
	op.mu.Unlock()
	send := false
	if e.ops[op.id.key] == op {
		delete(e.ops, op.id.key)
		op.id.key.seq = seq
		e.ops[op.id.key] = op
		if send, op.id.deferred = op.id.deferred, false; send {
			op.id.stream.Store(mark | seq)
		}
		send, limited = send && !op.id.absent, limited && !op.id.absent
	}
	e.started.Broadcast()
	e.mu.Unlock()
	switch {
	case send:
		op.attach()
	case limited:
		for _, l := range op.outs {
			l.wake(len(l.flows.Conns()), nil)
		}
	}
}

// forget takes an operation that is over out of the books. e.mu is held.
func (e *Engine) forget(op *Operation, failed bool) {
	if e.ops[op.id.key] == op {
		delete(e.ops, op.id.key)
	}
	if op.id.absent && e.reach(op.id.epoch) {
		e.spoil(op.spec.Tag) // it never listened
	}
	if !op.id.listens || op.id.epoch != e.ahead.epoch {
		return // its epoch took it along
	}
	e.ahead.past.ended(op)
	if e.ahead.ops[op.spec.Tag] == op {
		delete(e.ahead.ops, op.spec.Tag)
	}
	if failed {
		e.spoil(op.spec.Tag)
	}
}
