//go:build (amd64 || arm64) && !noasm

package zeropoint

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/quantizers/internal/lineartest"
)

// plainly runs a function with the loops in plain Go.
var plainly = lineartest.Plainly(&byVector)

// Everything that goes by vectors has the bits of plain Go.
func TestVectorsAgree(t *testing.T) {
	lineartest.VectorsAgree(t, New(), plainly, func(rng *rand.Rand) []quant.Meta {
		return []quant.Meta{
			{Scale: 0.01, ZeroPoint: 128}, // elements lie outside
			{Scale: 1e-38, ZeroPoint: -5},
			{Scale: 0, ZeroPoint: 7},
			{Scale: -0.5, ZeroPoint: 300},
			{Scale: float32(math.Inf(1)), ZeroPoint: 128},
			{Scale: 1e-45, ZeroPoint: 128},
			{Scale: math.MaxFloat32, ZeroPoint: math.MaxInt32},
			{Scale: 1, ZeroPoint: math.MinInt32},
			{Scale: 1, ZeroPoint: math.MinInt32 + 256},
			{Scale: 0.1, ZeroPoint: math.MaxInt64},
			{Scale: math.Float32frombits(rng.Uint32() & 0xff7fffff), ZeroPoint: int64(rng.Uint64())},
		}
	})
}

// What float32 cannot decide is left to float64.
func TestBordersAgree(t *testing.T) {
	lineartest.BordersAgree(t, New(), plainly, func(round int, rng *rand.Rand) (m quant.Meta, border func(i int) float32, other func() float32) {
		m.Scale = float32(rng.Float64() * math.Exp2(float64(rng.IntN(60)-30)))
		m.ZeroPoint = int64(rng.IntN(256)) + int64(round%3*rng.IntN(4000)-round%3*2000)
		border = func(i int) float32 { return m.Scale * float32(float64(i)+0.5-float64(m.ZeroPoint)) }
		other = func() float32 { return m.Scale * float32(rng.Float64()*255-float64(m.ZeroPoint)) }
		return m, border, other
	})
}
