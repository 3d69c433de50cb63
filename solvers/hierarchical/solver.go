package hierarchical

import (
	"context"
	"math"

	"github.com/gopccl/gopccl/core/topo"
)

func init() { topo.Register(Solver{}) }

// Solver is the ring solver "hierarchical". Where the matrix shows no sites, or
// more than it can order, or where no ring visits every site once, it leaves
// the problem to the solver "auto", found in the registry.
type Solver struct{}

// Name returns "hierarchical".
func (Solver) Name() string { return "hierarchical" }

// Solve returns the best ring that enters every site once: by the slowest link,
// then by the sum, or by the sum alone. It claims no optimality over rings that
// enter a site twice.
func (Solver) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	if err := p.Check(); err != nil {
		return topo.Solution{}, err
	}
	ring := contiguous(ctx, p)
	found, ok := p.Solution(ring)
	if !ok {
		s, err := topo.Lookup("auto")
		if err != nil {
			return topo.Solution{}, err
		}
		return s.Solve(ctx, p, better)
	}
	if given, ok := p.Solution(append([]int(nil), p.Start...)); ok && p.Objective.Better(given, found) {
		found = given
	}
	better(found)
	return found, nil
}

// contiguous returns the best ring that enters every site once, nil if the
// group has no such structure.
func contiguous(ctx context.Context, p topo.Problem) []int {
	n := p.Matrix.N
	if n < 3 {
		return nil
	}
	cost := costs(p.Matrix)
	sites := Sites(n, cost)
	if len(sites) == 1 || len(sites) > maxSites {
		return nil
	}
	for _, s := range sites {
		if len(s) > maxExact {
			return nil
		}
	}
	if p.Objective == topo.Sum {
		return cheapest(ctx, n, cost, sites)
	}
	o, err := plan(ctx, n, cost, sites, dearer)
	if err != nil {
		return nil
	}
	worst := o.best()
	for i, c := range cost {
		if c > worst {
			cost[i] = math.Inf(1)
		}
	}
	// Without time for the second pass the first one's ring stands.
	if ring := cheapest(ctx, n, cost, sites); ring != nil {
		return ring
	}
	return o.ring()
}

func cheapest(ctx context.Context, n int, cost []float64, sites [][]int) []int {
	o, err := plan(ctx, n, cost, sites, sum)
	if err != nil {
		return nil
	}
	return o.ring()
}

func plan(ctx context.Context, n int, cost []float64, sites [][]int, combine join) (*order, error) {
	tables := make([]chains, len(sites))
	for k, s := range sites {
		t, err := allChains(ctx, s, n, cost, combine)
		if err != nil {
			return nil, err
		}
		tables[k] = t
	}
	return newOrder(ctx, n, cost, tables, combine)
}

// costs turns rates into costs of 1000/Mbps, +Inf for a missing link.
func costs(m topo.Matrix) []float64 {
	cost := make([]float64, m.N*m.N)
	for i := range m.N {
		for j := range m.N {
			cost[i*m.N+j] = math.Inf(1)
			if v, ok := m.At(i, j); ok {
				cost[i*m.N+j] = 1000 / v
			}
		}
	}
	return cost
}
