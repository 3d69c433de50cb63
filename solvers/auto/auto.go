// Package auto is the portfolio of ring solvers: dynamic programming for
// small groups, assignment and patching (done if that meets its own bound),
// local search, a slice of branch and bound where the bound is close, then
// populations of rings for as long as there is time.
package auto

import (
	"context"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/solvers/internal/ring"
)

// subsets is the largest group that dynamic programming solves, in about 20 MB.
const subsets = 18

func init() { topo.Register(Solver{}) }

// Solver is the solver "auto".
type Solver struct{}

// Name returns "auto".
func (Solver) Name() string { return "auto" }

// Solve searches until ctx ends, the best ring is proved, or several restarts
// in a row brought nothing.
func (Solver) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	return ring.Solve(ctx, p, better, ring.Options{Branch: true, Subsets: subsets})
}
