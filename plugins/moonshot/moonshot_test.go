package main

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/topo/solvertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	m := moonshot{threads: 2, patience: time.Minute}
	topo.Register(m)
	solvertest.Run(t, m, solvertest.Want{Wall: true}) // S1-19
}

func randomProblem(t *rapid.T, n int) topo.Problem {
	p := topo.Problem{Matrix: topo.NewMatrix(n), Objective: rapid.SampledFrom([]topo.Objective{topo.BottleneckThenSum, topo.Sum}).Draw(t, "objective")}
	for i := range p.Matrix.Mbps {
		p.Matrix.Mbps[i] = float64(rapid.IntRange(1, 1000).Draw(t, "rate"))
	}
	return p
}

func ringOf(t *rapid.T, n int) []int {
	ring := make([]int, n)
	for i := range ring {
		ring[i] = i
	}
	return rapid.Permutation(ring).Draw(t, "ring")
}

// A contraction keeps what all rings share, contains the best of them, and
// every ring of it is one of the whole with the same sum up to what is kept.
func TestContraction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 9).Draw(t, "n")
		p := randomProblem(t, n)
		rings := [][]int{ringOf(t, n)}
		other := slices.Clone(rings[0]) // mostly the same: one segment moved
		i, j := rapid.IntRange(0, n-1).Draw(t, "i"), rapid.IntRange(0, n-1).Draw(t, "j")
		other[i], other[j] = other[j], other[i]
		rings = append(rings, other)
		best, ok := p.Solution(rings[0])
		require.True(t, ok)
		c := contract(p, rings, best)
		if i == j {
			require.Empty(t, c.paths)
			return
		}
		back, ok := p.Solution(c.expand(c.problem.Start))
		require.True(t, ok)
		require.InEpsilon(t, best.Sum, back.Sum, 1e-12)
		start, ok := c.problem.Solution(c.problem.Start)
		require.True(t, ok, "the best ring is in the contraction")
		kept := best.Sum - start.Sum
		if len(c.paths) <= 8 {
			merged := solvertest.Best(c.problem)
			whole, ok := p.Solution(c.expand(merged.Ring))
			require.True(t, ok)
			require.InDelta(t, kept+merged.Sum, whole.Sum, 1e-9*whole.Sum)
			require.False(t, p.Objective.Better(best, whole) && math.Abs(best.Sum-whole.Sum) > 1e-9*best.Sum, "merging made it worse")
		}
		for k, from := range rings[0] {
			to := rings[0][(k+1)%n]
			at := slices.Index(other, from)
			if other[(at+1)%n] == to {
				require.True(t, slices.ContainsFunc(c.paths, func(path []int) bool {
					x := slices.Index(path, from)
					return x >= 0 && (x+1 < len(path) && path[x+1] == to || x+1 == len(path))
				}))
			}
		}
	})
}

// The search ends by itself when nothing better was found for long.
func TestPatience(t *testing.T) {
	m := moonshot{threads: 2, patience: 50 * time.Millisecond}
	p := topo.Problem{Matrix: topo.NewMatrix(60)}
	for i := range p.Matrix.Mbps {
		p.Matrix.Mbps[i] = float64(1 + i*7919%10007)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := m.Solve(ctx, p, func(topo.Solution) {})
	require.NoError(t, err)
	require.NoError(t, p.Verify(got))
	require.NoError(t, ctx.Err())
}
