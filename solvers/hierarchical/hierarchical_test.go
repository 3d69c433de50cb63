package hierarchical

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/topo"
)

// cloud returns sites of the given sizes: rates inside of 1 to 2 Gbit/s,
// between of 50 to 400 Mbit/s, gaps percent of the links missing. The members
// of a site are not neighbours in number.
func cloud(rnd *rand.Rand, gaps int, sizes ...int) (topo.Matrix, [][]int) {
	var site []int
	for k, size := range sizes {
		site = append(site, slices.Repeat([]int{k}, size)...)
	}
	rnd.Shuffle(len(site), func(a, b int) { site[a], site[b] = site[b], site[a] })
	m := topo.NewMatrix(len(site))
	sites := make([][]int, len(sizes))
	for i, a := range site {
		sites[a] = append(sites[a], i)
		for j, b := range site {
			switch rate := float64(50 + rnd.IntN(350)); {
			case i == j || rnd.IntN(100) < gaps:
			case a == b:
				m.Set(i, j, float64(1000+rnd.IntN(1000)))
			default:
				m.Set(i, j, rate)
			}
		}
	}
	slices.SortFunc(sites, func(a, b []int) int { return a[0] - b[0] })
	return m, sites
}

// brute tries every ring that enters every site once.
func brute(p topo.Problem, sites [][]int) topo.Solution {
	var best topo.Solution
	ring := make([]int, 0, p.Matrix.N)
	var site func(left [][]int)
	var fill func(members []int, then func())
	fill = func(members []int, then func()) {
		if len(members) == 0 {
			then()
			return
		}
		for k, m := range members {
			if len(ring) > 0 {
				if _, ok := p.Matrix.At(ring[len(ring)-1], m); !ok {
					continue
				}
			}
			ring = append(ring, m)
			fill(append(append([]int(nil), members[:k]...), members[k+1:]...), then)
			ring = ring[:len(ring)-1]
		}
	}
	site = func(left [][]int) {
		if len(left) == 0 {
			if s, ok := p.Solution(ring); ok && p.Objective.Better(s, best) {
				best = s
				best.Ring = slices.Clone(ring)
			}
			return
		}
		for k, members := range left {
			fill(members, func() { site(append(append([][]int(nil), left[:k]...), left[k+1:]...)) })
		}
	}
	fill(sites[0], func() { site(sites[1:]) })
	return best
}

// The dynamic programmes against trying all rings that enter every site once.
func TestEqualsBruteForce(t *testing.T) {
	shapes := [][]int{{1, 1}, {2, 1}, {3, 3}, {4, 1, 2}, {2, 3, 2}, {1, 1, 1, 1}, {3, 2, 2, 2}, {4, 4}, {3, 3, 3}, {2, 4, 1, 3}}
	rnd := rand.New(rand.NewPCG(7, 9))
	for _, o := range []topo.Objective{topo.BottleneckThenSum, topo.Sum} {
		for k := range 120 {
			m, sites := cloud(rnd, []int{0, 0, 15, 35}[k%4], shapes[k%len(shapes)]...)
			compare(t, topo.Problem{Matrix: m, Objective: o}, sites) // S3-11, S3-12, S3-13
		}
	}
	// Four sites of four peers: two million rings.
	m, sites := cloud(rnd, 20, 4, 4, 4, 4)
	compare(t, topo.Problem{Matrix: m}, sites)
}

func compare(t *testing.T, p topo.Problem, sites [][]int) {
	t.Helper()
	want := brute(p, sites)
	cost := costs(p.Matrix)
	ring, err := cheapest(context.Background(), p.Matrix.N, cost, sites), error(nil)
	if p.Objective != topo.Sum {
		ring, err = fastest(context.Background(), p.Matrix.N, cost, sites)
	}
	require.NoError(t, err)
	got, ok := p.Solution(ring)
	require.Equal(t, len(want.Ring) > 0, ok, "%v", sites)
	if ok {
		require.InEpsilon(t, want.Bottleneck, got.Bottleneck, 1e-12, "%v", sites)
		require.InEpsilon(t, want.Sum, got.Sum, 1e-9, "%v", sites)
	}
}

func TestSitesAreFound(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, sizes := range [][]int{{4, 4}, {1, 5}, {3, 3, 3, 3}, {12, 1, 7}, {2, 2}} {
		m, want := cloud(rnd, 0, sizes...)
		require.Equal(t, want, Sites(m.N, costs(m)))
	}
	flat := topo.NewMatrix(6)
	for i := range flat.Mbps {
		flat.Mbps[i] = 100 + float64(i)
	}
	require.Len(t, Sites(6, costs(flat)), 1, "rates that differ by less than twice are one site")
	require.Equal(t, [][]int{{0}}, Sites(1, []float64{math.Inf(1)}))
	// Sites without any link between them, and peers without any link.
	apart := topo.NewMatrix(4)
	for _, l := range [][2]int{{0, 1}, {1, 0}, {2, 3}, {3, 2}} {
		apart.Set(l[0], l[1], 1000)
	}
	require.Equal(t, [][]int{{0, 1}, {2, 3}}, Sites(4, costs(apart)))
}

// A division into sites is one: every peer once, links inside cheaper than out.
func TestSitesDivide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "n")
		cost := rapid.SliceOfN(rapid.SampledFrom([]float64{1, 1.5, 3, 10, 40, math.Inf(1)}), n*n, n*n).Draw(t, "cost")
		seen := make([]bool, n)
		last := -1
		for _, s := range Sites(n, cost) {
			require.NotEmpty(t, s)
			require.Greater(t, s[0], last)
			last = s[0]
			require.True(t, slices.IsSorted(s))
			for _, i := range s {
				require.False(t, seen[i])
				seen[i] = true
			}
		}
		require.NotContains(t, seen, false)
	})
}

// A solver that runs out of time has the ring of the sites, or what it was given.
func TestCanceledPlanning(t *testing.T) {
	m, sites := cloud(rand.New(rand.NewPCG(3, 1)), 0, 8, 8)
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	require.Nil(t, cheapest(ctx, m.N, costs(m), sites))
	require.Nil(t, contiguous(ctx, topo.Problem{Matrix: m}))
}
