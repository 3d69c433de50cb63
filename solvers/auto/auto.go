// Package auto chooses the solver by the size of the group: "exact" where it
// takes milliseconds, "heuristic" above. Both are found in the registry, so
// they have to be linked as well (solvers/defaults does).
package auto

import (
	"context"

	"github.com/gopccl/gopccl/core/topo"
)

// exactUpTo is the largest group for which the proof costs next to nothing.
const exactUpTo = 12

func init() { topo.Register(Solver{}) }

// Solver is the solver "auto".
type Solver struct{}

// Name returns "auto".
func (Solver) Name() string { return "auto" }

// Solve runs the solver that fits the problem.
func (Solver) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	name := "heuristic"
	if p.Matrix.N <= exactUpTo {
		name = "exact"
	}
	s, err := topo.Lookup(name)
	if err != nil {
		return topo.Solution{}, err
	}
	return s.Solve(ctx, p, better)
}
