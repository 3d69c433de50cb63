package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/topo"
)

// Result is the outcome of one check of a plugin.
type Result struct {
	Name   string
	Detail string // what was measured, if it passed
	Err    error
}

// CheckSolver runs the conformance suite of solver plugins against one that was
// started without fallback: what core/topo/solvertest asks of built-in solvers,
// over the wire. report is called after every check.
func CheckSolver(ctx context.Context, s *SolverPlugin, report func(Result)) {
	began := time.Now()
	if err := s.first(ctx); err != nil {
		report(Result{Name: "starts", Err: err})
		return
	}
	report(Result{Name: "starts", Detail: fmt.Sprintf("in %v", time.Since(began).Round(time.Millisecond))})
	for _, c := range []struct {
		name string
		run  func(context.Context, *SolverPlugin) (string, error)
	}{
		{"small groups against all rings", checkSmall},
		{"groups without a ring", checkNoRing},
		{"never worse than the start", checkStart},
		{"extreme rates", checkRates},
		{"keeps its budget", checkBudget},
		{"ends when cancelled", checkCancelled},
		{"several calls at once", checkConcurrent},
	} {
		starts := s.Starts()
		detail, err := c.run(ctx, s)
		if err == nil && s.Starts() != starts {
			err = errors.New("the plugin had to be restarted")
		}
		report(Result{Name: c.name, Detail: detail, Err: err})
	}
}

// solveRaw asks the plugin alone and checks every message and their order.
func (s *SolverPlugin) solveRaw(ctx context.Context, p topo.Problem, budget time.Duration) (topo.Solution, error) {
	if err := s.Wait(ctx); err != nil {
		return topo.Solution{}, err
	}
	in, err := s.current()
	if err != nil {
		return topo.Solution{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, budget+hangAfter)
	defer cancel()
	var best topo.Solution
	var worse error
	err = s.stream(ctx, in, p, budget, func(f found) {
		if len(f.sol.Ring) == 0 {
			return
		}
		if len(best.Ring) > 0 && p.Objective.Better(best, f.sol) && !same(best, f.sol) {
			worse = errors.New("a ring of the stream is worse than one before it")
		}
		best = f.sol
	})
	return best, errors.Join(err, worse)
}

// allRings tries all of them; for up to 8 peers.
func allRings(p topo.Problem) (best topo.Solution) {
	ring := make([]int, p.Matrix.N)
	for i := range ring {
		ring[i] = i
	}
	var try func(k int)
	try = func(k int) {
		if k == len(ring) {
			if s, ok := p.Solution(ring); ok && p.Objective.Better(s, best) {
				s.Ring = slices.Clone(ring)
				best = s
			}
			return
		}
		for i := k; i < len(ring); i++ {
			ring[k], ring[i] = ring[i], ring[k]
			try(k + 1)
			ring[k], ring[i] = ring[i], ring[k]
		}
	}
	if len(ring) > 1 {
		try(1)
	}
	return best
}

func randomProblem(rng *rand.Rand, n, missing int, o topo.Objective) topo.Problem {
	p := topo.Problem{Matrix: topo.NewMatrix(n), Objective: o, Seed: rng.Uint64()}
	for i := range p.Matrix.Mbps {
		if rng.IntN(100) >= missing {
			p.Matrix.Mbps[i] = math.Round(math.Exp(3 + 6*rng.Float64()))
		}
	}
	return p
}

func checkSmall(ctx context.Context, s *SolverPlugin) (string, error) {
	rng := rand.New(rand.NewPCG(1, 1))
	best, proved, all := 0, 0, 0
	for n := 2; n <= 7; n++ {
		for _, missing := range []int{0, 20} {
			for _, o := range []topo.Objective{topo.BottleneckThenSum, topo.Sum} {
				p := randomProblem(rng, n, missing, o)
				want := allRings(p)
				if len(want.Ring) == 0 {
					continue
				}
				got, err := s.solveRaw(ctx, p, 2*time.Second)
				if err != nil && !errors.Is(err, topo.ErrNoRing) {
					return "", fmt.Errorf("%d peers: %w", n, err)
				}
				var none *topo.NoRingError
				if errors.As(err, &none) && none.Proved {
					return "", fmt.Errorf("%d peers: it says that there is no ring, but %v is one", n, want.Ring)
				}
				all++
				if same(got, want) {
					best++
				} else if got.Optimal {
					return "", fmt.Errorf("%d peers: calls %v optimal, %v is better", n, got.Ring, want.Ring)
				}
				if got.Optimal {
					proved++
				}
				if least := allRings(topo.Problem{Matrix: p.Matrix, Objective: topo.Sum}); got.SumLowerBound > least.Sum*(1+topo.Tolerance) {
					return "", fmt.Errorf("%d peers: sum bound %v, a ring has %v", n, got.SumLowerBound, least.Sum)
				}
				if fast := allRings(topo.Problem{Matrix: p.Matrix}); got.BottleneckBound > 0 && got.BottleneckBound < fast.Bottleneck*(1-topo.Tolerance) {
					return "", fmt.Errorf("%d peers: bottleneck bound %v, a ring has %v", n, got.BottleneckBound, fast.Bottleneck)
				}
			}
		}
	}
	return fmt.Sprintf("best ring in %d of %d, proved in %d", best, all, proved), nil
}

func checkNoRing(ctx context.Context, s *SolverPlugin) (string, error) {
	for _, n := range []int{0, 1, 2, 3, 5} {
		got, err := s.solveRaw(ctx, topo.Problem{Matrix: topo.NewMatrix(n)}, 2*time.Second)
		if !errors.Is(err, topo.ErrNoRing) {
			return "", fmt.Errorf("%d peers without links: ring %v, error %w", n, got.Ring, err)
		}
	}
	return "", nil
}

func checkStart(ctx context.Context, s *SolverPlugin) (string, error) {
	rng := rand.New(rand.NewPCG(2, 2))
	for _, n := range []int{3, 9, 20} {
		p := randomProblem(rng, n, 0, topo.BottleneckThenSum)
		first, err := s.solveRaw(ctx, p, 200*time.Millisecond)
		if err != nil {
			return "", err
		}
		p.Start = first.Ring
		got, err := s.solveRaw(ctx, p, 50*time.Millisecond)
		if err != nil {
			return "", err
		}
		if len(got.Ring) == 0 || p.Objective.Better(first, got) && !same(first, got) {
			return "", fmt.Errorf("%d peers: %v after a start of %v", n, got.Ring, first.Ring)
		}
	}
	return "", nil
}

func checkRates(ctx context.Context, s *SolverPlugin) (string, error) {
	p := topo.Problem{Matrix: topo.NewMatrix(5)}
	for i := range p.Matrix.Mbps {
		p.Matrix.Mbps[i] = 5e-324
	}
	for i := range 5 {
		p.Matrix.Set(i, (i+2)%5, math.MaxFloat64)
	}
	got, err := s.solveRaw(ctx, p, 2*time.Second)
	if err != nil {
		return "", err
	}
	if got.Bottleneck != math.MaxFloat64 {
		return "", fmt.Errorf("bottleneck %v where there is a ring of links without one", got.Bottleneck)
	}
	return "", nil
}

// checkBudget takes the least of some calls: one may be long because the machine is busy.
func checkBudget(ctx context.Context, s *SolverPlugin) (string, error) {
	p := randomProblem(rand.New(rand.NewPCG(3, 3)), 200, 0, topo.BottleneckThenSum)
	const budget, grace, calls = 300 * time.Millisecond, 500 * time.Millisecond, 5
	least := time.Duration(math.MaxInt64)
	for k := 0; k < calls && least > budget+grace; k++ {
		began := time.Now()
		got, err := s.solveRaw(ctx, p, budget)
		switch {
		case err != nil:
			return "", err
		case len(got.Ring) == 0:
			return "", fmt.Errorf("no ring of 200 peers within %v", budget)
		}
		least = min(least, time.Since(began))
	}
	if least > budget+grace { // 50 ms are allowed; the rest is for a busy machine
		return "", fmt.Errorf("%d calls of %v took %v and more", calls, budget, least)
	}
	return fmt.Sprintf("200 peers in %v of %v", least.Round(time.Millisecond), budget), nil
}

func checkCancelled(ctx context.Context, s *SolverPlugin) (string, error) {
	p := randomProblem(rand.New(rand.NewPCG(4, 4)), 100, 0, topo.Sum)
	for range 3 {
		call, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		_, _ = s.Solve(call, p, func(topo.Solution) {})
		cancel()
	}
	// It has to be there still, and to have ended what was cancelled.
	if _, err := s.solveRaw(ctx, randomProblem(rand.New(rand.NewPCG(5, 5)), 5, 0, topo.Sum), 2*time.Second); err != nil {
		return "", fmt.Errorf("after cancelled calls: %w", err)
	}
	return "", nil
}

func checkConcurrent(ctx context.Context, s *SolverPlugin) (string, error) {
	var wg sync.WaitGroup
	failures := make([]error, 4)
	for k := range failures {
		wg.Go(func() {
			p := randomProblem(rand.New(rand.NewPCG(6, uint64(k))), 6, 0, topo.BottleneckThenSum)
			got, err := s.solveRaw(ctx, p, 2*time.Second)
			if err == nil && len(got.Ring) == 0 {
				err = errors.New("no ring")
			}
			failures[k] = err
		})
	}
	wg.Wait()
	return "", errors.Join(failures...)
}
