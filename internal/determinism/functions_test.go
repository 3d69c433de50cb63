package determinism

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The fused product of float32 is that of exact arithmetic, rounded once.
func TestFMA(t *testing.T) {
	exact := func(a, b, c float32) float32 {
		x := new(big.Float).SetPrec(1000).SetFloat64(float64(a))
		x.Mul(x, new(big.Float).SetPrec(1000).SetFloat64(float64(b)))
		x.Add(x, new(big.Float).SetPrec(1000).SetFloat64(float64(c)))
		f, _ := x.Float32()
		return f
	}
	finite := rapid.Custom(func(t *rapid.T) float32 {
		e := rapid.IntRange(-60, 60).Draw(t, "exponent")
		return float32(math.Ldexp(float64(rapid.Int32Range(-1<<24, 1<<24).Draw(t, "fraction")), e-24))
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := finite.Draw(t, "a"), finite.Draw(t, "b"), finite.Draw(t, "c")
		require.Equal(t, exact(a, b, c), fma(a, b, c))
		// A sum that is next to a tie of float32 is where two roundings are one too many.
		near := float32(-float64(a) * float64(b) * (1 - 0x1p-24))
		require.Equal(t, exact(a, b, near), fma(a, b, near))
	})
	// 1 + 2^-24 + 2^-60: the sum in float64 is a tie of float32, which goes down.
	a, b, c := float32(1+0x1p-12), float32(0x1p-12), float32(1-0x1p-12+0x1p-23)
	require.Equal(t, exact(a, b, c), fma(a, b, c))
	tie, tiny := float32(1+0x1p-23), float32(0x1p-40)
	require.Equal(t, exact(tiny, tiny, tie), fma(tiny, tiny, tie))
	require.True(t, math.IsNaN(float64(fma(float32(math.Inf(1)), 0, 1))))
	require.Equal(t, float32(math.Inf(1)), fma(math.MaxFloat32, math.MaxFloat32, float32(1)))
}
