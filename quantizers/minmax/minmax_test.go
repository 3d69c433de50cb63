package minmax

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/quant/quanttest"
)

func TestConformance(t *testing.T) {
	quanttest.Run(t, New()) // S0-14, S0-19, S0-20, S0-21, S2-35
}

// The number was computed on amd64; the tests for arm64 get the same one.
// Quirk Q36.
func TestSameOnEveryProcessor(t *testing.T) {
	sum, err := quanttest.Fingerprint(New())
	require.NoError(t, err)
	require.Equal(t, uint32(0x5e99f9), sum, "%#x", sum)
}

type hexBytes []byte

func (h *hexBytes) UnmarshalText(s []byte) (err error) {
	*h, err = hex.DecodeString(string(s))
	return err
}

// Data spec, section 4.4: parameters, quantized bytes and five operations as
// compiled PCCL 1.0.0 computes them.
func TestVectors(t *testing.T) {
	var file struct {
		Vectors []struct {
			Case      string
			DataType  dtype.Type `json:"data_type"`
			Wire      dtype.Type `json:"quantized_type"`
			N         int
			Src       hexBytes
			Min       hexBytes `json:"min_le"`
			Max       hexBytes `json:"max_le"`
			Quantized hexBytes `json:"quantized_le"`
			Acc       hexBytes
			Set       hexBytes
			Sum       hexBytes
			Prod      hexBytes
			MaxOp     hexBytes `json:"max"`
			MinOp     hexBytes `json:"min"`
			Overflow  []int    `json:"overflow_indices"`
		}
	}
	data, err := os.ReadFile("testdata/minmax.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &file))
	require.Len(t, file.Vectors, 66)
	for _, v := range file.Vectors {
		t.Run(fmt.Sprintf("%s-%v-%v", v.Case, v.DataType, v.Wire), func(t *testing.T) {
			m := New().Params(v.DataType, v.Wire, v.Src)
			require.Equal(t, element(v.DataType, v.Min), math.Float64bits(m.Min), "minimum")
			require.Equal(t, element(v.DataType, v.Max), math.Float64bits(m.Max), "maximum")
			require.NoError(t, New().CheckMeta(v.DataType, v.Wire, &m))

			got := make([]byte, v.N*v.Wire.Size())
			New().Quantize(v.DataType, v.Wire, &m, got, v.Src)
			size := v.Wire.Size()
			for i := range v.N {
				element := got[i*size : (i+1)*size]
				if slices.Contains(v.Overflow, i) { // quirk Q31: PCCL's is 0
					require.Equal(t, slices.Repeat([]byte{0xff}, size), []byte(element), "element %d is clamped", i)
					continue
				}
				require.Equal(t, []byte(v.Quantized[i*size:(i+1)*size]), element, "element %d", i)
			}
			for op, want := range map[dtype.Op]hexBytes{
				dtype.Set: v.Set, dtype.Sum: v.Sum, dtype.Avg: v.Sum, dtype.Prod: v.Prod, dtype.Max: v.MaxOp, dtype.Min: v.MinOp,
			} {
				dst := slices.Clone(v.Acc)
				New().Dequantize(v.DataType, v.Wire, &m, op, dst, v.Quantized)
				require.Equal(t, want, dst, "%v", op)
			}
		})
	}
}

// element is the first element of b as the bits of a float64.
func element(t dtype.Type, b []byte) uint64 {
	if t == dtype.Float32 {
		return math.Float64bits(float64(dtype.View[float32](slices.Clone(b))[0]))
	}
	return math.Float64bits(dtype.View[float64](slices.Clone(b))[0])
}

// The table of values for long chunks and the formula for short ones agree.
func TestTableAgreesWithFormula(t *testing.T) {
	q := make([]byte, 256)
	for i := range q {
		q[i] = byte(i)
	}
	m := quant.Meta{Kind: quant.MinMax, DType: dtype.Float32, Min: float64(float32(-0.3)), Max: float64(float32(1.7))}
	whole := make([]byte, 4*256)
	New().Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Set, whole, q)
	for i := range q {
		one := make([]byte, 4)
		New().Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Set, one, q[i:i+1])
		require.Equal(t, whole[4*i:4*i+4], one, "value %d", i)
	}
}

// Data spec, section 4.1; quirks Q31 and Q35.
func TestCheck(t *testing.T) {
	all := []dtype.Op{dtype.Sum, dtype.Avg, dtype.Prod, dtype.Max, dtype.Min}
	allowed := map[[2]dtype.Type]bool{}
	for _, d := range []dtype.Type{dtype.Float32, dtype.Float64} {
		for _, q := range []dtype.Type{dtype.Uint8, dtype.Uint16, dtype.Uint32} {
			allowed[[2]dtype.Type{d, q}] = true
		}
	}
	for d := range dtype.Type(dtype.NumTypes) {
		for q := range dtype.Type(dtype.NumTypes) {
			for _, op := range all {
				err := New().Check(d, q, op, 1, false)
				require.Equal(t, allowed[[2]dtype.Type{d, q}], err == nil, "%v to %v, %v: %v", d, q, op, err)
			}
		}
	}
	require.ErrorContains(t, New().Check(dtype.Float32, dtype.Uint64, dtype.Sum, 1, true), "uint64")
	require.ErrorContains(t, New().Check(dtype.Float16, dtype.Uint8, dtype.Sum, 1, true), "float16")
	require.Error(t, New().Check(dtype.Float32, dtype.Uint8, dtype.Set, 1, true))
	require.ErrorContains(t, New().Check(dtype.Float32, dtype.Uint8, dtype.Sum, 0, true), "at least one element")
}

// Quirk Q30: the maximum is never below the smallest normal number. NaN is ignored.
func TestParams(t *testing.T) {
	m := New().Params(dtype.Float32, dtype.Uint8, dtype.AsBytes([]float32{-3, -2, float32(math.NaN()), -5}))
	require.Equal(t, quant.Meta{Kind: quant.MinMax, DType: dtype.Float32, Min: -5, Max: 0x1p-126}, m)
	m = New().Params(dtype.Float64, dtype.Uint8, dtype.AsBytes([]float64{math.NaN()}))
	require.Equal(t, math.MaxFloat64, m.Min)
	require.Equal(t, 0x1p-1022, m.Max)
	require.NoError(t, New().CheckMeta(dtype.Float64, dtype.Uint8, &m))
}

func TestCheckMetaRefuses(t *testing.T) {
	good := quant.Meta{Kind: quant.MinMax, DType: dtype.Float32, Min: 0, Max: 1}
	require.NoError(t, New().CheckMeta(dtype.Float32, dtype.Uint8, &good))
	require.ErrorContains(t, New().CheckMeta(dtype.Float64, dtype.Uint8, &good), "float32")
	// The frame for empty chunks (quirk Q28) declares uint8.
	empty := quant.Meta{Kind: quant.MinMax, DType: dtype.Uint8}
	require.Error(t, New().CheckMeta(dtype.Float32, dtype.Uint8, &empty))
	for _, bad := range []quant.Meta{
		{Kind: quant.MinMax, DType: dtype.Float32, Min: math.NaN()},
		{Kind: quant.MinMax, DType: dtype.Float32, Max: math.NaN()},
	} {
		require.ErrorContains(t, New().CheckMeta(dtype.Float32, dtype.Uint8, &bad), "NaN")
	}
}

// An infinite span turns values into NaN; x86 and ARM make different ones, the
// result is the one of x86 on both.
func TestGeneratedNaNsAreTheSameEverywhere(t *testing.T) {
	m := quant.Meta{Kind: quant.MinMax, DType: dtype.Float32, Min: math.Inf(-1), Max: math.Inf(1)}
	dst := make([]uint32, 300)
	q := make([]byte, 300)
	New().Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Set, dtype.AsBytes(dst), q)
	require.Equal(t, slices.Repeat([]uint32{0xffc00000}, 300), dst)
	m.Max = math.NaN() // positive: refused by CheckMeta, and the same everywhere even so
	New().Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Set, dtype.AsBytes(dst), q)
	require.Equal(t, slices.Repeat([]uint32{0xffc00000}, 300), dst)
	positive := []float32{math.Float32frombits(0x7fc00000), 1}
	quant.CanonicalNaNs(positive)
	require.Equal(t, []uint32{0xffc00000, 0x3f800000}, dtype.View[uint32](dtype.AsBytes(positive)))
}

// A value is off by at most one step of the wire type (it is truncated) and
// what rounding adds.
func TestErrorBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 400).Draw(t, "x")
		q := rapid.SampledFrom([]dtype.Type{dtype.Uint8, dtype.Uint16, dtype.Uint32}).Draw(t, "wire")
		src := dtype.AsBytes(x)
		m := New().Params(dtype.Float64, q, src)
		wireForm := make([]byte, len(x)*q.Size())
		New().Quantize(dtype.Float64, q, &m, wireForm, src)
		back := make([]float64, len(x))
		New().Dequantize(dtype.Float64, q, &m, dtype.Set, dtype.AsBytes(back), wireForm)
		span := m.Max - m.Min
		step := span/(math.Ldexp(1, 8*q.Size())-1) + 1e-9*(span+math.Abs(m.Min))
		for i := range x {
			if math.Abs(back[i]-x[i]) > step {
				t.Fatalf("%v became %v, step %v", x[i], back[i], step)
			}
		}
	})
}

// Quantization quarters, halves or keeps the bytes of float32 data.
func TestBytesOnTheWire(t *testing.T) {
	const world, count = 4, 1000
	for q, factor := range map[dtype.Type]int{dtype.Uint8: 4, dtype.Uint16: 2, dtype.Uint32: 1} {
		bufs := make([][]byte, world)
		for p := range bufs {
			x := make([]float32, count)
			for i := range x {
				x[i] = rand.Float32()
			}
			bufs[p] = dtype.AsBytes(x)
		}
		r := quanttest.Reduction{Quantizer: New(), Type: dtype.Float32, Wire: q, Op: dtype.Sum}
		r.Run(bufs)
		require.Equal(t, 2*(world-1)*count*4/factor, r.SentBytes) // S1-31
	}
}

func TestRegistered(t *testing.T) {
	q, err := quant.Lookup(Name)
	require.NoError(t, err)
	require.Equal(t, Name, q.Name())
}
