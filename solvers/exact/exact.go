// Package exact finds the best ring and proves it: by dynamic programming over
// subsets (Held and Karp) for up to MaxSubsets peers, whose time and memory
// double with every peer, and by branch and bound on the assignment problem
// beyond, which may take as long as it likes.
package exact

import (
	"context"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/solvers/internal/ring"
)

// MaxSubsets is the largest group that dynamic programming solves: 20 peers
// take about a second and 80 MB.
const MaxSubsets = 20

func init() { topo.Register(Solver{}) }

// Solver is the solver "exact".
type Solver struct{}

// Name returns "exact".
func (Solver) Name() string { return "exact" }

// Solve returns the best ring, proved. If ctx ends first it returns the best
// one so far, without Optimal.
func (Solver) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	return ring.Solve(ctx, p, better, ring.Options{Branch: true, Subsets: MaxSubsets, Prove: true})
}
