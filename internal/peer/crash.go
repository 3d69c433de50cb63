package peer

import (
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer/fsm"
)

// faulty is the error of a call on a session that has crashed.
func faulty(name string, crash *errs.Error) error {
	return errs.New(errs.Internal, name, crash.Err).WithHint(crash.Hint)
}

// crash ends the session after a panic in one of its goroutines: a machine that
// missed an event or was left in the middle of one cannot be trusted. Every call
// is answered, operations are aborted and their buffers restored; the master
// and the other peers see the connections end. It may run on any goroutine, in a
// step and in a callback, and so it waits for none.
func (s *Session) crash(err *errs.Error) {
	if !s.crashed.CompareAndSwap(nil, err) {
		return
	}
	s.log.Error("panic in the session", "error", err, "stack", errs.StackOf(err))
	s.cancel()
	s.posted.Stop(err)
	s.master.conn().close()
	s.mesh.Close()
	s.mu.Lock()
	calls, opCalls := s.calls, s.opCalls
	s.calls, s.opCalls = map[fsm.CallID]*call{}, map[fsm.CallID]*Operation{}
	var running []*Operation
	var idle []fsm.OpID
	for id, op := range s.ops {
		if op.running {
			running = append(running, op)
		} else {
			idle = append(idle, id)
		}
	}
	s.mu.Unlock()
	for _, op := range running {
		op.phase().Abort(err)
	}
	for _, id := range idle {
		s.settle(fsm.Finish{Op: id, Restore: true})
	}
	s.hub.Retain(none, none)
	for _, c := range calls {
		c.end(err)
	}
	for id, op := range opCalls {
		op.answered(id, err) // what is due is called on another goroutine
	}
}
