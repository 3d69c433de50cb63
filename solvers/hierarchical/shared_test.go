package hierarchical

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/contention"
)

// drawShared draws a group on hosts, some of whose ways in and out are shared.
func drawShared(t *rapid.T, least, most int) (topo.Problem, *topo.Sharing) {
	n := rapid.IntRange(least, most).Draw(t, "peers")
	hosts := rapid.IntRange(1, n).Draw(t, "hosts")
	m := topo.NewMatrix(n)
	s := &topo.Sharing{Out: make([]float64, hosts), In: make([]float64, hosts)}
	for i := range n {
		s.Host = append(s.Host, rapid.IntRange(0, hosts-1).Draw(t, "host"))
		for j := range n {
			if i != j && rapid.IntRange(0, 9).Draw(t, "link") > 0 {
				m.Set(i, j, float64(rapid.IntRange(1, 100).Draw(t, "rate")))
			}
		}
	}
	for h := range hosts {
		s.Out[h] = float64(rapid.IntRange(0, 100).Draw(t, "out"))
		s.In[h] = float64(rapid.IntRange(0, 100).Draw(t, "in"))
	}
	return topo.Problem{Matrix: m}, s
}

// The value of a ring is that of the simulator of shared channels: the slowest
// of its links while all are in use; the sum is a bound of the simulator's.
func TestSharedValueIsTheSimulators(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, s := drawShared(t, 2, 7)
		n := p.Matrix.N
		ring := rapid.Permutation(identity(n)).Draw(t, "ring")
		got, sum, ok := s.Value(p.Matrix, ring)
		var set []contention.Transfer
		for k, i := range ring {
			set = append(set, contention.Transfer{From: i, To: ring[(k+1)%n]})
		}
		rates, err := contention.Shared(n, p.Matrix.Mbps, s.Host, s.Out, s.In).Rates(context.Background(), set)
		require.NoError(t, err)
		slowest, total := math.Inf(1), 0.0
		for _, r := range rates {
			slowest, total = min(slowest, r), total+1000/r
		}
		require.Equal(t, slowest > 0, ok)
		if ok {
			require.InEpsilon(t, slowest, got, 1e-9) // S3-02
			require.GreaterOrEqual(t, sum*(1+1e-9), total)
		}
	})
}

func identity(n int) (is []int) {
	for i := range n {
		is = append(is, i)
	}
	return is
}

// Without anything shared the value is the matrix's, and an absent bound limits nothing.
func TestNothingIsShared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, s := drawShared(t, 2, 7)
		for h := range s.Out {
			s.Out[h], s.In[h] = 0, math.NaN()
		}
		ring := rapid.Permutation(identity(p.Matrix.N)).Draw(t, "ring")
		b, sum, ok := p.Matrix.Value(ring)
		for _, s := range []*topo.Sharing{nil, s} {
			b2, sum2, ok2 := s.Value(p.Matrix, ring)
			require.Equal(t, ok, ok2)
			require.Equal(t, b, b2)
			require.InDelta(t, sum, sum2, 1e-9*sum)
		}
	})
}

// Small groups: all rings are tried, and the search that larger ones get finds
// a ring with the same slowest link.
func TestSharedSearchAgainstAllRings(t *testing.T) {
	equal, seen := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p, s := drawShared(t, 4, 7)
		p.Objective = rapid.SampledFrom([]topo.Objective{topo.BottleneckThenSum, topo.Sum}).Draw(t, "objective")
		told := topo.Solution{}
		best, err := Solver{}.SolveShared(context.Background(), p, s, func(b topo.Solution) {
			require.True(t, p.Objective.Better(b, told))
			told = b
		})
		if err != nil {
			require.ErrorIs(t, err, topo.ErrNoRing)
			return
		}
		require.True(t, best.Optimal)
		require.Equal(t, best.Ring, told.Ring)
		d := &descent{p: p, s: s, ctx: context.Background(), better: func(topo.Solution) {}, rng: 1}
		d.try(best.Ring)
		d.best = topo.Solution{}
		for _, r := range [][]int{identity(p.Matrix.N), contiguousShared(context.Background(), p, s)} {
			d.try(r)
		}
		if d.best.Ring == nil {
			return
		}
		d.improve()
		b, sum, ok := s.Value(p.Matrix, d.best.Ring)
		require.True(t, ok)
		require.Equal(t, []float64{d.best.Bottleneck, d.best.Sum}, []float64{b, sum})
		// Sums differ by what rounding makes of another first peer.
		rounded := func(s topo.Solution, up float64) topo.Solution {
			return topo.Solution{Ring: s.Ring, Bottleneck: s.Bottleneck, Sum: s.Sum * (1 + up)}
		}
		require.False(t, p.Objective.Better(rounded(d.best, 1e-9), best))
		seen++
		if !p.Objective.Better(best, rounded(d.best, -1e-9)) {
			equal++
		}
	})
	t.Logf("the search found the best of all rings in %d of %d cases", equal, seen)
	require.GreaterOrEqual(t, equal*20, seen*19)
}

// Hosts whose peers share one way out: the ring leaves each of them once, where
// the best ring of the matrix, whose links were measured one by one, need not.
func TestSharedHostsAreLeftOnce(t *testing.T) {
	for _, hosts := range []int{3, 4} {
		const each = 3
		n := hosts * each
		m := topo.NewMatrix(n)
		s := &topo.Sharing{Out: make([]float64, hosts), In: make([]float64, hosts)}
		for i := range n {
			s.Host = append(s.Host, i%hosts)
			for j := range n {
				m.Set(i, j, 100) // between hosts, alone
				if i%hosts == j%hosts {
					m.Set(i, j, 90)
				}
			}
		}
		for h := range hosts {
			s.Out[h] = 100
		}
		p := topo.Problem{Matrix: m, Start: identity(n)}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		got, err := Solver{}.SolveShared(ctx, p, s, func(topo.Solution) {})
		cancel()
		require.NoError(t, err)
		require.Equal(t, 90.0, got.Bottleneck) // S3-01
		start, _, _ := s.Value(m, p.Start)
		require.InEpsilon(t, 100.0/3, start, 1e-9, "three links leave every host at once")
	}
}
