package zeropoint

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

var wires = []dtype.Type{
	dtype.Int8, dtype.Uint8, dtype.Int16, dtype.Uint16, dtype.Int32, dtype.Uint32, dtype.Int64,
}

// The number was computed on amd64; the tests for arm64 get the same one.
// Quirk Q36.
func TestSameOnEveryProcessor(t *testing.T) {
	sum, err := quanttest.Fingerprint(New())
	require.NoError(t, err)
	require.Equal(t, uint32(0x577b6388), sum, "%#x", sum)
}

type hexBytes []byte

func (h *hexBytes) UnmarshalText(s []byte) (err error) {
	*h, err = hex.DecodeString(string(s))
	return err
}

type vector struct {
	Case      string
	DataType  dtype.Type `json:"data_type"`
	Wire      dtype.Type `json:"quantized_type"`
	N         int
	Src       hexBytes
	ZeroPoint int64    `json:"zero_point,string"`
	Scale     hexBytes `json:"scale_le"`
	Quantized hexBytes `json:"quantized_le"`
	Acc       hexBytes
	Set       hexBytes
}

func (v vector) meta() quant.Meta {
	return quant.Meta{
		Kind: quant.ZeroPoint, ZeroPoint: v.ZeroPoint, Scale: dtype.View[float32](slices.Clone(v.Scale))[0],
	}
}

func vectors(t *testing.T) []vector {
	var file struct{ Vectors []vector }
	data, err := os.ReadFile("testdata/zeropoint.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &file))
	require.Len(t, file.Vectors, 64)
	return file.Vectors
}

// number is element i of b.
func number(t dtype.Type, b []byte, i int) float64 {
	b = slices.Clone(b[i*t.Size() : (i+1)*t.Size()])
	switch t {
	case dtype.Uint8:
		return float64(b[0])
	case dtype.Int8:
		return float64(int8(b[0]))
	case dtype.Uint16:
		return float64(dtype.View[uint16](b)[0])
	case dtype.Int16:
		return float64(dtype.View[int16](b)[0])
	case dtype.Uint32:
		return float64(dtype.View[uint32](b)[0])
	case dtype.Int32:
		return float64(dtype.View[int32](b)[0])
	case dtype.Int64:
		return float64(dtype.View[int64](b)[0])
	case dtype.Float32:
		return float64(dtype.View[float32](b)[0])
	}
	return dtype.View[float64](b)[0]
}

// Data spec, section 4.5: dequantization with set is normative; add is the
// addition of the same value, rounded separately.
func TestVectorsDequantize(t *testing.T) {
	n := 0
	for _, v := range vectors(t) {
		if v.Wire == dtype.Uint64 { // quirk Q31, not offered
			continue
		}
		n++
		m := v.meta()
		require.NoError(t, New().CheckMeta(v.DataType, v.Wire, &m))
		got := make(hexBytes, len(v.Set))
		New().Dequantize(v.DataType, v.Wire, &m, dtype.Set, got, v.Quantized)
		require.Equal(t, v.Set, got, "%s %v %v", v.Case, v.DataType, v.Wire)

		acc := slices.Clone(v.Acc)
		New().Dequantize(v.DataType, v.Wire, &m, dtype.Sum, acc, v.Quantized)
		for i := range v.N {
			sum := number(v.DataType, v.Acc, i) + number(v.DataType, v.Set, i)
			if v.DataType == dtype.Float32 {
				sum = float64(float32(sum))
			}
			require.Equal(t, sum, number(v.DataType, acc, i), "%s %v %v, element %d", v.Case, v.DataType, v.Wire, i)
		}
	}
	require.Equal(t, 56, n)
}

// The sender's choices are free (data spec, section 4.5). Under PCCL's own
// parameters ours differ from its quantized values by one step at most, and
// our parameters are PCCL's but for the last bits.
func TestVectorsQuantize(t *testing.T) {
	for _, v := range vectors(t) {
		if v.Wire == dtype.Uint64 {
			continue
		}
		where := fmt.Sprintf("%s %v %v", v.Case, v.DataType, v.Wire)
		theirs := v.meta()
		got := make([]byte, len(v.Quantized))
		New().Quantize(v.DataType, v.Wire, &theirs, got, v.Src)
		slack := 1.0
		if v.Wire == dtype.Int64 {
			slack = 0x1p20 // of 2^63 steps
		}
		for i := range v.N {
			require.InDelta(t, number(v.Wire, v.Quantized, i), number(v.Wire, got, i), slack, "%s, element %d", where, i)
		}
		ours := New().Params(v.DataType, v.Wire, v.Src)
		require.InEpsilon(t, theirs.Scale, ours.Scale, 1e-6, where)
		require.InEpsilon(t, float64(theirs.ZeroPoint), float64(ours.ZeroPoint), 0.02, where)
	}
}

// Data spec, section 4.1; quirks Q31 and Q32.
func TestCheck(t *testing.T) {
	for d := range dtype.Type(dtype.NumTypes) {
		for q := range dtype.Type(dtype.NumTypes) {
			for op := range dtype.Op(dtype.NumOps) {
				want := (d == dtype.Float32 || d == dtype.Float64) && slices.Contains(wires, q) &&
					(op == dtype.Sum || op == dtype.Avg)
				err := New().Check(d, q, op, 2, false)
				require.Equal(t, want, err == nil, "%v to %v, %v: %v", d, q, op, err)
			}
		}
	}
	require.ErrorContains(t, New().Check(dtype.Float32, dtype.Uint64, dtype.Sum, 2, true), "uint64")
	require.ErrorContains(t, New().Check(dtype.Float32, dtype.Float32, dtype.Sum, 2, true), "float32")
	require.ErrorContains(t, New().Check(dtype.Float32, dtype.Uint8, dtype.Max, 2, true), "max")
	require.ErrorContains(t, New().Check(dtype.Float32, dtype.Uint8, dtype.Sum, 1, false), "at least 2")
	require.NoError(t, New().Check(dtype.Float32, dtype.Uint8, dtype.Sum, 1, true))
	require.Error(t, New().Check(dtype.Float32, dtype.Uint8, dtype.Sum, 0, true))
}

func TestCheckMetaRefuses(t *testing.T) {
	nan := quant.Meta{Kind: quant.ZeroPoint, Scale: float32(math.NaN())}
	require.ErrorContains(t, New().CheckMeta(dtype.Float32, dtype.Uint8, &nan), "NaN")
	other := quant.Meta{Kind: quant.MinMax, DType: dtype.Float32}
	require.ErrorContains(t, New().CheckMeta(dtype.Float32, dtype.Uint8, &other), "kind 0")
}

// roundTrip is D(Q(x)).
func roundTrip[T quant.Float](q dtype.Type, x []T) []T {
	typ := dtype.TypeOf[T]()
	src := dtype.AsBytes(x)
	m := New().Params(typ, q, src)
	wireForm := make([]byte, len(x)*q.Size())
	New().Quantize(typ, q, &m, wireForm, src)
	back := make([]T, len(x))
	New().Dequantize(typ, q, &m, dtype.Set, dtype.AsBytes(back), wireForm)
	return back
}

// Quirk Q32: what kills a PCCL sender survives here exactly: single elements
// and constant chunks.
func TestConstantChunksAreExact(t *testing.T) {
	for _, q := range wires {
		for _, n := range []int{1, 2, 3, 300} {
			for _, c := range []float32{0, 1, -1, 0.1, -12345.678, math.MaxFloat32, -math.MaxFloat32, 0x1p-90} {
				x := slices.Repeat([]float32{c}, n)
				require.Equal(t, x, roundTrip(q, x), "%v", q)
			}
			for _, c := range []float64{0, 1, -1, 3 << 20, -1.0 / 1024} {
				x := slices.Repeat([]float64{c}, n)
				require.Equal(t, x, roundTrip(q, x), "%v", q)
			}
			for _, c := range []float64{0.1, -math.Pi * 1e30} {
				for _, y := range roundTrip(q, slices.Repeat([]float64{c}, n)) {
					require.InEpsilon(t, c, y, 0x1p-48, "%v", q)
				}
			}
		}
	}
}

// Chunks whose deviation is small beside their mean keep it: the error is a
// step, not a part of the mean.
func TestNarrowChunksFarFromZero(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, mean := range []float64{1e3, -1e6, 1e9} {
		x := make([]float64, 1000)
		for i := range x {
			x[i] = mean + rng.Float64()
		}
		for _, q := range wires {
			for i, y := range roundTrip(q, x) {
				require.InDelta(t, x[i], y, 12*0.3/127, "%v around %v", q, mean)
			}
		}
	}
}

// Scale is a normal float32 number and the zero point fits the 32 bits in
// which PCCL subtracts for uint8 and float32, whatever the data.
func TestParamsAreAlwaysValid(t *testing.T) {
	anyFloat := rapid.Custom(func(t *rapid.T) float32 {
		return math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
	})
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.SliceOfN(anyFloat, 1, 40).Draw(t, "x")
		q := rapid.SampledFrom(wires).Draw(t, "wire")
		m := New().Params(dtype.Float32, q, dtype.AsBytes(x))
		if !(m.Scale >= 0x1p-126 && m.Scale <= math.MaxFloat32) {
			t.Fatalf("scale %v", m.Scale)
		}
		if q == dtype.Uint8 && m.ZeroPoint != int64(int32(m.ZeroPoint)) {
			t.Fatalf("zero point %d", m.ZeroPoint)
		}
		for i, y := range roundTrip(q, x) {
			if y != y {
				t.Fatalf("%v became NaN", x[i])
			}
		}
	})
}

// Data spec, section 4.5: uint8 to float32 subtracts in 32 bits, int8 in 64;
// short chunks are computed, long ones looked up.
func TestZeroPointsOutside32Bits(t *testing.T) {
	m := quant.Meta{Kind: quant.ZeroPoint, Scale: 0.5, ZeroPoint: 1<<33 + 7}
	for _, n := range []int{1, 255, 256, 300} {
		x := make([]float32, n)
		q := slices.Repeat([]byte{9}, n)
		New().Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Set, dtype.AsBytes(x), q)
		require.Equal(t, slices.Repeat([]float32{1}, n), x)
		New().Dequantize(dtype.Float32, dtype.Int8, &m, dtype.Set, dtype.AsBytes(x), q)
		require.Equal(t, slices.Repeat([]float32{-0x1p32 + 1}, n), x)
	}
	// The difference itself wraps: 9 - (-2^31) is -2^31 + 9.
	m.ZeroPoint = math.MinInt32
	for _, n := range []int{1, 300} {
		x := make([]float32, n)
		New().Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Set, dtype.AsBytes(x), slices.Repeat([]byte{9}, n))
		require.Equal(t, slices.Repeat([]float32{0.5 * (-0x1p31 + 9)}, n), x)
	}
	// 64 bit subtraction wraps too.
	m.ZeroPoint = math.MinInt64
	x := make([]float64, 1)
	New().Dequantize(dtype.Float64, dtype.Int64, &m, dtype.Set, dtype.AsBytes(x), dtype.AsBytes([]int64{1}))
	require.Equal(t, 0.5*(-0x1p63+1), x[0])
}

// An infinite scale turns the zero point into NaN; x86 and ARM make different
// ones, the result is the one of x86 on both.
func TestGeneratedNaNsAreTheSameEverywhere(t *testing.T) {
	m := quant.Meta{Kind: quant.ZeroPoint, Scale: float32(math.Inf(1)), ZeroPoint: 7}
	for i, n := range []int{1, 300, 1, 300} {
		if i >= 2 {
			m.Scale = float32(math.NaN()) // positive: refused by CheckMeta, and the same everywhere even so
		}
		dst := make([]uint64, n)
		New().Dequantize(dtype.Float64, dtype.Uint8, &m, dtype.Set, dtype.AsBytes(dst), slices.Repeat([]byte{7}, n))
		require.Equal(t, slices.Repeat([]uint64{0xfff8000000000000}, n), dst)
	}
}

// Out of range elements and infinities are clamped, NaN is the zero point.
func TestQuantizeClamps(t *testing.T) {
	inf := float32(math.Inf(1))
	x := []float32{-inf, -1e30, -200, -2, 0, 2, 200, 1e30, inf, float32(math.NaN())}
	for q, want := range map[dtype.Type][]float64{
		dtype.Int8:   {-128, -128, -128, 1, 3, 5, 127, 127, 127, 3},
		dtype.Uint8:  {0, 0, 0, 1, 3, 5, 203, 255, 255, 3},
		dtype.Uint16: {0, 0, 0, 1, 3, 5, 203, 65535, 65535, 3},
		dtype.Int32:  {math.MinInt32, math.MinInt32, -197, 1, 3, 5, 203, math.MaxInt32, math.MaxInt32, 3},
		dtype.Uint32: {0, 0, 0, 1, 3, 5, 203, math.MaxUint32, math.MaxUint32, 3},
		dtype.Int64:  {math.MinInt64, math.MinInt64, -197, 1, 3, 5, 203, math.MaxInt64, math.MaxInt64, 3},
	} {
		m := quant.Meta{Kind: quant.ZeroPoint, Scale: 1, ZeroPoint: 3}
		dst := make([]byte, len(x)*q.Size())
		New().Quantize(dtype.Float32, q, &m, dst, dtype.AsBytes(x))
		for i, w := range want {
			require.Equal(t, w, number(q, dst, i), "%v of %v", q, x[i])
		}
	}
}

// The receiver accumulates in the precision of the data, so that the error of
// the mean falls as the world grows: the steps of a sum grow slower than the
// sum's number of terms.
func TestErrorFallsWithWorldSize(t *testing.T) {
	const count = 1 << 14
	previous := math.Inf(1)
	for _, world := range []int{2, 4, 8, 16} {
		rng := rand.New(rand.NewPCG(11, 11))
		bufs, reference := make([][]byte, world), make([]float64, count)
		for p := range bufs {
			x := make([]float32, count)
			for i := range x {
				x[i] = float32(rng.NormFloat64())
				reference[i] += float64(x[i])
			}
			bufs[p] = dtype.AsBytes(x)
		}
		r := quanttest.Reduction{Quantizer: New(), Type: dtype.Float32, Wire: dtype.Uint8, Op: dtype.Avg}
		r.Run(bufs)
		squares := 0.0
		for i, x := range dtype.View[float32](bufs[0]) {
			squares += math.Pow((float64(x)-reference[i])/float64(world), 2)
		}
		rms := math.Sqrt(squares / count)
		require.Less(t, rms, previous, "world %d", world) // S2-36
		previous = rms
	}
}

func TestRegistered(t *testing.T) {
	q, err := quant.Lookup(Name)
	require.NoError(t, err)
	require.Equal(t, Name, q.Name())
}

// Sums that were made elsewhere, segment by segment, give the parameters that
// the whole chunk gives, and those that cannot are refused.
func TestFromMoments(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, n := range []int{1, 2, 15, 17, 2047, 2048, 2049, 3*2048 + 100} {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64()*3 - 7)
		}
		var sums []float64
		for rest := x; len(rest) > 0; {
			block := dtype.AsBytes(rest[:min(len(rest), quant.GatherElements)])
			rest = rest[len(block)/4:]
			s := sum[float32](block, 0, false)
			sums = append(sums, s, sum[float32](block, s/float64(len(block)/4), true))
		}
		for _, q := range wires {
			m, ok := FromMoments(dtype.Float32, q, n, sums)
			require.True(t, ok)
			require.Equal(t, New().Params(dtype.Float32, q, dtype.AsBytes(x)), m, "%d to %v", n, q)
		}
		for _, bad := range [][]float64{nil, sums[:len(sums)-1], {math.NaN(), 0}, {1, math.Inf(1)}} {
			_, ok := FromMoments(dtype.Float32, dtype.Uint8, n, bad)
			require.False(t, ok, "%d of %v", n, bad)
		}
	}
	_, ok := FromMoments(dtype.Float32, dtype.Uint8, 0, nil)
	require.False(t, ok)
}
