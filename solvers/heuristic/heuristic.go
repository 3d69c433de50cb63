// Package heuristic finds good rings of any number of peers within a time
// limit, without a proof: assignment and patching, exchanges of three and five
// links that keep the direction of travel, iterated search, and the breeding
// of populations of rings.
package heuristic

import (
	"context"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/solvers/internal/ring"
)

func init() { topo.Register(Solver{}) }

// Solver is the solver "heuristic".
type Solver struct{}

// Name returns "heuristic".
func (Solver) Name() string { return "heuristic" }

// Solve returns the best ring found. It ends before ctx does if several
// restarts in a row brought nothing. Optimal is set only where a bound or
// trying all rings of a few peers proves it.
func (Solver) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	return ring.Solve(ctx, p, better, ring.Options{})
}
