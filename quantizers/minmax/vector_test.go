//go:build (amd64 || arm64) && !noasm

package minmax

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/kerneltest"
)

// plainly runs f with the loops in plain Go.
func plainly(f func()) {
	was := byVector
	byVector = false
	defer func() { byVector = was }()
	f()
}

// Everything that goes by vectors has the bits of plain Go.
func TestVectorsAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for n := range 1200 {
		if testing.Short() && n > 300 && n%5 != 0 {
			continue
		}
		kind := n % kerneltest.Kinds
		src := kerneltest.Chunk(kind, n, rng)
		m := New().Params(dtype.Float32, dtype.Uint8, src)
		var want quant.Meta
		plainly(func() { want = New().Params(dtype.Float32, dtype.Uint8, src) })
		require.Equal(t, math.Float64bits(want.Min), math.Float64bits(m.Min), "kind %d, %d elements", kind, n)
		require.Equal(t, math.Float64bits(want.Max), math.Float64bits(m.Max), "kind %d, %d elements", kind, n)
		metas := []quant.Meta{
			m,
			{Min: -1, Max: 0.5},    // elements lie outside
			{Min: 1, Max: -1},      // a chunk of NaNs
			{Min: 0.25, Max: 0.25}, // no range
			{Min: -math.MaxFloat32, Max: math.Inf(1)},     // infinite range
			{Min: -math.MaxFloat32, Max: math.MaxFloat32}, // and overflowing
			{Min: math.Inf(-1), Max: 0},
			{Min: 0, Max: 0x1p-149},
			{Min: float64(math.Float32frombits(rng.Uint32() & 0xff7fffff)), Max: float64(math.Float32frombits(rng.Uint32() & 0xff7fffff))},
		}
		for i := range metas {
			m := &metas[i]
			q, plain := make([]byte, n+1), make([]byte, n+1)
			New().Quantize(dtype.Float32, dtype.Uint8, m, q[:n], src)
			plainly(func() { New().Quantize(dtype.Float32, dtype.Uint8, m, plain[:n], src) })
			require.True(t, bytes.Equal(plain, q), "quantize: kind %d, %d elements, %v to %v", kind, n, m.Min, m.Max)
			for j := range q {
				q[j] = byte(rng.Uint32())
			}
			for op := range dtype.Op(dtype.NumOps) {
				a, b, c := bytes.Clone(src), bytes.Clone(src), make([]byte, 4*n)
				New().Dequantize(dtype.Float32, dtype.Uint8, m, op, a, q[:n])
				plainly(func() { New().Dequantize(dtype.Float32, dtype.Uint8, m, op, b, q[:n]) })
				require.True(t, bytes.Equal(a, b), "dequantize %v: kind %d, %d elements, %v to %v", op, kind, n, m.Min, m.Max)
				quant.DequantizeFrom(New(), dtype.Float32, dtype.Uint8, m, op, c, src, q[:n])
				require.True(t, bytes.Equal(c, b), "to another place %v: kind %d, %d elements, %v to %v", op, kind, n, m.Min, m.Max)
			}
		}
	}
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

// Elements that lie at the border between two bytes, a few steps of float32 to
// both sides of it, among others that do not: what float32 cannot decide is
// left to float64.
func TestBordersAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	for round := range rounds {
		low := float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(60)-30)))
		high := low + float32(math.Abs(rng.NormFloat64())*math.Exp2(float64(rng.IntN(60)-30)))
		m := quant.Meta{Min: float64(low), Max: float64(high)}
		var data []float32
		for i := range 256 {
			border := low + float32(float64(high-low)*float64(i)/255)
			for step := range 9 {
				x := math.Float32frombits(uint32(int(math.Float32bits(border)) + step - 4))
				data = append(data, x)
				if round%2 == 0 {
					for range 31 {
						data = append(data, low+float32(rng.Float64())*(high-low))
					}
				}
			}
		}
		src := dtype.AsBytes(data)
		got, want := make([]byte, len(data)), make([]byte, len(data))
		New().Quantize(dtype.Float32, dtype.Uint8, &m, got, src)
		plainly(func() { New().Quantize(dtype.Float32, dtype.Uint8, &m, want, src) })
		require.True(t, bytes.Equal(want, got), "%v to %v", low, high)
	}
}
