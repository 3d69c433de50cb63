package hierarchical

import (
	"context"
	"math"

	"github.com/gopccl/gopccl/core/topo"
)

func init() { topo.Register(Solver{}) }

// Solver is the ring solver "hierarchical": first the best ring that enters
// every site once, at once; then the solver "auto", found in the registry, starts
// from it, because entering a site twice can pay where rates inside a site
// differ. Where the matrix shows no sites, or more or larger ones than the
// dynamic programme takes, "auto" starts from what it was given.
type Solver struct{}

// Name returns "hierarchical".
func (Solver) Name() string { return "hierarchical" }

// Solve implements topo.Solver.
func (Solver) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	if err := p.Check(); err != nil {
		return topo.Solution{}, err
	}
	auto, err := topo.Lookup("auto")
	if err != nil {
		return topo.Solution{}, err
	}
	var first topo.Solution
	if found, ok := p.Solution(contiguous(ctx, p)); ok {
		given, _ := p.Solution(p.Start)
		if !p.Objective.Better(given, found) {
			first = found
			p.Start = append([]int(nil), found.Ring...)
			better(found)
		}
	}
	return auto.Solve(ctx, p, func(s topo.Solution) {
		if p.Objective.Better(s, first) {
			better(s)
		}
	})
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
	ring, err := fastest(ctx, n, cost, sites)
	if err != nil {
		return nil
	}
	return ring
}

// fastest returns the ring with the fastest slowest link, and of these the one
// with the least sum if there is time for it. Links slower than the slowest one
// are struck out of cost.
func fastest(ctx context.Context, n int, cost []float64, sites [][]int) ([]int, error) {
	o, err := plan(ctx, n, cost, sites, dearer)
	if err != nil {
		return nil, err
	}
	worst := o.best()
	for i, c := range cost {
		if c > worst {
			cost[i] = math.Inf(1)
		}
	}
	if ring := cheapest(ctx, n, cost, sites); ring != nil {
		return ring, nil
	}
	return o.ring(), nil
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
