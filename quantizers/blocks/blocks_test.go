package blocks

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/quant/quanttest"
)

func TestConformance(t *testing.T) { quanttest.Run(t, New()) }

func TestRegistered(t *testing.T) {
	z, err := quant.Lookup(Name)
	require.NoError(t, err)
	require.ErrorIs(t, quant.Check(z, dtype.Float32, dtype.Int4, dtype.Sum, 100, false), quant.ErrNative)
	require.NoError(t, quant.Check(z, dtype.Float32, dtype.Int4, dtype.Sum, 100, true))
	require.ErrorContains(t, quant.Check(z, dtype.Float32, dtype.Uint8, dtype.Sum, 100, true), "int4")
}

// The bytes that the package comment describes.
func TestWireForm(t *testing.T) {
	x := make([]float32, 33)
	x[0], x[1], x[2], x[31], x[32] = 7, -7, 1, 3, 14
	src := dtype.AsBytes(x)
	m := New().Params(dtype.Float32, dtype.Int4, src)
	require.Equal(t, math.Float64bits(14), binary.LittleEndian.Uint64(m.Bytes[:]))
	form := quant.FormOf(New(), dtype.Float32, dtype.Int4)
	q := make([]byte, form.Size(len(x)))
	require.Len(t, q, 36)
	New().Quantize(dtype.Float32, dtype.Int4, &m, q, src)
	want := make([]byte, 36)
	binary.LittleEndian.PutUint16(want, 0x3800) // a half
	want[2], want[3], want[17] = 0x97, 0x01, 0x30
	binary.LittleEndian.PutUint16(want[18:], 0x3c00)
	want[20] = 7
	require.Equal(t, want, q)
	back := make([]float32, len(x))
	New().Dequantize(dtype.Float32, dtype.Int4, &m, dtype.Set, dtype.AsBytes(back), q)
	require.Equal(t, x, back)
}

// A scale for each block: a block of small values beside one of large values keeps
// its digits, which one scale for all would lose.
func TestBlocksOfDifferentMagnitudes(t *testing.T) {
	x := make([]float64, 2*elements)
	for i := range elements {
		x[i], x[elements+i] = 1e4*math.Sin(float64(i)), 1e-2*math.Cos(float64(i))
	}
	m := New().Params(dtype.Float64, dtype.Int4, dtype.AsBytes(x))
	q := make([]byte, 2*size)
	New().Quantize(dtype.Float64, dtype.Int4, &m, q, dtype.AsBytes(x))
	back := make([]float64, len(x))
	New().Dequantize(dtype.Float64, dtype.Int4, &m, dtype.Set, dtype.AsBytes(back), q)
	for i, v := range back {
		largest := 1e4
		if i >= elements {
			largest = 1e-2
		}
		require.InDelta(t, x[i], v, largest/top*0.55, "element %d", i)
	}
}

// The number was computed on amd64; the tests for arm64 get the same one.
func TestSameOnEveryProcessor(t *testing.T) {
	sum, err := quanttest.Fingerprint(New())
	require.NoError(t, err)
	require.Equal(t, uint32(0xe73adf90), sum, "%#x", sum)
}
