package ring

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/topo/solvertest"
)

func free() bool { return false }

func matrix(t *rapid.T, least, most int) topo.Matrix {
	n := rapid.IntRange(least, most).Draw(t, "n")
	gaps := rapid.SampledFrom([]int{0, 20, 50, 70, 85}).Draw(t, "gaps")
	m := topo.NewMatrix(n)
	for i := range m.Mbps {
		if rapid.IntRange(0, 99).Draw(t, "gap") >= gaps {
			m.Mbps[i] = rapid.SampledFrom([]float64{1, 2, 3, 10, 33.3, 100, 250, 1e4, math.Inf(1)}).Draw(t, "mbps")
		}
	}
	return m
}

// The bound is the largest rate that passes the two conditions, checked one
// rate after the other; cycle covers by trying all.
func TestBottleneckBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := matrix(t, 2, 6)
		admits := func(floor float64) bool {
			has := func(i, j int) bool { v, ok := m.At(i, j); return ok && v >= floor }
			reach := make([][]bool, m.N)
			for i := range reach {
				reach[i] = make([]bool, m.N)
				for j := range reach {
					reach[i][j] = i == j || has(i, j)
				}
			}
			for k := range reach {
				for i := range reach {
					for j := range reach {
						reach[i][j] = reach[i][j] || reach[i][k] && reach[k][j]
					}
				}
			}
			for i := range reach {
				if slices.Contains(reach[i], false) {
					return false
				}
			}
			var cover func(i int, used uint) bool
			cover = func(i int, used uint) bool {
				if i == m.N {
					return true
				}
				for j := range m.N {
					if has(i, j) && used>>j&1 == 0 && cover(i+1, used|1<<j) {
						return true
					}
				}
				return false
			}
			return cover(0, 0)
		}
		want := 0.0
		for _, v := range thresholds(m, 0, math.MaxFloat64) {
			if admits(v) {
				want = v
			}
		}
		got, ok := bottleneckBound(m, free)
		require.True(t, ok)
		require.Equal(t, want, got)
		most, _ := bottleneckBound(m, func() bool { return true })
		require.True(t, most >= want || want == 0, "an interrupted bound is a bound")
	})
}

// Every combination of methods against trying all rings: values, bounds,
// proofs, and what is said where there is no ring.
func TestSolveAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := matrix(t, 2, 8)
		p := topo.Problem{Matrix: m, Objective: rapid.SampledFrom([]topo.Objective{topo.BottleneckThenSum, topo.Sum}).Draw(t, "objective")}
		opt := Options{
			Branch: rapid.Bool().Draw(t, "branch"), Prove: rapid.Bool().Draw(t, "prove"), BottleneckFirst: rapid.Bool().Draw(t, "first"),
			Subsets: rapid.SampledFrom([]int{0, 20}).Draw(t, "subsets"),
		}
		best := solvertest.Best(p)
		got, err := Solve(context.Background(), p, func(s topo.Solution) { require.NoError(t, p.Verify(s)) }, opt)
		if len(best.Ring) == 0 {
			var no *topo.NoRingError
			require.True(t, errors.As(err, &no), "%v", err)
			if len(no.Remove) > 0 {
				require.NotEmpty(t, solvertest.Best(topo.Problem{Matrix: without(m, no.Remove)}).Ring, "without %v", no.Remove)
			} else {
				require.Empty(t, cycles(m), "somebody could have a ring")
			}
			return
		}
		if err != nil && opt.Subsets == 0 && m.N > few {
			return // few links: a local search may find nothing, and says so
		}
		require.NoError(t, err)
		require.NoError(t, p.Verify(got))
		require.False(t, got.Optimal && p.Objective.Better(best, got) && best.Sum < got.Sum*(1-topo.Tolerance), "%v is better", best) // S1-17
		require.True(t, got.Optimal || m.N > few && opt.Subsets == 0, "not proved")
		fast := solvertest.Best(topo.Problem{Matrix: m})
		require.GreaterOrEqual(t, got.BottleneckBound, fast.Bottleneck) // S3-14
		short := solvertest.Best(topo.Problem{Matrix: m, Objective: topo.Sum})
		require.LessOrEqual(t, got.SumLowerBound, short.Sum*(1+topo.Tolerance))
	})
}

func without(m topo.Matrix, gone []int) topo.Matrix {
	var who []int
	for i := range m.N {
		if !slices.Contains(gone, i) {
			who = append(who, i)
		}
	}
	r := topo.NewMatrix(len(who))
	for a, i := range who {
		for b, j := range who {
			v, _ := m.At(i, j)
			r.Set(a, b, v)
		}
	}
	return r
}

// cycles returns pairs of peers that are connected both ways: groups that have
// a ring have such a pair or a longer cycle; either is enough for this test.
func cycles(m topo.Matrix) (pairs [][2]int) {
	for i := range m.N {
		for j := range i {
			_, a := m.At(i, j)
			_, b := m.At(j, i)
			if a && b {
				pairs = append(pairs, [2]int{j, i})
			}
		}
	}
	return pairs
}

// A peer without a link, or cut off, is named; the others get their ring.
func TestNoRingNamesPeers(t *testing.T) {
	m := topo.NewMatrix(40)
	for i := range 40 {
		for j := range 40 {
			m.Set(i, j, float64(10+(i*7+j*3)%50))
		}
	}
	for i := range 40 {
		m.Set(17, i, 0) // sends to nobody
		m.Set(i, 30, 0) // hears nobody
	}
	for _, o := range []topo.Objective{topo.BottleneckThenSum, topo.Sum} {
		_, err := Solve(context.Background(), topo.Problem{Matrix: m, Objective: o}, func(topo.Solution) {}, Options{Branch: true, Subsets: 18})
		var no *topo.NoRingError
		require.ErrorAs(t, err, &no)
		require.True(t, no.Proved)
		require.Equal(t, []int{17, 30}, no.Remove)
		require.Contains(t, no.Error(), "peer 17 has no link to any other peer")
	}
	// Three leaves of a star: two of them are too many.
	m = topo.NewMatrix(4)
	for i := 1; i < 4; i++ {
		m.Set(0, i, 5)
		m.Set(i, 0, 5)
	}
	_, err := Solve(context.Background(), topo.Problem{Matrix: m}, func(topo.Solution) {}, Options{})
	var no *topo.NoRingError
	require.ErrorAs(t, err, &no)
	require.Len(t, no.Remove, 2)
	require.NotContains(t, no.Remove, 0)
}

// A link as slow as a bit in a second does not spoil the scale of the others:
// proofs hold for the fine differences, too.
func TestScaleSurvivesAbsurdLinks(t *testing.T) {
	m := topo.NewMatrix(9)
	for i := range 9 {
		for j := range 9 {
			m.Set(i, j, 1000+float64((i*31+j*17)%97)/1e4)
		}
	}
	m.Set(0, 1, 1e-7)
	p := topo.Problem{Matrix: m, Objective: topo.Sum}
	got, err := Solve(context.Background(), p, func(topo.Solution) {}, Options{Branch: true})
	require.NoError(t, err)
	best := solvertest.Best(p)
	require.InEpsilon(t, best.Sum, got.Sum, 1e-9)
}

// The clock in the inner loops ends the search even if the context never tells.
func TestClockEndsTheSearch(t *testing.T) {
	m := topo.NewMatrix(150)
	for i := range m.Mbps {
		m.Mbps[i] = float64(1 + i*7919%10007)
	}
	for _, o := range []topo.Objective{topo.BottleneckThenSum, topo.Sum} {
		for steps := range 40 {
			var used time.Duration
			p := topo.Problem{Matrix: m, Objective: o}
			ctx := topo.Limit(context.Background(), time.Duration(steps*steps)*time.Millisecond, func() time.Duration { used += time.Millisecond; return used })
			got, err := Solve(ctx, p, func(topo.Solution) {}, Options{Branch: true})
			require.NoError(t, err)
			require.NoError(t, p.Verify(got)) // S1-18
		}
	}
}

// Whenever the time ends, the answer is no worse than going from each peer to
// the one that it reaches fastest.
func TestWheneverTimeEnds(t *testing.T) {
	const n = 130
	p := topo.Problem{Matrix: topo.NewMatrix(n)}
	state := uint32(1)
	for i := range p.Matrix.Mbps {
		state = state*1664525 + 1013904223
		p.Matrix.Mbps[i] = float64(1 + state>>16%5000)
	}
	near, ok := p.Solution((&run{p: p}).nearest())
	require.True(t, ok)
	for _, o := range []topo.Objective{topo.BottleneckThenSum, topo.Sum} {
		p.Objective = o
		for looks := range 16 {
			used := time.Duration(0)
			ctx := topo.Limit(context.Background(), time.Duration(looks*looks), func() time.Duration { used++; return used })
			s, err := Solve(ctx, p, func(topo.Solution) {}, Options{})
			require.NoError(t, err)
			require.False(t, o.Better(near, s), "%v, %d looks at the clock: sum %v, nearest %v", o, looks*looks, s.Sum, near.Sum) // S1-18
		}
	}
}

// A slow link that pays for its penalty must not keep the search from the
// least sum without it.
func TestSlowLinkThatPaysForItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 8
		p := topo.Problem{Matrix: topo.NewMatrix(n), Objective: topo.BottleneckThenSum}
		for i := range n {
			for j := range n {
				p.Matrix.Set(i, j, rapid.SampledFrom([]float64{950, 999, 1000, 1100, 1500, 2000, 4000, 1e4, 1e6}).Draw(t, "rate"))
			}
		}
		// From here only one link is as fast as the slowest of the best ring;
		// the others are nearly so, and leave more to choose.
		for j := range n - 1 {
			p.Matrix.Set(n-1, j, 999)
		}
		p.Matrix.Set(n-1, n-2, 1000)
		got, err := Solve(context.Background(), p, func(topo.Solution) {}, Options{soft: 0.01})
		require.NoError(t, err)
		best := solvertest.Best(p)
		require.Equal(t, best.Bottleneck, got.Bottleneck) // S3-14
		require.InEpsilon(t, best.Sum, got.Sum, 1e-9)
	})
}
