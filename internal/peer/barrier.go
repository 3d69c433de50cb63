package peer

import (
	"context"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/reduce"
	"github.com/gopccl/gopccl/internal/wire"
)

// phase is the data phase of an operation. Abort and Commence come between its start
// and its end, Finish last.
type phase interface {
	Commence(seq uint64)
	Abort(err error)
	Finish(restore bool)
	Counters() (tx, rx uint64)
	State() reduce.OpState
}

// barrierTag is that of all barriers: members that have called another number of
// them since they came must agree on it.
const barrierTag = 1<<64 - 1

// noData is what a barrier has in the place of a data phase.
type noData struct{}

func (noData) Commence(uint64)           {}
func (noData) Abort(error)               {}
func (noData) Finish(bool)               {}
func (noData) Counters() (tx, rx uint64) { return 0, 0 }
func (noData) State() reduce.OpState     { return reduce.OpState{Tag: barrierTag, Phase: "created"} }

// kind is that of the collective.
func (op *Operation) kind() plan.Kind { return plan.Kind(op.event.Vote.Kind) }

// name is what errors call the operation.
func (op *Operation) name() string { return op.kind().String() }

// Barrier is core.Communicator.Barrier.
func (s *Session) Barrier(ctx context.Context) error {
	const name = "barrier"
	if err := ctx.Err(); err != nil {
		return errs.New(errs.Canceled, name, err)
	}
	op := s.prepareBarrier()
	if _, err := s.postOp(op); err != nil {
		return err
	}
	if err := op.launched(ctx); err != nil {
		return err
	}
	_, err := op.wait(ctx)
	return err
}

// LaunchBarrier is Launch for a barrier.
func (s *Session) LaunchBarrier() (*Operation, error) { return s.launchNow(s.prepareBarrier()) }

// prepareBarrier returns the operation of a barrier, which no other goroutine knows yet.
func (s *Session) prepareBarrier() *Operation {
	id, launch := fsm.OpID(s.ids.Add(1)), fsm.CallID(s.ids.Add(1))
	return &Operation{
		s: s, id: id, launch: launch, data: noData{}, world: s.view.Load().LocalWorldSize, posted: time.Now(),
		event: fsm.CallCollective{Call: launch, Op: id, Tag: barrierTag, Vote: barrierVote},
	}
}

var barrierVote = wire.Call{Kind: uint8(plan.Barrier), Digest: wire.DigestOf(uint8(plan.Barrier), 0, 0, "", nil)}
