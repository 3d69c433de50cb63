// Package bottleneck finds the ring whose slowest link is the fastest: the
// largest threshold whose links connect everybody in both directions and give
// every peer a successor of its own bounds it; a ring there, or as close below
// as one is found, is then improved by the objective.
package bottleneck

import (
	"context"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/solvers/internal/ring"
)

func init() { topo.Register(Solver{}) }

// Solver is the solver "bottleneck".
type Solver struct{}

// Name returns "bottleneck".
func (Solver) Name() string { return "bottleneck" }

// Solve returns the best ring found, under either objective; BottleneckBound
// is always known.
func (Solver) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	return ring.Solve(ctx, p, better, ring.Options{BottleneckFirst: true})
}
