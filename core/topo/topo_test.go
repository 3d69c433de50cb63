package topo

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The two directions of a pair are stored apart; what is no rate is no link.
func TestMatrixIsAsymmetric(t *testing.T) { // S1-14
	m := NewMatrix(3)
	_, ok := m.At(0, 1)
	require.False(t, ok)
	m.Set(0, 1, 100)
	m.Set(1, 0, 50)
	ab, ok := m.At(0, 1)
	require.True(t, ok)
	ba, _ := m.At(1, 0)
	require.Equal(t, 100.0, ab)
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
func TestRingValue(t *testing.T) { // S3-13, S3-14
	m := NewMatrix(3)
	m.Set(0, 1, 100)
	m.Set(1, 2, 50)
	m.Set(2, 0, 200)
	b, s, ok := m.Value([]int{0, 1, 2})
	require.True(t, ok)
	require.Equal(t, 50.0, b)
	require.InDelta(t, 10+20+5, s, 1e-9)
	for _, ring := range [][]int{nil, {0, 2, 1}, {0, 1}, {0, 1, 1}, {0, 1, 3}, {-1, 0, 1}, {0, 1, 2, 0}} {
		_, _, ok := m.Value(ring)
		require.False(t, ok, ring)
	}
}

func TestObjectives(t *testing.T) {
	ring := []int{0, 1}
	fast, short := Solution{ring, 10, 9, false}, Solution{ring, 5, 1, false}
	require.True(t, BottleneckThenSum.Better(fast, short))
	require.False(t, BottleneckThenSum.Better(short, fast))
	require.True(t, Sum.Better(short, fast))
	require.True(t, Objective("").Better(Solution{ring, 10, 8, false}, fast))
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
