package defaults

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/topo/solvertest"
)

func TestAuto(t *testing.T) {
	require.Equal(t, []string{"antcolony", "auto", "bottleneck", "exact", "heuristic", "hierarchical"}, topo.Names())
	s, err := topo.Lookup("auto")
	require.NoError(t, err)
	solvertest.Run(t, s, solvertest.Want{MaxPeers: 18, Ratio: 0.5, Budget: 200 * time.Millisecond})
}

// The local search against the proof, on groups too large to try all rings
// and small enough to prove the best one.
func TestHeuristicAgainstExact(t *testing.T) {
	exact, err := topo.Lookup("exact")
	require.NoError(t, err)
	heuristic, err := topo.Lookup("heuristic")
	require.NoError(t, err)
	rnd := rand.New(rand.NewPCG(1, 2))
	for k := range 12 {
		n := 9 + k%3
		p := topo.Problem{Matrix: topo.NewMatrix(n), Objective: []topo.Objective{topo.BottleneckThenSum, topo.Sum}[k%2]}
		for i := range p.Matrix.Mbps {
			p.Matrix.Mbps[i] = 10 + 990*rnd.Float64()*rnd.Float64()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		best, err := exact.Solve(ctx, p, func(topo.Solution) {})
		require.NoError(t, err)
		require.True(t, best.Optimal)
		got, err := heuristic.Solve(ctx, p, func(topo.Solution) {})
		cancel()
		require.NoError(t, err)
		if p.Objective != topo.Sum {
			require.Equal(t, best.Bottleneck, got.Bottleneck, "n %d", n)
		}
		require.LessOrEqual(t, got.Sum, best.Sum*1.01, "n %d", n) // S1-17
		require.False(t, p.Objective.Better(got, best) && got.Sum < best.Sum*(1-1e-9), "better than the proved best")
	}
}

func TestHierarchical(t *testing.T) {
	s, err := topo.Lookup("hierarchical")
	require.NoError(t, err)
	solvertest.Run(t, s, solvertest.Want{MaxPeers: 32, Ratio: 0.9, Budget: 100 * time.Millisecond}) // S2-16
}
