//go:build (amd64 || arm64) && !noasm

package minmax

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/quantizers/internal/lineartest"
)

// plainly runs a function with the loops in plain Go.
var plainly = lineartest.Plainly(&byVector)

// Everything that goes by vectors has the bits of plain Go.
func TestVectorsAgree(t *testing.T) {
	lineartest.VectorsAgree(t, New(), plainly, func(rng *rand.Rand) []quant.Meta {
		return []quant.Meta{
			{Min: -1, Max: 0.5},                           // elements lie outside
			{Min: 1, Max: -1},                             // a chunk of NaNs
			{Min: 0.25, Max: 0.25},                        // no range
			{Min: -math.MaxFloat32, Max: math.Inf(1)},     // infinite range
			{Min: -math.MaxFloat32, Max: math.MaxFloat32}, // and overflowing
			{Min: math.Inf(-1), Max: 0},
			{Min: 0, Max: 0x1p-149},
			{Min: float64(math.Float32frombits(rng.Uint32() & 0xff7fffff)), Max: float64(math.Float32frombits(rng.Uint32() & 0xff7fffff))},
		}
	})
}

// All 256 quotients are those of float64, as data spec, section 4.4 has them.
func TestReciprocalInTwoParts(t *testing.T) {
	var q [256]byte
	for i := range q {
		q[i] = byte(i)
	}
	m := quant.Meta{Max: 1}
	dst := make([]float32, len(q))
	New().Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Set, dtype.AsBytes(dst), q[:])
	for i, x := range dst {
		require.Equal(t, float32(float64(i)*(1.0/255)), x)
	}
}

// What float32 cannot decide is left to float64.
func TestBordersAgree(t *testing.T) {
	lineartest.BordersAgree(t, New(), plainly, func(_ int, rng *rand.Rand) (m quant.Meta, border func(i int) float32, other func() float32) {
		low := float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(60)-30)))
		high := low + float32(math.Abs(rng.NormFloat64())*math.Exp2(float64(rng.IntN(60)-30)))
		border = func(i int) float32 { return low + float32(float64(high-low)*float64(i)/255) }
		other = func() float32 { return low + float32(rng.Float64())*(high-low) }
		return quant.Meta{Min: float64(low), Max: float64(high)}, border, other
	})
}
