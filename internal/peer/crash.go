package peer

import (
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/reduce"
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
	s.master.close()
	s.mesh.Close()
	s.mu.Lock()
	calls := s.calls
	s.calls = map[fsm.CallID]*call{}
	var running, idle []fsm.OpID
	var data []*operation
	for id, op := range s.ops {
		if op.running {
			running, data = append(running, id), append(data, op)
		} else {
			idle = append(idle, id)
		}
	}
	s.mu.Unlock()
	for i := range running {
		data[i].data.Abort(err)
	}
	for _, id := range idle {
		s.finish(fsm.Finish{Op: id, Restore: true})
	}
	s.engine.Retain(none, none)
	for _, c := range calls {
		if c.then == nil {
			c.finish(err)
			continue
		}
		go func() { // locks may be held here
			defer errs.Catch(opName, s.crash)
			c.finish(err)
		}()
	}
}

// begin notes that the data phase of an operation starts; nil if it must not.
func (s *Session) begin(id fsm.OpID) *operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := s.ops[id]
	if op == nil || s.crashed.Load() != nil {
		return nil
	}
	op.running = true
	return op
}

// startData starts the data phase of an operation. One that panics before it has
// begun never ends by itself: it counts as one that was not started.
func (s *Session) startData(e fsm.StartData) {
	op := s.begin(e.Op)
	if op == nil {
		return
	}
	defer errs.Catch("start all-reduce", func(err *errs.Error) {
		if op.data.State().Phase == "created" {
			s.mu.Lock()
			op.running = false
			s.mu.Unlock()
		}
		s.crash(err)
	})
	s.meter.begin(e.Ring, e.Self, time.Now())
	op.data.Start(reduce.Start{
		Seq: e.Seq, Epoch: e.Epoch, Eager: e.Eager, Ring: e.Ring, Self: e.Self, Native: e.Native,
		Done: func(err error) {
			if u, ok := s.meter.end(time.Now()); ok && err == nil {
				s.box.post(u)
			}
			s.dataEnded(e.Op, err)
		},
	})
}

// dataEnded tells the machine that nobody touches an operation's buffers any
// more, or finishes it if there is no machine that would.
func (s *Session) dataEnded(id fsm.OpID, err error) {
	s.mu.Lock()
	if op := s.ops[id]; op != nil {
		op.running = false
	}
	crashed := s.crashed.Load() != nil
	s.mu.Unlock()
	if crashed {
		s.finish(fsm.Finish{Op: id, Restore: true})
		return
	}
	s.handle(fsm.DataEnded{Op: id, Err: err})
}
