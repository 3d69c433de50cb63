package peer

import (
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/peer/fsm"
)

// Ranks of the session's locks: each may be taken while those of lower ranks are
// held. Those of the data path and of the pool come behind.
const (
	rankPosts   = 1
	rankSession = 2
)

// Presets of how posted operations are picked up: every appendFrequency turns
// of the machine, and when it has nothing else to do, at most appendBatch of
// them. Small numbers serve single small operations, large ones streams of many.
var presets = map[string]struct{ frequency, batch int }{
	"latency":    {1, 8},
	"balanced":   {8, 16},
	"throughput": {32, 64},
}

// postbox holds what was posted. A trainer's thread that posts takes its lock
// for a moment and wakes no goroutine unless it was empty; the machine's holder never
// waits for the lock while it has other things to do.
type postbox struct {
	mu     invariants.Mutex
	queue  []*Operation
	full   bool // Shutdown lets nothing more in
	closed bool // the machine has made its last step
}

// add queues op and reports whether the box was empty; ok is false if the
// session has ended.
func (b *postbox) add(op *Operation) (first, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.full {
		return false, false
	}
	b.queue = append(b.queue, op)
	return len(b.queue) == 1, true
}

// take moves at most n operations behind those in into, calls known with them
// before it lets go of the lock, and reports whether some are left. With try it
// gives up if somebody holds the lock.
func (b *postbox) take(into []*Operation, n int, try bool, known func([]*Operation)) (taken []*Operation, left bool) {
	if !try {
		b.mu.Lock()
	} else if !b.mu.TryLock() {
		return into, true
	}
	defer b.mu.Unlock()
	n = min(n, len(b.queue))
	into = append(into, b.queue[:n]...)
	rest := copy(b.queue, b.queue[n:])
	clear(b.queue[rest:])
	b.queue = b.queue[:rest]
	if n > 0 {
		known(into)
	}
	return into, rest > 0
}

// Post launches an all-reduce without waiting for anything: it is picked up
// together with others that were posted, before every other call that this
// goroutine makes later. What AllReduceAsync would refuse because of the state
// of the session, Wait returns. Errors: errs.InvalidArgument for what can never
// work, errs.Closed.
func (s *Session) Post(r Reduce) (*Operation, error) {
	op, first, err := s.post(r)
	if err != nil {
		return nil, err
	}
	if first {
		s.box.wake()
	}
	return op, nil
}

// Launch is AllReduceAsync for those who wait in a way of their own: it gives
// the session a turn on the caller's goroutine and returns also if the launch
// has to wait, as it does while work goes on that no call waits for (an operation
// that was given up, a round that repairs the ring). Operation.Taken tells when the
// session has decided; its refusal is what Refused and Wait return.
// Errors: errs.InvalidArgument for what can never work, errs.Closed.
func (s *Session) Launch(r Reduce) (*Operation, error) {
	op, err := s.prepare(r)
	if err != nil {
		return nil, err
	}
	return s.launchNow(op)
}

// launchNow posts op, which no other goroutine knows yet, and has it picked up.
func (s *Session) launchNow(op *Operation) (*Operation, error) {
	if _, err := s.postOp(op); err != nil {
		return nil, err
	}
	s.pickUpNow()
	return op, nil
}

func (s *Session) post(r Reduce) (op *Operation, first bool, err error) {
	op, err = s.prepare(r)
	if err != nil {
		return nil, false, err
	}
	first, err = s.postOp(op)
	if err != nil {
		return nil, false, err
	}
	return op, first, nil
}

// postOp leaves op to the machine; first says that nothing was posted before it.
func (s *Session) postOp(op *Operation) (first bool, err error) {
	if crash := s.crashed.Load(); crash != nil {
		op.refuse(crash)
		return false, faulty(op.name(), crash)
	}
	first, ok := s.posts.add(op)
	if !ok {
		err := closed()
		err.Op = op.name()
		op.refuse(err)
		return false, err
	}
	return first, nil
}

// register makes operations known that the machine is about to be told of.
func (s *Session) register(batch []*Operation) {
	s.mu.Lock()
	crash := s.crashed.Load()
	if crash == nil {
		for _, op := range batch {
			s.opCalls[op.launch] = op
			s.ops[op.id] = op
		}
	}
	s.mu.Unlock()
	if crash != nil { // the crash did not see them, and no step follows
		for _, op := range batch {
			op.answered(op.launch, crash)
		}
	}
}

// pickUpNow has what was posted picked up now, here if the machine is free.
func (s *Session) pickUpNow() {
	s.flushPosts()
	if s.box.claim() {
		s.turn()
	}
}

// flushPosts turns everything that was posted into events, in order, so that what
// the caller brings next comes behind it.
func (s *Session) flushPosts() {
	s.posts.mu.Lock()
	defer s.posts.mu.Unlock()
	if len(s.posts.queue) == 0 {
		return
	}
	s.register(s.posts.queue)
	s.box.mu.Lock()
	for i := range s.posts.queue {
		s.box.queue = append(s.box.queue, s.posts.queue[i].event)
	}
	s.box.mu.Unlock()
	clear(s.posts.queue)
	s.posts.queue = s.posts.queue[:0]
}

// pickUp gives the machine at most n of what was posted and reports whether
// some are left. The caller holds the box.
func (s *Session) pickUp(n int, try bool) (left bool) {
	s.picked, left = s.posts.take(s.picked[:0], n, try, s.register)
	if len(s.picked) == 0 {
		return left
	}
	for _, op := range s.picked {
		s.step(op.event)
	}
	clear(s.picked)
	if left { // the first ones need not wait for the last
		if err := s.master.conn().push(); err != nil {
			s.step(fsm.MasterGone{Err: err})
		}
	}
	return left
}
