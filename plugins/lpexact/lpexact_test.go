package main

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/topo/solvertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testEngine(t testing.TB) *engine {
	e, err := findEngine()
	require.NoError(t, err, "tools/ci/install.sh installs one")
	return e
}

func randomProblem(rng *rand.Rand, n, missing int, o topo.Objective) topo.Problem {
	p := topo.Problem{Matrix: topo.NewMatrix(n), Objective: o}
	for i := range p.Matrix.Mbps {
		if rng.IntN(100) >= missing {
			p.Matrix.Mbps[i] = float64(1 + rng.IntN(1000))
		}
	}
	return p
}

// From no ring at all the programme finds the best one, or that there is none.
func TestAgainstBruteForce(t *testing.T) {
	e := testEngine(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for k := range 24 { // each starts programs
		o := []topo.Objective{topo.BottleneckThenSum, topo.Sum}[k%2]
		p := randomProblem(rng, 2+k%6, []int{0, 30, 60}[k%3], o)
		want := solvertest.Best(p)
		a := &attempt{l: lpexact{e}, ctx: context.Background(), p: p, better: func(topo.Solution) {}}
		require.NoError(t, a.prove())
		if len(want.Ring) == 0 {
			require.Empty(t, a.best.Ring)
			continue
		}
		require.True(t, a.best.Optimal, "ring %v", a.best.Ring)
		require.NoError(t, p.Verify(a.best))
		require.InEpsilon(t, want.Sum, a.best.Sum, 1e-6) // S1-17
		require.Equal(t, want.Bottleneck, a.best.Bottleneck)
	}
}

// Every set of the separation is violated, and where it finds none there is none.
func TestSeparation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 7).Draw(t, "n")
		var arcs []arc
		var x []float64
		for i := range n {
			for j := range n {
				if i != j {
					arcs = append(arcs, arc{i, j})
					x = append(x, float64(rapid.IntRange(0, 4).Draw(t, "x"))/4)
				}
			}
		}
		found := violated(n, arcs, x)
		for _, set := range found {
			require.Less(t, leaving(n, arcs, x, set), 1-1e-7)
			require.Less(t, len(set), n)
			require.NotEmpty(t, set)
		}
		worst := 1.0
		for mask := 1; mask < 1<<n-1; mask++ {
			var set []int
			for i := range n {
				if mask>>i&1 == 1 {
					set = append(set, i)
				}
			}
			worst = math.Min(worst, leaving(n, arcs, x, set))
		}
		require.Equal(t, worst < 1-1e-6, len(found) > 0, "least outflow %v", worst)
	})
}

// The potentials prove the total.
func TestAssignment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "n")
		c := make([]float64, n*n)
		for i := range c {
			c[i] = float64(rapid.IntRange(0, 50).Draw(t, "c"))
			if c[i] > 40 {
				c[i] = math.Inf(1)
			}
		}
		best := math.Inf(1)
		var try func(i, used int, sum float64)
		try = func(i, used int, sum float64) {
			if i == n {
				best = math.Min(best, sum)
				return
			}
			for j := range n {
				if used>>j&1 == 0 {
					try(i+1, used|1<<j, sum+c[i*n+j])
				}
			}
		}
		try(0, 0, 0)
		total, u, v, ok := assign(n, func(i, j int) float64 { return c[i*n+j] })
		require.Equal(t, !math.IsInf(best, 1), ok)
		if !ok {
			return
		}
		require.InDelta(t, best, total, 1e-9)
		sum := 0.0
		for i := range n {
			sum += u[i] + v[i]
			for j := range n {
				require.GreaterOrEqual(t, c[i*n+j]-u[i]-v[j], -1e-9)
			}
		}
		require.InDelta(t, total, sum, 1e-9)
	})
}

func TestReaders(t *testing.T) {
	p := programme{cost: make([]float64, 2)}
	a, err := readGLPK("c x\ns bas 3 2 f f 2.5\ni 1 b 1 0\nj 1 b 0.5 0\nj 2 l 0 1.25\ne o f\n", p)
	require.NoError(t, err)
	require.Equal(t, answer{objective: 2.5, x: []float64{0.5, 0}, reduced: []float64{0, 1.25}}, a)
	a, err = readGLPK("s bas 3 2 n n 0\ne o f\n", p)
	require.NoError(t, err)
	require.True(t, a.infeasible)
	a, err = readGLPK("s mip 3 2 o 7\nj 1 1\nj 2 0\n", p)
	require.NoError(t, err)
	require.Equal(t, []float64{1, 0}, a.x)
	for _, bad := range []string{"", "s mip 3 2 u 7\n", "s mip 3 2 o x\n", "s mip 3 2 o 7\nj 3 1\n", "s mip 3 2 o 7\nj 0 1\n", "s mip 3 2 o 7\nj 1 nan\n"} {
		_, err = readGLPK(bad, p)
		require.ErrorIs(t, err, errAnswer, bad)
	}
	a, err = readCBC("Optimal - objective value 2.50000000\n      0 r0   1   0\n      0 x0   0.5   0\n      1 x1   0   1.25\n", p)
	require.NoError(t, err)
	require.Equal(t, answer{objective: 2.5, x: []float64{0.5, 0}, reduced: []float64{0, 1.25}}, a)
	a, err = readCBC("Infeasible - objective value 1\n", p)
	require.NoError(t, err)
	require.True(t, a.infeasible)
	for _, bad := range []string{"", "Stopped on time - objective value 3", "Optimal - objective value x", "Optimal 1\n 0 x2 1 0\n", "Optimal 1\n 0 x0 z 0\n"} {
		_, err = readCBC(bad, p)
		require.ErrorIs(t, err, errAnswer, bad)
	}
}

func FuzzReaders(f *testing.F) {
	f.Add("s bas 3 2 f f 2.5\nj 1 b 0.5 0\n")
	f.Add("Optimal - objective value 2.5\n      0 x0   0.5   0\n")
	p := programme{cost: make([]float64, 2)}
	f.Fuzz(func(t *testing.T, text string) {
		for _, read := range []func(string, programme) (answer, error){readGLPK, readCBC} {
			if a, err := read(text, p); err == nil {
				require.Len(t, a.x, 2)
			}
		}
	})
}

func TestNoEngine(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := findEngine()
	require.ErrorIs(t, err, errNoEngine)
}

func TestConformance(t *testing.T) {
	l := lpexact{testEngine(t)}
	topo.Register(l)
	solvertest.Run(t, l, solvertest.Want{Wall: true})
}
