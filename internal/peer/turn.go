package peer

import (
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/peer/fsm"
)

// mailbox is an unbounded queue of events: a post never blocks, so an
// engine goroutine can report while the machine waits for that engine. The
// machine belongs to the goroutine that holds busy: a goroutine that brings an event and
// finds the machine free steps it itself, since waking another goroutine for
// it costs more than the step; the loop does the ticks and what was only posted.
type mailbox struct {
	mu    invariants.Mutex
	queue []fsm.Event
	spare []fsm.Event
	busy  bool
	due   bool // the loop found the machine taken
	ended bool // no step any more
	ready chan struct{}
}

func newMailbox() mailbox { return mailbox{ready: make(chan struct{}, 1)} }

// post leaves ev to the holder of the machine, or to the loop.
func (b *mailbox) post(ev fsm.Event) {
	b.mu.Lock()
	b.queue = append(b.queue, ev)
	b.mu.Unlock()
	b.wake()
}

// wake makes the loop look.
func (b *mailbox) wake() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// claim takes the machine if it is free; otherwise its holder looks again
// before it lets go.
func (b *mailbox) claim() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy || b.ended {
		return false
	}
	b.busy = true
	return true
}

// bring adds ev and takes the machine if it is free. The loop has no event; it
// is woken when the machine is free again.
func (b *mailbox) bring(ev fsm.Event) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ev != nil {
		b.queue = append(b.queue, ev)
	} else if b.busy {
		b.due = true
	}
	if b.busy || b.ended {
		return false
	}
	b.busy = true
	return true
}

// take returns the events that wait, nil if there are none. batch is what it
// returned before, done with. The caller holds busy.
func (b *mailbox) take(batch []fsm.Event) []fsm.Event {
	clear(batch)
	b.mu.Lock()
	defer b.mu.Unlock()
	if batch != nil {
		b.spare = batch[:0]
	}
	if len(b.queue) == 0 {
		return nil
	}
	q := b.queue
	b.queue, b.spare = b.spare, nil
	return q
}

// release gives the machine back unless events wait; for good if last.
func (b *mailbox) release(last bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 && !last {
		return false
	}
	b.busy, b.ended = false, last
	if b.due {
		b.due = false
		b.wake()
	}
	return true
}

// handle steps the machine with ev here and now, or leaves it to the
// goroutine that has the machine. It never waits for a connection.
func (s *Session) handle(ev fsm.Event) {
	if s.box.bring(ev) {
		s.turn()
	}
	// Else its holder looks again before it lets go.
}

// turn is what a goroutine that brought an event does with the machine: what
// waits, and one batch of what was posted. The caller holds the box.
func (s *Session) turn() {
	wake := false
	var room [4]func()
	calls := room[:0]
	for done := false; !done; done = s.box.release(false) {
		left := s.rota.run(false)
		if err := s.master.conn().push(); err != nil {
			s.step(fsm.MasterGone{Err: err})
		}
		calls = s.due(calls)
		wake = wake || left
		if at, ok := s.m.Deadline(); ok && at < s.armed {
			wake = true // the loop has to arm its timer anew
			s.armed = at
		}
	}
	if wake {
		s.box.wake()
	}
	s.notify(calls)
}

// due appends the calls of Notify's functions that the last steps have made due.
// The caller holds the box, and makes them when it has let go of it.
func (s *Session) due(calls []func()) []func() {
	calls = append(calls, s.after...)
	clear(s.after)
	s.after = s.after[:0]
	return calls
}

// notify makes the calls. The caller holds no lock.
func (s *Session) notify(calls []func()) {
	for _, f := range calls {
		func() {
			defer errs.Catch(opName, s.crash)
			f()
		}()
	}
}

// step steps the machine and does what it says. The caller holds busy.
func (s *Session) step(ev fsm.Event) {
	if found, ok := ev.(attached); ok {
		s.take(found)
		ev = found.Attached
	}
	if s.crashed.Load() != nil {
		return
	}
	defer errs.Catch("session", s.crash)
	s.carryOut(s.m.Step(time.Since(s.began), ev))
}

// progress steps the machine with the events that wait.
func (s *Session) progress() bool {
	s.batch = s.box.take(s.batch)
	for _, ev := range s.batch {
		s.step(ev)
	}
	return s.batch != nil
}

// loop handles events that were only posted, and ticks.
func (s *Session) loop() {
	defer close(s.done)
	defer s.leave()
	defer errs.Catch("session", s.crash)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for last := false; ; {
		if s.box.bring(nil) {
			wait := time.Hour
			var calls []func()
			for done := false; !done; done = s.box.release(last) {
				s.step(fsm.Tick{})
				s.rota.run(true)
				if err := s.master.conn().push(); err != nil {
					s.step(fsm.MasterGone{Err: err})
				}
				calls = s.due(calls)
				now := time.Since(s.began)
				if at, ok := s.m.Deadline(); ok && s.crashed.Load() == nil {
					wait = max(0, at-now)
				}
				s.armed = now + wait
			}
			timer.Reset(wait)
			s.notify(calls)
			if last {
				return
			}
		}
		select {
		case <-s.box.ready:
		case <-timer.C:
		case <-s.quit:
			last = true
		}
	}
}
