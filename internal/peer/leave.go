package peer

import (
	"context"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/reduce"
)

// renewal is the data phase that an all-reduce has after its first one was taken back.
type renewal struct {
	data *reduce.Op
	err  error // why there is none
}

// renew puts an all-reduce back to where it was before its data phase began.
func (s *Session) renew(id fsm.OpID) {
	op := s.operation(id)
	if op == nil {
		return
	}
	before := op.reduction()
	op.phase().Finish(true)
	r := &renewal{data: before}
	if data, err := s.engine.NewOp(before.Spec()); err != nil {
		r.err = err
	} else {
		r.data = data
	}
	op.renewed.Store(r)
	op.direct.Store(nil)
}

// reduction is the data phase of an all-reduce along the ring, nil of another collective.
func (op *Operation) reduction() *reduce.Op {
	if r := op.renewed.Load(); r != nil {
		return r.data
	}
	data, _ := op.data.(*reduce.Op)
	return data
}

// Leave is core.Communicator.Leave.
func (s *Session) Leave(ctx context.Context) error {
	const name = "leave"
	err := s.quiesce(ctx, name)
	if err == nil {
		_, err = s.call(ctx, name, nil, func(id fsm.CallID) fsm.Event { return fsm.CallLeave{Call: id} })
	}
	switch errs.CodeOf(err) {
	case errs.NoSharedStateAvailable, errs.Busy, errs.PendingAsyncOps: // it stays
		s.posts.mu.Lock()
		s.posts.full = false
		s.posts.mu.Unlock()
		return err
	}
	if late := s.Close(); err == nil {
		err = late
	}
	return err
}

// quiesce lets no more operations in and waits until those that were launched have
// their verdicts. The end of ctx is errs.Canceled.
func (s *Session) quiesce(ctx context.Context, name string) error {
	s.posts.mu.Lock()
	s.posts.full = true
	s.posts.mu.Unlock()
	s.pickUpNow()
	s.mu.Lock()
	flying := make([]*Operation, 0, len(s.ops))
	for _, op := range s.ops {
		flying = append(flying, op)
	}
	s.mu.Unlock()
	for _, op := range flying {
		select {
		case <-op.opened(&op.settled):
		case <-s.done:
		case <-ctx.Done():
			return errs.New(errs.Canceled, name, ctx.Err()).WithPhase("operations in flight")
		}
	}
	return nil
}
