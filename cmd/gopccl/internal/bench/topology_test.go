package bench

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/solvers/bottleneck"
)

const data = "../../../../tests/bench/topology/data"

// Held-out instances are a matter of their seed alone, of the sizes and kinds
// that targets exist for, and their links have the digits that a file would have.
func TestHeldOut(t *testing.T) {
	all, again, other := HeldOut(3), HeldOut(3), HeldOut(4)
	kinds := map[string]int{}
	for k, in := range all {
		require.Equal(t, in.Matrix, again[k].Matrix)
		require.NotEqual(t, in.Matrix, other[k].Matrix)
		require.GreaterOrEqual(t, in.Matrix.N, 128)
		require.LessOrEqual(t, in.Matrix.N, 316)
		kinds[in.Kind]++
		missing := 0
		for i := range in.Matrix.N {
			for j := range in.Matrix.N {
				if _, ok := in.Matrix.At(i, j); !ok && i != j {
					missing++
				}
			}
		}
		require.Equal(t, strings.HasPrefix(in.Name, "nat"), missing > 0, in.Name)
	}
	require.Equal(t, map[string]int{"wan": 5, "atsp-syn": 7}, kinds)

	// What a ring is worth by hand, and in the units of the file.
	in := all[slices.IndexFunc(all, func(in Instance) bool { return strings.HasPrefix(in.Name, "amat") })]
	require.True(t, in.Costs)
	c, ok := in.Matrix.Cost(0, 1)
	require.True(t, ok)
	require.InEpsilon(t, c, in.File.Bottleneck(1000/c), 1e-12)
}

// The classes have the properties that define them.
func TestClasses(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const n = 12
	c := tmat(rnd, n)
	for i := range n {
		for j := range n {
			for k := range n {
				if i != j && j != k && i != k {
					require.LessOrEqual(t, c[i][j], c[i][k]+c[k][j])
				}
			}
		}
	}
	// After a job that ends at once on every machine but the last, every job
	// would have to wait for the last alone.
	for range 20 {
		c = shop(rnd, n)
		for i := range n {
			for j := range n {
				require.True(t, i == j || c[i][j] >= 1 && c[i][j] <= 51*1000)
			}
		}
	}
	c = superstring(rnd, n)
	for i := range n {
		for j := range n {
			require.True(t, i == j || c[i][j] >= 1 && c[i][j] <= 20)
		}
	}
	// Up costs three times what down does, across the same.
	c = rtilt(rnd, n)
	for i := range n {
		for j := range n {
			require.LessOrEqual(t, c[i][j], 3*c[j][i]+2)
		}
	}
}

// Rings that were written as JSON, and what is not a ring between them, come
// back, compared with what is best by then.
func TestReadRings(t *testing.T) {
	all, err := Instances(data, "gcp6-europe-s1000")
	require.NoError(t, err)
	require.Len(t, all, 1)
	var rings []Ring
	var text strings.Builder
	out := json.NewEncoder(&text)
	for _, o := range []topo.Objective{topo.Sum, topo.BottleneckThenSum} {
		r, err := all[0].Solve(t.Context(), bottleneck.Solver{}, o, 0, time.Minute, nil)
		require.NoError(t, err)
		require.Empty(t, r.Invalid)
		rings = append(rings, r)
		require.NoError(t, out.Encode(r))
	}
	require.InDelta(t, 0, rings[0].Gap, 1e-5)
	require.Equal(t, 2760.0, rings[1].Slowest)
	marks := Marks(rings, time.Second)
	for _, m := range marks {
		require.True(t, m.Holds, m)
		require.NoError(t, out.Encode(m))
	}
	got, err := ReadRings(strings.NewReader(text.String()), all)
	require.NoError(t, err)
	require.Equal(t, rings, got)

	all[0].Sum /= 2
	all[0].SumAt /= 2
	got, err = ReadRings(strings.NewReader(text.String()), all)
	require.NoError(t, err)
	require.InDelta(t, 100, got[0].Gap, 1e-4)
	require.InDelta(t, 100, got[1].ExcessAt, 1e-4)
	require.False(t, Marks(got, time.Second)[0].Holds)

	_, err = ReadRings(strings.NewReader(text.String()[:40]), all)
	require.Error(t, err)
}

// What is best of an instance is found by the solver it is given.
func TestRefer(t *testing.T) {
	all, err := Instances(data, "gcp12-namerica-s1011")
	require.NoError(t, err)
	want := all[0]
	_, err = all[0].Solve(t.Context(), bottleneck.Solver{}, topo.Sum, 0, time.Millisecond, nil) // reads the file
	require.NoError(t, err)
	in := Instance{Kind: "wan", File: all[0].File}
	steps := time.Duration(0)
	require.NoError(t, in.Refer(t.Context(), bottleneck.Solver{}, 1, time.Second, func() time.Duration { steps += 100 * time.Microsecond; return steps }))
	require.InDelta(t, want.Sum, in.Sum, 1e-6*want.Sum)
	require.InDelta(t, want.Bottleneck, in.Bottleneck, 1e-9)
	require.InDelta(t, want.SumAt, in.SumAt, 1e-6*want.SumAt)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, in.Refer(ctx, bottleneck.Solver{}, 1, time.Second, nil), context.Canceled)
}

// How long planning takes is told by size: the first ring comes no later than
// the last one's slowest link, and that no later than the end.
func TestPlan(t *testing.T) {
	for _, n := range []int{2, 5, 12, 40} {
		looks := time.Duration(0)
		r, err := Plan(t.Context(), bottleneck.Solver{}, n, 3, time.Second, func() time.Duration { looks += time.Millisecond; return looks })
		require.NoError(t, err)
		require.Equal(t, n, r.N)
		require.Positive(t, r.First)
		require.LessOrEqual(t, r.First, r.Settled)
		require.LessOrEqual(t, r.Settled, r.Close)
		require.LessOrEqual(t, r.Close, r.Seconds)
		require.Positive(t, r.Ratio)
		require.LessOrEqual(t, r.Ratio, 1.0)
		require.LessOrEqual(t, r.Bound, 1.0)
		require.True(t, r.Optimal || n > 7)
	}
}
