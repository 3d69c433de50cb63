package master

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// solve runs the ring solver next to the machine; the caller holds the machine. A
// search in the background has more time and reports every better ring.
func (s *Server) solve(ctx context.Context, e fsm.Solve) {
	budget := s.opt.SolverBudget
	if e.Background {
		budget = s.opt.SearchBudget
	}
	sctx, stop := context.WithTimeout(ctx, budget)
	if e.Background {
		s.machine.searches[e.Job] = stop
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer errs.Catch("solve ring", s.crash)
		defer stop()
		began := time.Now()
		better := func(topo.Solution) {}
		if e.Background {
			better = func(sol topo.Solution) {
				ring, err := s.named(e, sol)
				if err == nil {
					s.post(ctx, fsm.Solved{Job: e.Job, Ring: ring, More: true}, false)
				}
			}
		}
		ev := fsm.Solved{Job: e.Job}
		sol, err := s.ask(sctx, e, better)
		if err == nil {
			ev.Ring, err = s.named(e, sol)
		}
		ev.Err, ev.Optimal = err, sol.Optimal
		s.log.Debug("ring solver", "solver", s.solver.Name(), "peers", len(e.Members), "background", e.Background,
			"took", time.Since(began), "optimal", sol.Optimal, "bottleneck", sol.Bottleneck, "error", err)
		if e.Background {
			s.machine.mu.Lock()
			delete(s.machine.searches, e.Job)
			s.machine.mu.Unlock()
		}
		s.post(ctx, ev, false)
	}()
}

// ask calls the solver; its panics are its errors.
func (s *Server) ask(ctx context.Context, e fsm.Solve, better func(topo.Solution)) (sol topo.Solution, err error) {
	defer errs.Catch("solve ring", func(p *errs.Error) {
		s.log.Error("panic in a ring solver", "solver", s.solver.Name(), "error", p, "stack", errs.StackOf(p))
		sol, err = topo.Solution{}, p.WithPhase("solver "+s.solver.Name())
	})
	p := topo.Problem{Matrix: e.Matrix, Objective: s.opt.Objective, Start: e.Start, Seed: e.Job}
	if planner := topo.LookupSharing(); e.Sharing != nil && planner != nil {
		return s.askShared(ctx, planner, p, e.Sharing, better)
	}
	return s.solver.Solve(ctx, p, better)
}

// askShared asks the solver for a ring of the links, and then, where transfers
// share what leads out of their hosts, one that plans with it for a better one.
func (s *Server) askShared(ctx context.Context, planner topo.SharingSolver, p topo.Problem, sh *topo.Sharing, better func(topo.Solution)) (topo.Solution, error) {
	var best topo.Solution
	take := func(sol topo.Solution) {
		b, sum, ok := sh.Value(p.Matrix, sol.Ring)
		if v := (topo.Solution{Ring: sol.Ring, Bottleneck: b, Sum: sum}); ok && p.Objective.Better(v, best) {
			best = v
			better(v)
		}
	}
	half, stop := ctx, context.CancelFunc(func() {})
	if at, ok := ctx.Deadline(); ok {
		half, stop = context.WithDeadline(ctx, at.Add(-time.Until(at)/2))
	}
	sol, err := s.solver.Solve(half, p, take)
	stop()
	if err != nil {
		return sol, err
	}
	take(sol)
	p.Start = best.Ring
	planned, err := planner.SolveShared(ctx, p, sh, take)
	if err != nil {
		return best, nil // the first one stands
	}
	take(planned)
	best.Optimal = planned.Optimal && slices.Equal(best.Ring, planned.Ring)
	return best, nil
}

// named turns positions into peers.
func (s *Server) named(e fsm.Solve, sol topo.Solution) (ring []wire.UUID, err error) {
	for _, i := range sol.Ring {
		if i < 0 || i >= len(e.Members) {
			return nil, errs.New(errs.Internal, "solve ring", fmt.Errorf("solver %s returned no ring", s.solver.Name()))
		}
		ring = append(ring, e.Members[i])
	}
	return ring, nil
}
