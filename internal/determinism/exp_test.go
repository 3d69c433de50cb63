package determinism

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Exp is math.Exp, rounded once.
func TestExpIsTheNearest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	check := func(x float32) {
		want := float32(math.Exp(float64(x)))
		if x != x {
			want = math.Float32frombits(expNaN)
		}
		require.Equal(t, math.Float32bits(want), math.Float32bits(Exp(x)), "exp(%v)", x) // S0-22
	}
	for range 50_000 {
		check(math.Float32frombits(rng.Uint32()))
		check(float32(rng.NormFloat64() * 30)) // where the result is neither 0, 1 nor infinite
	}
	for _, x := range []float32{
		0, 1, -1, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
		expInf, math.Nextafter32(expInf, 0), expZero, math.Nextafter32(expZero, 0), 0x1p-24, -0x1p-25, 0x1p-26,
	} {
		check(x)
		check(-x)
		check(math.Nextafter32(x, 1000))
	}
}

// What the report lists adds up: all patterns, and as many NaNs out as in.
func TestReportedSums(t *testing.T) {
	for _, s := range []ExpSums{Reported, Ours} {
		require.EqualValues(t, Patterns, s.NaN+s.Inf+s.Finite)
		require.Equal(t, nanInputs(1), s.NaN)
		// Exp is monotonous: infinite results are those of one range.
		require.EqualValues(t, 0x7f800000-math.Float32bits(expInf)+1, s.Inf)
	}
}

// Each step-th pattern is evaluated once, whatever the workers take.
func TestSweep(t *testing.T) {
	const step = 90001
	var want ExpSums
	nans := uint64(0)
	for i := uint64(0); i < Patterns; i += step {
		x := math.Float32frombits(uint32(i))
		if x != x {
			nans++
		}
		want.add(math.Float32bits(Exp(x)))
	}
	require.Equal(t, nans, nanInputs(step))
	got, err := SweepExp(context.Background(), step)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, below(Patterns, step), got.NaN+got.Inf+got.Finite)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = SweepExp(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
}
