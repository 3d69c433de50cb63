// Package solvertest is the conformance suite of ring solvers: what every
// implementation of topo.Solver must hold, and how good its rings must be.
package solvertest

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed" // the wide-area matrices
	"encoding/json"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/topo"
)

// Want says what is expected of a solver.
type Want struct {
	// MaxPeers is the largest group of the suite that it must solve (0: all).
	MaxPeers int
	// Proves: it finds the best ring always and says so.
	Proves bool
	// Ratio is the least acceptable bottleneck on the wide-area matrices,
	// relative to the best known; 0 skips them.
	Ratio float64
	// Budget is the time for each of them, by a clock that goes on with every
	// look at it (see steps): what a solver finds depends on no machine.
	Budget time.Duration
	// Wall: it knows no other clock than that of the wall.
	Wall bool
}

// Instance is a wide-area matrix with its best known values.
type Instance struct {
	Name       string
	Matrix     topo.Matrix
	Sum        float64 // least sum of 1000/Mbps
	Bottleneck float64 // largest slowest link, Mbit/s
	SumAt      float64 // least known sum at that bottleneck
}

//go:embed testdata/wan.json.gz
var wan []byte

// Instances returns synthetic wide-area matrices of 6 to 128 peers, with
// optimal values where these are proved and the best known ones elsewhere.
func Instances() ([]Instance, error) {
	z, err := gzip.NewReader(bytes.NewReader(wan))
	if err != nil {
		return nil, err
	}
	var list []struct {
		Name            string
		N               int
		Mbps            [][]float64
		Sum, Bottleneck float64
		SumAt           float64 `json:"sum_at"`
	}
	if err := json.NewDecoder(z).Decode(&list); err != nil {
		return nil, err
	}
	var out []Instance
	for _, e := range list {
		i := Instance{Name: e.Name, Matrix: topo.NewMatrix(e.N), Sum: e.Sum, Bottleneck: e.Bottleneck, SumAt: e.SumAt}
		for r, row := range e.Mbps {
			copy(i.Matrix.Mbps[r*e.N:], row)
		}
		out = append(out, i)
	}
	return out, nil
}

// Best returns the best ring by trying all orders; for up to 9 peers.
func Best(p topo.Problem) topo.Solution {
	var best topo.Solution
	n := p.Matrix.N
	if n < 2 {
		return best
	}
	ring := seq(n)
	var try func(k int, slowest, sum float64)
	try = func(k int, slowest, sum float64) {
		if k == n {
			// Rounding may differ from that of Solution by the order of the sum.
			last, ok := p.Matrix.At(ring[n-1], ring[0])
			c, _ := p.Matrix.Cost(ring[n-1], ring[0])
			if !ok || !p.Objective.Better(topo.Solution{Ring: ring, Bottleneck: min(slowest, last), Sum: (sum + c) * (1 - 1e-12)}, best) {
				return
			}
			if s, ok := p.Solution(ring); ok && p.Objective.Better(s, best) {
				best = s
				best.Ring = slices.Clone(ring)
			}
			return
		}
		for i := k; i < n; i++ {
			ring[k], ring[i] = ring[i], ring[k]
			if v, ok := p.Matrix.At(ring[k-1], ring[k]); ok {
				c, _ := p.Matrix.Cost(ring[k-1], ring[k])
				try(k+1, min(slowest, v), sum+c)
			}
			ring[k], ring[i] = ring[i], ring[k]
		}
	}
	try(1, math.Inf(1), 0)
	return best
}

// Run runs the suite.
func Run(t *testing.T, s topo.Solver, w Want) {
	t.Run("registered", func(t *testing.T) {
		got, err := topo.Lookup(s.Name())
		require.NoError(t, err)
		require.Equal(t, s, got)
	})
	t.Run("brute force", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { againstBruteForce(t, s, w) }) })
	t.Run("degenerate", func(t *testing.T) { degenerate(t, s) })
	t.Run("two sites", func(t *testing.T) { twoSites(t, s) })
	t.Run("canceled", func(t *testing.T) { canceled(t, s) })
	t.Run("budget", func(t *testing.T) { budget(t, s, w) })
	if !w.Wall {
		t.Run("late", func(t *testing.T) { late(t, s, w) })
	}
	t.Run("shared", func(t *testing.T) { shared(t, s) })
	if w.Ratio > 0 {
		t.Run("wide area", func(t *testing.T) { wideArea(t, s, w) })
	}
}

// solve calls s and checks what must hold for every answer.
func solve(t require.TestingT, ctx context.Context, s topo.Solver, p topo.Problem) (topo.Solution, error) {
	var last topo.Solution
	before := slices.Clone(p.Matrix.Mbps)
	start := slices.Clone(p.Start)
	var least, fastest float64 // what the stream says that no ring can exceed
	got, err := s.Solve(ctx, p, func(b topo.Solution) {
		check(t, p, b)
		least = max(least, b.SumLowerBound)
		if b.BottleneckBound > 0 && (fastest == 0 || b.BottleneckBound < fastest) {
			fastest = b.BottleneckBound
		}
		require.True(t, p.Objective.Better(b, last), "an improvement that does not improve")
		last = topo.Solution{Ring: slices.Clone(b.Ring), Bottleneck: b.Bottleneck, Sum: b.Sum}
	})
	same := slices.EqualFunc(before, p.Matrix.Mbps, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) })
	require.True(t, same, "the matrix was changed")
	require.Equal(t, start, p.Start, "the start was changed")
	if err != nil {
		return got, err
	}
	check(t, p, got)
	require.False(t, p.Objective.Better(last, got), "a better ring was announced than returned")
	require.LessOrEqual(t, least, got.Sum*(1+topo.Tolerance), "a bound was announced that the answer refutes")
	require.True(t, fastest == 0 || fastest >= got.Bottleneck*(1-topo.Tolerance), "a bound was announced that the answer refutes")
	if from, ok := p.Solution(p.Start); ok {
		require.False(t, p.Objective.Better(from, got), "worse than the start")
	}
	return got, nil
}

// check is what must hold for every ring that a solver hands out.
func check(t require.TestingT, p topo.Problem, s topo.Solution) {
	require.NoError(t, p.Verify(s))
}

func problem(t *rapid.T) topo.Problem {
	n := rapid.IntRange(2, 7).Draw(t, "n")
	gaps := rapid.SampledFrom([]int{0, 0, 10, 30, 60}).Draw(t, "percent missing")
	p := topo.Problem{Matrix: topo.NewMatrix(n), Objective: rapid.SampledFrom([]topo.Objective{topo.BottleneckThenSum, topo.Sum, ""}).Draw(t, "objective")}
	for i := range p.Matrix.Mbps {
		if rapid.IntRange(0, 99).Draw(t, "gap") < gaps {
			p.Matrix.Mbps[i] = rapid.SampledFrom([]float64{0, -3, math.NaN()}).Draw(t, "missing")
		} else {
			p.Matrix.Mbps[i] = rapid.SampledFrom([]float64{1, 7, 50, 51, 100, 400, 999, 2500, 10000}).Draw(t, "mbps")
		}
	}
	if rapid.Bool().Draw(t, "start") {
		p.Start = rapid.Permutation(seq(n)).Draw(t, "order")
	}
	return p
}

func seq(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// againstBruteForce compares with trying all orders (within 0% for
// those that prove).
func againstBruteForce(t *rapid.T, s topo.Solver, w Want) {
	p := problem(t)
	best := Best(p)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	got, err := solve(t, ctx, s, p)
	if len(best.Ring) == 0 {
		require.ErrorIs(t, err, topo.ErrNoRing)
		return
	}
	require.NoError(t, err)
	require.True(t, got.Optimal || !w.Proves, "not proved")
	least := topo.Problem{Matrix: p.Matrix, Objective: topo.Sum}
	require.LessOrEqual(t, got.SumLowerBound, Best(least).Sum*(1+topo.Tolerance), "a bound that does not hold")
	fastest := topo.Problem{Matrix: p.Matrix}
	require.True(t, got.BottleneckBound == 0 || got.BottleneckBound >= Best(fastest).Bottleneck, "a bound that does not hold")
	if got.Optimal {
		require.False(t, p.Objective.Better(best, got) && best.Sum < got.Sum*(1-1e-9), "best %v, got %v", best, got)
	}
	if p.Objective == topo.Sum {
		require.LessOrEqual(t, got.Sum, best.Sum*1.05)
	} else {
		require.Equal(t, best.Bottleneck, got.Bottleneck)
		require.LessOrEqual(t, got.Sum, best.Sum*1.05)
	}
}

func degenerate(t *testing.T, s topo.Solver) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, n := range []int{0, 1, 2, 3, 5} {
		_, err := solve(t, ctx, s, topo.Problem{Matrix: topo.NewMatrix(n)})
		require.ErrorIs(t, err, topo.ErrNoRing, "%d peers without links", n)
	}
	_, err := s.Solve(ctx, topo.Problem{Matrix: topo.Matrix{N: 4, Mbps: make([]float64, 5)}}, func(topo.Solution) {})
	require.ErrorIs(t, err, topo.ErrMatrix)
	_, err = s.Solve(ctx, topo.Problem{Matrix: topo.NewMatrix(4), Objective: "charm"}, func(topo.Solution) {})
	require.ErrorIs(t, err, topo.ErrMatrix)

	// One way only: the reverse links are missing.
	p := topo.Problem{Matrix: topo.NewMatrix(5), Start: []int{9, 9}}
	for i := range 5 {
		p.Matrix.Set(i, (i+2)%5, math.Inf(1))
	}
	got, err := solve(t, ctx, s, p)
	require.NoError(t, err)
	require.Equal(t, math.MaxFloat64, got.Bottleneck)

	// Tiny and huge rates keep their order.
	p = topo.Problem{Matrix: topo.NewMatrix(4)}
	for i := range p.Matrix.Mbps {
		p.Matrix.Mbps[i] = 5e-324
	}
	for i := range 4 {
		p.Matrix.Set(i, (i+1)%4, 1e300)
	}
	got, err = s.Solve(ctx, p, func(topo.Solution) {})
	require.NoError(t, err)
	require.Equal(t, 1e300, got.Bottleneck)
}

// twoSites: peers of two sites with a slow link between them; the best ring
// crosses it exactly twice.
func twoSites(t *testing.T, s topo.Solver) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, o := range []topo.Objective{topo.BottleneckThenSum, topo.Sum} {
		p := topo.Problem{Matrix: topo.NewMatrix(8), Objective: o}
		for i := range 8 {
			for j := range 8 {
				rate := 10000.0
				if i%2 != j%2 {
					rate = 200
				}
				p.Matrix.Set(i, j, rate)
			}
		}
		got, err := solve(t, ctx, s, p)
		require.NoError(t, err)
		crossings := 0
		for k, i := range got.Ring {
			if i%2 != got.Ring[(k+1)%8]%2 {
				crossings++
			}
		}
		require.Equal(t, 2, crossings, "ring %v", got.Ring)
	}
}

// canceled: a context that ended gives the start or an error, at once.
func canceled(t *testing.T, s topo.Solver) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := topo.Problem{Matrix: topo.NewMatrix(12), Start: seq(12)}
	for i := range p.Matrix.Mbps {
		p.Matrix.Mbps[i] = float64(100 + i*37%91)
	}
	_, err := solve(t, ctx, s, p)
	require.NoError(t, err)
	p.Start = nil
	if _, err = solve(t, ctx, s, p); err != nil {
		require.True(t, errors.Is(err, context.Canceled) || errors.Is(err, topo.ErrNoRing), "%v", err)
	}
}

// budget: of a large group there is a ring when the time is over, however
// short the time (a solver that ignores its context fails by the test's own
// time limit).
func budget(t *testing.T, s topo.Solver, w Want) {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err := solve(t, ctx, s, large(w))
	require.NoError(t, err)
}

// large is a problem that no short search settles.
func large(w Want) topo.Problem {
	n := 200
	if w.MaxPeers > 0 {
		n = min(n, w.MaxPeers)
	}
	p := topo.Problem{Matrix: topo.NewMatrix(n), Start: seq(n)}
	for i := range p.Matrix.Mbps {
		p.Matrix.Mbps[i] = float64(1 + i*7919%10007)
	}
	return p
}

// late: whenever the time is over, a solver looks at its clock only a few times
// more. The clock counts the looks, so that no machine is too slow for this;
// how far apart they are is what gopccl bench topology measures.
func late(t *testing.T, s topo.Solver, w Want) {
	p := large(w)
	for looks := 1; looks <= 1<<12; looks *= 8 {
		clock := steps()
		_, err := solve(t, topo.Limit(context.Background(), time.Duration(looks)*step, clock), s, p)
		require.NoError(t, err)
		require.LessOrEqual(t, clock()/step, time.Duration(looks+64), "%d looks at the clock", looks)
	}
}

// step is by how much the clock of steps goes on: about what the built-in
// solvers let pass between two looks in a large group.
const step = 50 * time.Microsecond

// steps returns a clock that counts the looks at it.
func steps() func() time.Duration {
	var looks atomic.Int64
	return func() time.Duration { return time.Duration(looks.Add(1)) * step }
}

// shared: one solver serves many problems at once.
func shared(t *testing.T, s topo.Solver) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			p := topo.Problem{Matrix: topo.NewMatrix(6)}
			for i := range p.Matrix.Mbps {
				p.Matrix.Mbps[i] = float64(1 + (i*7+k*13)%29)
			}
			got, err := s.Solve(ctx, p, func(topo.Solution) {})
			if err != nil || got.Bottleneck != Best(p).Bottleneck {
				t.Errorf("bottleneck %v, best %v, error %v", got.Bottleneck, Best(p).Bottleneck, err)
			}
		}()
	}
	wg.Wait()
}

func wideArea(t *testing.T, s topo.Solver, w Want) {
	all, err := Instances()
	require.NoError(t, err)
	for _, i := range all {
		if w.MaxPeers > 0 && i.Matrix.N > w.MaxPeers {
			continue
		}
		t.Run(i.Name, func(t *testing.T) {
			ctx := topo.Limit(context.Background(), w.Budget, steps())
			p := topo.Problem{Matrix: i.Matrix, Start: nil}
			got, err := solve(t, ctx, s, p)
			require.NoError(t, err)
			t.Logf("n %d: bottleneck %.4f of the best, sum %.4f of the best at it", i.Matrix.N, got.Bottleneck/i.Bottleneck, got.Sum/i.SumAt)
			require.GreaterOrEqual(t, got.Bottleneck, w.Ratio*i.Bottleneck)
			require.LessOrEqual(t, got.Bottleneck, i.Bottleneck*(1+1e-3), "better than possible")
			if w.Proves {
				require.True(t, got.Optimal)
				require.InEpsilon(t, i.SumAt, got.Sum, 1e-4)
			}
		})
	}
}
