package topo_test

import (
	"context"
	"fmt"

	"github.com/gopccl/gopccl/core/topo"
)

// greedy always goes to the peer that the last one reaches fastest.
type greedy struct{}

func (greedy) Name() string { return "greedy" }

func (greedy) Solve(_ context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	if err := p.Check(); err != nil {
		return topo.Solution{}, err
	}
	ring, used := []int{0}, make([]bool, p.Matrix.N)
	for used[0] = true; len(ring) < p.Matrix.N; {
		next, fastest := -1, 0.0
		for j := range p.Matrix.N {
			if mbps, ok := p.Matrix.At(ring[len(ring)-1], j); ok && !used[j] && mbps > fastest {
				next, fastest = j, mbps
			}
		}
		if next < 0 {
			return topo.Solution{}, fmt.Errorf("greedy: %w", topo.ErrNoRing)
		}
		ring, used[next] = append(ring, next), true
	}
	s, ok := p.Solution(ring)
	if !ok {
		return topo.Solution{}, fmt.Errorf("greedy: %w", topo.ErrNoRing)
	}
	better(s)
	return s, nil
}

// A solver of one's own is registered under its name, by which a master is told
// to use it (core.MasterOptions.Solver); or a master is given the solver itself
// (RingSolver). The suite core/topo/solvertest says whether it keeps its word.
func Example() {
	topo.Register(greedy{})

	m := topo.NewMatrix(4) // Mbit/s, from by to
	for i := range 4 {
		for j := range 4 {
			m.Set(i, j, 10)
		}
	}
	m.Set(0, 2, 90)
	m.Set(2, 1, 80)
	m.Set(1, 3, 70)
	m.Set(3, 0, 60)
	solver, err := topo.Lookup("greedy")
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := solver.Solve(context.Background(), topo.Problem{Matrix: m}, func(topo.Solution) {})
	fmt.Println(s.Ring, s.Bottleneck, err)
	// Output:
	// [0 2 1 3] 60 <nil>
}
