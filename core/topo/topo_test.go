package topo

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The two directions of a pair are stored apart; what is not a rate is not a link.
func TestMatrixIsAsymmetric(t *testing.T) {
	m := NewMatrix(3)
	_, ok := m.At(0, 1)
	require.False(t, ok)
	m.Set(0, 1, 100)
	m.Set(1, 0, 50)
	ab, ok := m.At(0, 1)
	require.True(t, ok)
	ba, _ := m.At(1, 0)
	require.Equal(t, 100.0, ab) // S1-14
	require.Equal(t, 50.0, ba)
	for _, v := range []float64{0, -1, math.NaN(), math.Inf(-1)} {
		m.Set(0, 2, v)
		_, ok := m.At(0, 2)
		require.False(t, ok, v)
	}
	m.Set(0, 2, math.Inf(1))
	v, ok := m.At(0, 2)
	require.True(t, ok)
	require.Equal(t, math.MaxFloat64, v)
	m.Set(1, 1, 7)
	_, ok = m.At(1, 1)
	require.False(t, ok)
}

// The bottleneck of a ring is its slowest link, its sum that of 1000/rate.
func TestRingValue(t *testing.T) {
	m := NewMatrix(3)
	m.Set(0, 1, 100)
	m.Set(1, 2, 50)
	m.Set(2, 0, 200)
	b, s, ok := m.Value([]int{0, 1, 2})
	require.True(t, ok)
	require.Equal(t, 50.0, b) // S3-13, S3-14
	require.InDelta(t, 10+20+5, s, 1e-9)
	for _, ring := range [][]int{nil, {0, 2, 1}, {0, 1}, {0, 1, 1}, {0, 1, 3}, {-1, 0, 1}, {0, 1, 2, 0}} {
		_, _, ok := m.Value(ring)
		require.False(t, ok, ring)
	}
}

func TestObjectives(t *testing.T) {
	ring := []int{0, 1}
	fast, short := Solution{Ring: ring, Bottleneck: 10, Sum: 9}, Solution{Ring: ring, Bottleneck: 5, Sum: 1}
	require.True(t, BottleneckThenSum.Better(fast, short))
	require.False(t, BottleneckThenSum.Better(short, fast))
	require.True(t, Sum.Better(short, fast))
	require.True(t, Objective("").Better(Solution{Ring: ring, Bottleneck: 10, Sum: 8}, fast))
	require.True(t, Sum.Better(fast, Solution{}))
	require.False(t, Sum.Better(Solution{}, fast))
	require.False(t, Sum.Better(fast, fast))
}

func TestProblemCheck(t *testing.T) {
	require.NoError(t, Problem{Matrix: NewMatrix(3)}.Check())
	require.NoError(t, Problem{Matrix: NewMatrix(3), Objective: Sum}.Check())
	require.ErrorIs(t, Problem{Matrix: Matrix{N: 3}}.Check(), ErrMatrix)
	require.ErrorIs(t, Problem{Matrix: Matrix{N: -1, Mbps: []float64{1}}}.Check(), ErrMatrix)
	require.ErrorIs(t, Problem{Matrix: NewMatrix(2), Objective: "x"}.Check(), ErrMatrix)
}

// What a liar may say about a ring and its bounds is found out.
func TestVerify(t *testing.T) {
	m := NewMatrix(3)
	for i := range m.Mbps {
		m.Mbps[i] = 100
	}
	m.Set(0, 1, 50)
	m.Set(2, 1, 0)
	for _, o := range []Objective{BottleneckThenSum, Sum, ""} {
		p := Problem{Matrix: m, Objective: o}
		good, ok := p.Solution([]int{0, 1, 2})
		require.True(t, ok)
		require.NoError(t, p.Verify(good))
		good.SumLowerBound, good.BottleneckBound, good.Optimal = good.Sum, good.Bottleneck, true
		require.NoError(t, p.Verify(good))
		for name, spoil := range map[string]func(s *Solution){
			"no ring":                  func(s *Solution) { s.Ring = []int{0, 1, 1} },
			"short":                    func(s *Solution) { s.Ring = s.Ring[:2] },
			"missing link":             func(s *Solution) { s.Ring = []int{0, 2, 1} },
			"other bottleneck":         func(s *Solution) { s.Bottleneck = 60 },
			"other sum":                func(s *Solution) { s.Sum = math.NaN() },
			"sum bound above sum":      func(s *Solution) { s.SumLowerBound *= 1.1 },
			"bound below bottleneck":   func(s *Solution) { s.BottleneckBound = 49 },
			"no number":                func(s *Solution) { s.SumLowerBound = math.NaN() },
			"optimal without a bound":  func(s *Solution) { s.SumLowerBound, s.BottleneckBound = 0, 0 },
			"optimal with loose bound": func(s *Solution) { s.SumLowerBound, s.BottleneckBound = s.Sum*0.99, s.Bottleneck*1.01 },
		} {
			bad := good
			spoil(&bad)
			require.ErrorIs(t, p.Verify(bad), ErrSolution, "%s, %s", name, o)
		}
	}
}

// Sums stay finite whatever the rates are.
func TestCostIsClamped(t *testing.T) {
	m := NewMatrix(2)
	m.Set(0, 1, 5e-324)
	m.Set(1, 0, math.Inf(1))
	c, ok := m.Cost(0, 1)
	require.True(t, ok)
	require.Equal(t, float64(MaxCost), c)
	_, ok = m.Cost(1, 1)
	require.False(t, ok)
	b, s, ok := m.Value([]int{0, 1})
	require.True(t, ok)
	require.Equal(t, 5e-324, b)
	require.InEpsilon(t, MaxCost, s, 1e-12)
}

func TestNoRingErrorNamesPeers(t *testing.T) {
	var err error = &NoRingError{Proved: true, Reason: "a has no outgoing link", Remove: []int{1, 3}}
	require.ErrorIs(t, err, ErrNoRing)
	require.Equal(t, "the measured links admit no ring through all peers: a has no outgoing link; without 1, 3 (2 peers) the others have one", err.Error())
	var no *NoRingError
	require.ErrorAs(t, err, &no)
	require.Contains(t, no.Describe([]string{"a", "b"}), "without b, 3 (2 peers)")
	require.Equal(t, "no ring through all peers was found, and none is excluded", (&NoRingError{}).Error())
	require.Contains(t, (&NoRingError{Remove: make([]int, 20)}).Error(), "and 12 more (20 peers)")
	require.Contains(t, (&NoRingError{Remove: []int{4}}).Error(), "without 4 (one peer)")
}

type named string

func (n named) Name() string { return string(n) }
func (n named) Solve(context.Context, Problem, func(Solution)) (Solution, error) {
	return Solution{}, ErrNoRing
}

func TestRegistry(t *testing.T) {
	Register(named("zeta"))
	Register(named("alpha"))
	require.Equal(t, []string{"alpha", "zeta"}, Names())
	s, err := Lookup("zeta")
	require.NoError(t, err)
	require.Equal(t, "zeta", s.Name())
	_, err = Lookup("omega")
	require.ErrorContains(t, err, "omega")
	require.Panics(t, func() { Register(named("zeta")) })
	require.Panics(t, func() { Register(named("")) })
}
