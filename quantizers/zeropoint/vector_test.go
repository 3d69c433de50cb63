//go:build (amd64 || arm64) && !noasm

package zeropoint

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
		require.Equal(t, want, m, "kind %d, %d elements", kind, n)
		metas := []quant.Meta{
			m,
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
		for i := range metas {
			m := &metas[i]
			q, plain := make([]byte, n+1), make([]byte, n+1)
			New().Quantize(dtype.Float32, dtype.Uint8, m, q[:n], src)
			plainly(func() { New().Quantize(dtype.Float32, dtype.Uint8, m, plain[:n], src) })
			require.True(t, bytes.Equal(plain, q), "quantize: kind %d, %d elements, %v, %v", kind, n, m.Scale, m.ZeroPoint)
			for j := range q {
				q[j] = byte(rng.Uint32())
			}
			for op := range dtype.Op(dtype.NumOps) {
				a, b, c := bytes.Clone(src), bytes.Clone(src), make([]byte, 4*n)
				New().Dequantize(dtype.Float32, dtype.Uint8, m, op, a, q[:n])
				plainly(func() { New().Dequantize(dtype.Float32, dtype.Uint8, m, op, b, q[:n]) })
				require.True(t, bytes.Equal(a, b), "dequantize %v: kind %d, %d elements, %v, %v", op, kind, n, m.Scale, m.ZeroPoint)
				quant.DequantizeFrom(New(), dtype.Float32, dtype.Uint8, m, op, c, src, q[:n])
				require.True(t, bytes.Equal(c, b), "to another place %v: kind %d, %d elements, %v, %v", op, kind, n, m.Scale, m.ZeroPoint)
			}
		}
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
		m := quant.Meta{
			Scale:     float32(rng.Float64() * math.Exp2(float64(rng.IntN(60)-30))),
			ZeroPoint: int64(rng.IntN(256)) + int64(round%3*rng.IntN(4000)-round%3*2000),
		}
		var data []float32
		for i := range 256 {
			border := m.Scale * float32(float64(i)+0.5-float64(m.ZeroPoint))
			for step := range 9 {
				data = append(data, math.Float32frombits(uint32(int(math.Float32bits(border))+step-4)))
				if round%2 == 0 {
					for range 31 {
						data = append(data, m.Scale*float32(rng.Float64()*255-float64(m.ZeroPoint)))
					}
				}
			}
		}
		src := dtype.AsBytes(data)
		got, want := make([]byte, len(data)), make([]byte, len(data))
		New().Quantize(dtype.Float32, dtype.Uint8, &m, got, src)
		plainly(func() { New().Quantize(dtype.Float32, dtype.Uint8, &m, want, src) })
		require.True(t, bytes.Equal(want, got), "scale %v, zero point %v", m.Scale, m.ZeroPoint)
	}
}
