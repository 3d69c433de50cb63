package master

import (
	"context"

	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// planning is what the goroutine has to do that makes the plans of a group. There is one as
// long as it has anything to do.
type planning struct {
	stop context.CancelFunc // ends what it does
	next *planJob           // that comes then; nil: nothing
}

// planJob is a fsm.MakePlans effect.
type planJob struct {
	number uint64
	make   func(stopped func() bool) wire.Direct
}

// makePlans has plans of a group made next to the machine; the caller holds the machine. Others
// that are being made, or wait to be, are given up: nobody asks for them any more.
func (s *Server) makePlans(ctx context.Context, group uint32, j planJob) {
	if p := s.machine.plannings[group]; p != nil {
		p.next = &j
		p.stop()
		return
	}
	s.machine.plannings[group] = &planning{stop: func() {}, next: &j}
	s.run(func() {
		for {
			j, jctx := s.nextPlans(ctx, group)
			if j == nil {
				return
			}
			if d := j.make(func() bool { return jctx.Err() != nil }); jctx.Err() == nil {
				s.post(ctx, fsm.PlansMade{Job: j.number, Direct: d}, false)
			}
		}
	})
}

// nextPlans returns what is to be made for a group, and until when; nil: nothing, and its
// goroutine ends.
func (s *Server) nextPlans(ctx context.Context, group uint32) (*planJob, context.Context) {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	p := s.machine.plannings[group]
	p.stop()
	j := p.next
	if j == nil || ctx.Err() != nil {
		delete(s.machine.plannings, group)
		return nil, nil
	}
	ctx, p.stop = context.WithCancel(ctx)
	p.next = nil
	return j, ctx
}
