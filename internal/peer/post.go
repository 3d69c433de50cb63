package peer

import (
	"context"

	"github.com/gopccl/gopccl/core/errs"
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

// posting is a posted all-reduce that the machine does not know of yet.
type posting struct {
	call   fsm.CallID
	flight *flight
	event  fsm.CallReduce
}

// flight is one all-reduce from its posting to its verdict, in one allocation.
type flight struct {
	handle Handle
	op     operation
	launch call
}

// postbox holds what was posted. A trainer's thread that posts takes its lock
// for a moment and wakes nobody unless it was empty; the machine's holder never
// waits for the lock while it has other things to do.
type postbox struct {
	mu     invariants.Mutex
	queue  []posting
	full   bool // Shutdown lets nothing more in
	closed bool // the machine has made its last step
}

// add queues p and reports whether the box was empty; ok is false if the
// session has ended.
func (b *postbox) add(p posting) (first, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.full {
		return false, false
	}
	b.queue = append(b.queue, p)
	return len(b.queue) == 1, true
}

// take moves at most n postings behind those in into, calls known with them
// before it lets go of the lock, and reports whether some are left. With try it
// gives up if somebody holds the lock.
func (b *postbox) take(into []posting, n int, try bool, known func([]posting)) (taken []posting, left bool) {
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
func (s *Session) Post(r Reduce) (*Handle, error) {
	f, first, err := s.post(r)
	if err != nil {
		return nil, err
	}
	if first {
		s.box.wake()
	}
	return &f.handle, nil
}

func (s *Session) post(r Reduce) (f *flight, first bool, err error) {
	f, event, err := s.prepare(r)
	if err != nil {
		return nil, false, err
	}
	if crash := s.crashed.Load(); crash != nil {
		f.op.data.Finish(true)
		return nil, false, faulty(opName, crash)
	}
	first, ok := s.posts.add(posting{call: f.handle.call, flight: f, event: event})
	if !ok {
		f.op.data.Finish(true)
		return nil, false, closed()
	}
	return f, first, nil
}

// register makes postings known as calls and operations.
func (s *Session) register(batch []posting) {
	s.mu.Lock()
	crash := s.crashed.Load()
	for i := range batch {
		if crash == nil {
			p := &batch[i]
			s.calls[p.call] = &p.flight.launch
			s.ops[p.flight.handle.id] = &p.flight.op
		}
	}
	s.mu.Unlock()
	if crash != nil { // whoever crashed did not see them, and no step follows
		for i := range batch {
			batch[i].flight.fail(faulty(opName, crash))
		}
	}
}

// fail ends a flight that was never registered.
func (f *flight) fail(err error) {
	f.op.data.Finish(true)
	f.op.failed, f.op.err = true, err
	close(f.op.verdict)
	f.launch.err = err
	close(f.launch.done)
}

// hand turns everything that was posted into events, in order, so that what
// the caller brings next comes behind it.
func (s *Session) hand() {
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
	for i := range s.picked {
		s.step(s.picked[i].event)
	}
	clear(s.picked)
	if left { // the first ones need not wait for the last
		if err := s.master.push(); err != nil {
			s.step(fsm.MasterGone{Err: err})
		}
	}
	return left
}

// refuse ends an operation that the machine does not have.
func (s *Session) refuse(id fsm.OpID, op *operation, err error) {
	s.mu.Lock()
	_, mine := s.ops[id]
	delete(s.ops, id)
	s.mu.Unlock()
	if mine {
		op.data.Finish(true)
		op.failed, op.err = true, err
		close(op.verdict)
	}
}

// leave ends what nobody will ever pick up or answer: the machine has made its
// last step.
func (s *Session) leave() {
	s.posts.mu.Lock()
	s.posts.closed = true
	late := s.posts.queue
	s.posts.queue = nil
	s.posts.mu.Unlock()
	s.register(late)
	var ends []*call
	s.mu.Lock()
	s.left = true
	for id, c := range s.calls {
		if c.op != nil || c.then != nil {
			ends = append(ends, c)
			delete(s.calls, id)
		}
	}
	s.mu.Unlock()
	for _, c := range ends {
		if c.op != nil {
			s.refuse(c.id, c.op, closed())
		}
		s.notify([]func(){func() { c.finish(closed()) }})
	}
}

// Shutdown lets no more all-reduces in, waits until those that were launched
// have their verdicts, and closes the session as Close does: nothing is lost,
// and Wait still returns what each of them did. If ctx ends first, what is left
// is aborted as Close does, and the error is errs.Canceled.
func (s *Session) Shutdown(ctx context.Context) error {
	s.posts.mu.Lock()
	s.posts.full = true
	s.posts.mu.Unlock()
	s.hand()
	if s.box.free() {
		s.turn()
	}
	s.mu.Lock()
	flying := make([]*operation, 0, len(s.ops))
	for _, op := range s.ops {
		flying = append(flying, op)
	}
	s.mu.Unlock()
	var err error
	for _, op := range flying {
		select {
		case <-op.verdict:
		case <-s.done:
		case <-ctx.Done():
			err = errs.New(errs.Canceled, "shutdown", ctx.Err()).WithPhase("operations in flight")
		}
		if err != nil {
			break
		}
	}
	if late := s.Close(); err == nil {
		err = late
	}
	return err
}
