package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/plugins/proto"
)

// SolverPlugin is a topo.Solver whose work a plugin does, while a built-in
// solver works beside it: the answer is the better of the two, so that a plugin
// can only improve it.
type SolverPlugin struct {
	*Plugin
	fallback topo.Solver
}

// StartSolver starts a solver plugin. fallback answers where the plugin does
// not; nil leaves its failures to the caller, as a test wants it.
func StartSolver(spec Spec, fallback topo.Solver) (*SolverPlugin, error) {
	spec.Kind = Solver
	p, err := Start(spec)
	if err != nil {
		return nil, err
	}
	return &SolverPlugin{Plugin: p, fallback: fallback}, nil
}

// Name is the name of the plugin.
func (s *SolverPlugin) Name() string { return s.spec.Name }

const (
	// fallbackBudget bounds the built-in solver, which keeps a core busy: what it
	// has not found by then a plugin may look for alone.
	fallbackBudget = time.Second
	// lastWords is the time for messages that were sent when the budget ended; a
	// solver may be late by 50 ms.
	lastWords = 25 * time.Millisecond
	// hangAfter is how long a plugin may go on after the end of its budget.
	hangAfter = time.Second
)

// found is a message of one of the two solvers to the call that waits for them.
type found struct {
	plugin bool
	sol    topo.Solution
	end    bool
	err    error
}

// Solve returns the better of what the plugin and the built-in solver find. It
// implements topo.Solver.
func (s *SolverPlugin) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	if err := p.Check(); err != nil {
		return topo.Solution{}, err
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	c := call{s: s, p: p, better: better}
	messages := make(chan found)
	running := 1
	go s.ask(both, p, messages)
	if s.fallback != nil {
		running++
		fctx, fcancel := context.WithTimeout(both, fallbackBudget)
		defer fcancel()
		go s.builtIn(fctx, p, messages)
	}
	for running > 0 {
		m := <-messages
		if m.end {
			running--
		}
		c.take(m)
		if c.decided {
			cancel() // both end soon; what they still say is heard
		}
	}
	c.hurried = s.fallback != nil && ctx.Err() != nil
	return c.result()
}

// builtIn runs the built-in solver.
func (s *SolverPlugin) builtIn(ctx context.Context, p topo.Problem, out chan<- found) {
	end := found{end: true}
	defer func() {
		if r := recover(); r != nil {
			end = found{end: true, err: errs.New(errs.Internal, "solve ring", fmt.Errorf("solver %s panicked: %v", s.fallback.Name(), r))}
		}
		out <- end
	}()
	end.sol, end.err = s.fallback.Solve(ctx, p, func(sol topo.Solution) {
		sol.Ring = slices.Clone(sol.Ring)
		out <- found{sol: sol}
	})
}

// ask runs one call of the plugin.
func (s *SolverPlugin) ask(ctx context.Context, p topo.Problem, out chan<- found) {
	end := found{plugin: true, end: true}
	defer func() { out <- end }()
	in, err := s.current()
	if err != nil {
		end.err = err
		return
	}
	if !s.begin() {
		end.err = errClosed
		return
	}
	// The call may outlive this function: a plugin that goes on after its budget
	// is given a moment to end in order, and killed then.
	rpc, cancel := context.WithCancel(s.ctx)
	budget := s.spec.TimeLimit
	if t, ok := ctx.Deadline(); ok {
		if left := time.Until(t); budget == 0 || left < budget {
			budget = max(left, time.Millisecond)
		}
	}
	heard := make(chan found)
	over := make(chan struct{}) // nobody hears any more
	in.running.Add(1)
	go func() {
		defer s.calls.Done()
		defer in.running.Add(-1)
		defer cancel()
		err := s.stream(rpc, in, p, budget, func(f found) {
			select {
			case heard <- f:
			case <-over:
			}
		})
		select {
		case heard <- found{plugin: true, end: true, err: err}:
		case <-over:
		}
	}()
	var limit <-chan time.Time
	if budget > 0 {
		timer := time.NewTimer(budget)
		defer timer.Stop()
		limit = timer.C
	}
	done := ctx.Done()
	// The plugin was told of the end and has to come to it.
	hung := func() {
		time.AfterFunc(hangAfter, func() {
			if rpc.Err() == nil {
				in.kill(fmt.Errorf("it hangs: a call did not end %v after its budget of %v", hangAfter, budget))
			}
		})
	}
	var late <-chan time.Time // set when the budget is over
	for {
		select {
		case f := <-heard:
			if f.end {
				end = f
				return
			}
			out <- f
			continue
		case <-limit:
			limit, late = nil, time.After(lastWords)
			continue
		case <-late:
			hung()
		case <-done:
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				done = nil
				if late == nil {
					limit, late = nil, time.After(lastWords)
				}
				continue
			}
			in.canceled.Store(true)
			cancel() // a plugin with the SDK ends itself if it does not listen; watch looks at others
		}
		close(over)
		return
	}
}

// stream calls the plugin and reports every message, an error if the plugin
// failed or said what cannot be.
func (s *SolverPlugin) stream(ctx context.Context, in *instance, p topo.Problem, budget time.Duration, report func(found)) error {
	m := &proto.Problem{Peers: uint32(p.Matrix.N), Mbps: make([]float64, len(p.Matrix.Mbps)), Objective: string(p.Objective), Seed: p.Seed}
	if m.Objective == "" {
		m.Objective = string(topo.BottleneckThenSum)
	}
	for i := range p.Matrix.N {
		for j := range p.Matrix.N {
			if v, ok := p.Matrix.At(i, j); ok {
				m.Mbps[i*p.Matrix.N+j] = v
			}
		}
	}
	for _, i := range p.Start {
		m.Start = append(m.Start, uint32(i))
	}
	if budget > 0 {
		m.BudgetMs = uint64(max(1, budget/time.Millisecond))
	}
	stream, err := proto.NewSolverClient(in.conn).Solve(ctx, m)
	if err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if r.NoRing {
			none := &topo.NoRingError{Proved: r.NoRingProved, Reason: clip(r.Reason)}
			for _, i := range r.Remove {
				if int(i) < p.Matrix.N {
					none.Remove = append(none.Remove, int(i))
				}
			}
			return none
		}
		sol, err := read(p, r)
		if err != nil {
			return err
		}
		report(found{plugin: true, sol: sol})
	}
}

// errClaim says that a plugin said what is not true.
var errClaim = errors.New("its answer is false")

// read makes a solution of a message and checks it.
func read(p topo.Problem, r *proto.Solution) (topo.Solution, error) {
	var sol topo.Solution
	if len(r.Ring) > 0 {
		ring := make([]int, len(r.Ring))
		for k, i := range r.Ring {
			ring[k] = int(min(i, math.MaxInt32))
		}
		var ok bool
		if sol, ok = p.Solution(ring); !ok {
			return sol, fmt.Errorf("%w: its ring of %d peers does not visit each of %d once over links that exist", errClaim, len(ring), p.Matrix.N)
		}
	}
	sol.SumLowerBound, sol.BottleneckBound, sol.Optimal = r.SumLowerBound, r.BottleneckBound, r.Optimal
	if math.IsNaN(sol.SumLowerBound) || math.IsNaN(sol.BottleneckBound) || sol.SumLowerBound < 0 || sol.BottleneckBound < 0 {
		return sol, fmt.Errorf("%w: a bound is not a number", errClaim)
	}
	if len(sol.Ring) == 0 {
		sol.Optimal = false
		return sol, nil
	}
	if sol.Optimal {
		sol = p.Proved(sol)
	}
	if err := p.Verify(sol); err != nil {
		return sol, fmt.Errorf("%w: %w", errClaim, err)
	}
	return sol, nil
}

func clip(s string) string { return s[:min(len(s), 200)] }

// call is what one Solve knows so far.
type call struct {
	s             *SolverPlugin
	p             topo.Problem
	better        func(topo.Solution)
	best          topo.Solution // ring and values
	sumBound      float64       // as the plugin claims
	bottleneck    float64
	proof         topo.Solution // a ring that the plugin calls optimal
	builtIn       topo.Solution // as the built-in solver returned it
	builtInErr    error
	pluginErr     error
	fallbackEnded bool
	hurried       bool // the call ended before the built-in solver had its whole budget
	decided       bool
}

func (c *call) take(m found) {
	if !m.plugin {
		c.offer(m.sol)
		if m.end {
			c.builtIn, c.builtInErr, c.fallbackEnded = m.sol, m.err, true
			// A proof of our own needs no second opinion.
			c.decided = c.decided || m.sol.Optimal || len(c.proof.Ring) > 0
		}
		return
	}
	c.offer(m.sol)
	c.sumBound = max(c.sumBound, m.sol.SumLowerBound)
	if b := m.sol.BottleneckBound; b > 0 && (c.bottleneck == 0 || b < c.bottleneck) {
		c.bottleneck = b
	}
	if m.end {
		c.pluginErr = m.err
	}
	if m.sol.Optimal {
		c.proof = m.sol
		// The proof ends the plugin's own search only: the built-in solver has the
		// rest of its budget to refute it.
		c.decided = c.s.fallback == nil || c.fallbackEnded
	}
}

// offer keeps sol if it is better.
func (c *call) offer(sol topo.Solution) {
	if len(sol.Ring) == 0 {
		return
	}
	plain, ok := c.p.Solution(sol.Ring)
	if ok && c.p.Objective.Better(plain, c.best) {
		c.best = plain
		plain.Ring = slices.Clone(plain.Ring)
		c.better(plain)
	}
}

// result joins rings, bounds and proofs; what contradicts a ring that is there
// is a lie and counts for nothing.
func (c *call) result() (topo.Solution, error) {
	log := c.s.spec.Logger
	best := c.best
	var lies []string
	if len(c.proof.Ring) > 0 && c.p.Objective.Better(best, c.proof) && !same(best, c.proof) {
		lies = append(lies, "it called a ring optimal that is not the best")
		c.proof = topo.Solution{}
	}
	if len(best.Ring) > 0 {
		if c.sumBound > best.Sum*(1+topo.Tolerance) {
			lies = append(lies, "a ring has a smaller sum than its bound")
			c.sumBound = 0
		}
		if c.bottleneck > 0 && c.bottleneck < best.Bottleneck*(1-topo.Tolerance) {
			lies = append(lies, "a ring has a faster slowest link than its bound")
			c.bottleneck = 0
		}
	}
	var none *topo.NoRingError
	if errors.As(c.pluginErr, &none) {
		if len(best.Ring) > 0 && none.Proved {
			lies = append(lies, "it said that there is no ring, and there is one")
		}
	} else if c.pluginErr != nil && c.s.fallback != nil && !expected(c.pluginErr) {
		log.Warn("plugin gave no answer, the built-in solver did: "+c.pluginErr.Error(), "kind", "plugin-ignored", "solver", c.s.fallback.Name())
	}
	for _, lie := range lies {
		log.Warn("plugin is not believed: "+lie, "kind", "plugin-ignored")
	}
	if len(lies) > 0 {
		c.sumBound, c.bottleneck, c.proof = 0, 0, topo.Solution{}
		if c.s.fallback == nil {
			return best, c.s.spec.fail(errs.Protocol, "solve", fmt.Errorf("%w: %s", errClaim, lies[0]))
		}
	}
	if len(best.Ring) == 0 {
		switch {
		case c.s.fallback == nil && c.pluginErr != nil:
			return best, c.pluginErr
		case c.builtInErr != nil:
			return best, c.builtInErr
		}
		return best, &topo.NoRingError{}
	}
	if c.s.fallback == nil && c.pluginErr != nil && !expected(c.pluginErr) {
		return best, c.s.spec.fail(errs.Internal, "solve", c.pluginErr)
	}
	best.SumLowerBound = max(c.sumBound, c.builtIn.SumLowerBound)
	best.BottleneckBound = least(c.bottleneck, c.builtIn.BottleneckBound)
	// A plugin's word alone would end every search for these peers: it counts once
	// the built-in solver had its budget and found nothing better.
	if c.builtIn.Optimal || len(c.proof.Ring) > 0 && !c.hurried {
		best = c.p.Proved(best)
	}
	return best, nil
}

// expected: the end of the call's own context does not count against the plugin.
func expected(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.Canceled || status.Code(err) == codes.DeadlineExceeded
}

func same(a, b topo.Solution) bool {
	return a.Bottleneck == b.Bottleneck && math.Abs(a.Sum-b.Sum) <= topo.Tolerance*math.Abs(b.Sum)
}

func least(a, b float64) float64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
