package kernels

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"

	"github.com/gopccl/gopccl/quantizers/minmax"
	"github.com/gopccl/gopccl/quantizers/zeropoint"
)

// method is a quantizer, its wire types, and metadata that no chunk gave but a
// peer may send.
type method struct {
	quant.Quantizer
	wires []dtype.Type
	metas []quant.Meta
}

func methods(t dtype.Type) []method {
	bounds := func(low, high float64) quant.Meta {
		return quant.Meta{Kind: quant.MinMax, DType: t, Min: low, Max: high}
	}
	steps := func(zero int64, scale float32) quant.Meta {
		return quant.Meta{Kind: quant.ZeroPoint, ZeroPoint: zero, Scale: scale}
	}
	inf := math.Inf(1)
	return []method{
		{minmax.New(), minMaxTypes, []quant.Meta{
			bounds(-2.5, 0.125), bounds(1, 1), bounds(3, -3), bounds(-inf, inf), bounds(0, inf), bounds(math.Copysign(0, -1), 0),
			bounds(-math.MaxFloat32, math.MaxFloat32), bounds(-1e308, 1e308), bounds(1e-45, 3e-42),
		}},
		{zeropoint.New(), zeroPointTypes, []quant.Meta{
			steps(0, 1), steps(-77, 0.37), steps(130, 1e-3), steps(1<<40+12345, 2), steps(-1<<31, 1), steps(math.MaxInt64, 1e-20),
			steps(math.MinInt64, 0x1p-126), steps(3, float32(inf)), steps(7, 0), steps(100, -0.5),
		}},
	}
}

// chunk is n elements of t, most of them ordinary numbers; every eighth is
// special if wild says so.
func chunk(t dtype.Type, n int, wild bool, rng *rand.Rand) []byte {
	b := make([]byte, n*t.Size())
	s := specials(t)
	for i := range n {
		x := rng.NormFloat64() * 3
		v := math.Float64bits(x)
		if t == dtype.Float32 {
			v = uint64(math.Float32bits(float32(x)))
		}
		if wild && rng.IntN(8) == 0 {
			v = s[rng.IntN(len(s))]
		}
		setElement(t, b, i, v)
	}
	return b
}

// The wire form is that of the quantizers on the processor, whatever the
// elements and the parameters are.
func TestQuantize(t *testing.T) {
	m := open(t, Quantization)
	for _, seed := range seeds(4) {
		m.quantizeAll(rand.New(rand.NewPCG(seed, 1)))
	}
}

func (m *machine) quantizeAll(rng *rand.Rand) {
	for _, typ := range []dtype.Type{dtype.Float32, dtype.Float64} {
		for _, z := range methods(typ) {
			for _, q := range z.wires {
				for round := range 6 + len(z.metas) {
					if testing.Short() && (round+int(q))%4 != 0 {
						continue
					}
					n := 1 + rng.IntN(150)
					src := chunk(typ, n, round%2 == 1, rng)
					meta := z.Params(typ, q, src)
					if round >= 6 {
						meta = z.metas[round-6]
					}
					want := make([]byte, n*q.Size())
					z.Quantize(typ, q, &meta, want, src)
					from := m.put(src, round%3%2*typ.Size())
					dst := m.put(make([]byte, len(want)), round%4*q.Size())
					require.NoError(m.t, m.k.Quantize(typ, q, &meta, dst.Ptr, from.Ptr, uint64(n), 0))
					m.same(q, want, m.take(dst), "%s of %d %v as %v under %+v: %x", z.Name(), n, typ, q, meta, src)
					m.free(from)
				}
			}
		}
	}
}

// Dequantized values, and what operations make of them, have the quantizers'
// bits; dst may be acc.
func TestDequantize(t *testing.T) {
	m := open(t, Quantization)
	for _, seed := range seeds(4) {
		m.dequantizeAll(rand.New(rand.NewPCG(seed, 2)))
	}
}

func (m *machine) dequantizeAll(rng *rand.Rand) {
	for _, typ := range []dtype.Type{dtype.Float32, dtype.Float64} {
		for _, z := range methods(typ) {
			for _, q := range z.wires {
				for round := range 6 + len(z.metas) {
					if testing.Short() && (round+int(q))%4 != 0 {
						continue
					}
					n := 1 + rng.IntN(300)
					from := make([]byte, n*q.Size())
					for i := range from {
						from[i] = byte(rng.Uint32())
					}
					meta := z.Params(typ, q, chunk(typ, 100, false, rng))
					if round >= 6 {
						meta = z.metas[round-6]
					}
					op := dtype.Op(round+int(q)/2) % dtype.NumOps
					m.dequantize(z.Quantizer, typ, q, &meta, op, from, patterns(typ, n, rng), round)
				}
			}
		}
	}
}

func (m *machine) dequantize(z quant.Quantizer, typ, q dtype.Type, meta *quant.Meta, op dtype.Op, from, acc []byte, round int) {
	n := len(acc) / typ.Size()
	want := make([]byte, len(acc))
	quant.DequantizeFrom(z, typ, q, meta, op, want, acc, from)

	src, old := m.put(from, round%5%2*q.Size()), m.put(acc, round%3%2*typ.Size())
	dst := old
	if round%2 == 0 {
		dst = m.put(make([]byte, len(acc)), round%3%2*typ.Size())
	}
	require.NoError(m.t, m.k.Dequantize(typ, q, meta, op, dst.Ptr, old.Ptr, src.Ptr, uint64(n), 0))
	got := m.take(dst)
	for i := range n {
		// Of two NaNs the processor keeps the one that its loop has in a
		// register, the kernel the old one; values are NaN in one way only.
		_, nan := quieted(typ, element(typ, want, i))
		if !nan || op == dtype.Set || op >= dtype.Max {
			continue
		}
		x, old := quieted(typ, element(typ, acc, i))
		if !old {
			s := specials(typ)
			x = s[11] | s[len(s)/2]
		}
		setElement(typ, want, i, x)
	}
	m.same(typ, want, got, "%s: %v of %d %v with %v under %+v: %x, %x", z.Name(), op, n, typ, q, *meta, acc, from)
	m.free(src)
	if dst.Ptr != old.Ptr {
		m.free(old)
	}
}

// The bounds are those of minmax: NaN ignored, zero with the sign of the first
// one, the maximum not below the smallest normal number (quirk Q30).
func TestMinMaxBounds(t *testing.T) {
	m := open(t, Parameters)
	scratch := m.put(make([]byte, BoundsScratch), 0)
	for _, seed := range seeds(4) {
		m.boundsAll(scratch, rand.New(rand.NewPCG(seed, 3)))
	}
	m.free(scratch)
}

func (m *machine) boundsAll(scratch operand, rng *rand.Rand) {
	t := m.t
	for _, typ := range []dtype.Type{dtype.Float32, dtype.Float64} {
		s := specials(typ)
		for round := range 40 {
			if testing.Short() && round%4 != 0 && round > 4 {
				continue
			}
			n := rng.IntN(1200)
			if round == 0 {
				n = 0
			}
			src := chunk(typ, n, round%2 == 1, rng)
			for i := range n {
				switch {
				case round%5 == 2: // nothing below zero, and zeros of both signs
					v := element(typ, src, i) &^ s[len(s)/2]
					if rng.IntN(3) == 0 {
						v = s[rng.IntN(2)*len(s)/2]
					}
					setElement(typ, src, i, v)
				case round%5 == 3: // nothing above zero
					setElement(typ, src, i, element(typ, src, i)|s[len(s)/2])
				case round == 4:
					setElement(typ, src, i, s[10+i%4])
				}
			}
			from, dst := m.put(src, round%4*typ.Size()), m.put(make([]byte, BoundsBytes), 0)
			require.NoError(t, m.k.MinMaxBounds(typ, dst.Ptr, scratch.Ptr, from.Ptr, uint64(n), 0))
			got, want := MinMaxParams(typ, m.take(dst)), minmax.New().Params(typ, dtype.Uint8, src)
			require.Equal(t, want, got, "%v: %x", typ, src)
			require.Equal(t, math.Signbit(want.Min), math.Signbit(got.Min), "%v: %x", typ, src)
			m.free(from)
		}
	}
}

// Scale and zero point from the device's sums are zeropoint's, to the last bit.
func TestZeroPointMoments(t *testing.T) {
	m := open(t, Parameters)
	rng := rand.New(rand.NewPCG(4, 4))
	for _, typ := range []dtype.Type{dtype.Float32, dtype.Float64} {
		for _, n := range []int{1, 2, 15, 16, 33, 2047, 2048, 2049, 2048*17 + 5} {
			if testing.Short() && n > 3000 {
				continue
			}
			src := chunk(typ, n, false, rng)
			from, dst := m.put(src, 0), m.put(make([]byte, MomentsBytes(uint64(n))), 0)
			require.NoError(t, m.k.ZeroPointMoments(typ, dst.Ptr, from.Ptr, uint64(n), 0))
			b := m.take(dst)
			sums := make([]float64, len(b)/8)
			for i := range sums {
				sums[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
			}
			got, ok := zeropoint.FromMoments(typ, dtype.Uint8, n, sums)
			require.True(t, ok)
			require.Equal(t, zeropoint.New().Params(typ, dtype.Uint8, src), got, "%d %v", n, typ)
			m.free(from)
		}
	}
	require.NoError(t, m.k.ZeroPointMoments(dtype.Float32, 0, 0, 0, 0))
}

// What no quantizer does is refused.
func TestQuantizeRefuses(t *testing.T) {
	m := open(t, Quantization)
	low, zero := &quant.Meta{Kind: quant.MinMax}, &quant.Meta{Kind: quant.ZeroPoint}
	for i, err := range []error{
		m.k.Quantize(dtype.Float16, dtype.Uint8, low, 0, 0, 1, 0),
		m.k.Quantize(dtype.Float32, dtype.Int8, low, 0, 0, 1, 0),
		m.k.Quantize(dtype.Float32, dtype.Uint64, zero, 0, 0, 1, 0),
		m.k.Quantize(dtype.Float32, dtype.Uint8, &quant.Meta{Kind: 9}, 0, 0, 1, 0),
		m.k.Quantize(dtype.Float32, dtype.Uint8, low, 0, 2, 1, 0),
		m.k.Quantize(dtype.Float32, dtype.Uint16, low, 1, 0, 1, 0),
		m.k.Dequantize(dtype.Float64, dtype.Uint64, low, dtype.Set, 0, 0, 0, 1, 0),
		m.k.Dequantize(dtype.Float64, dtype.Uint8, low, dtype.NumOps, 0, 0, 0, 1, 0),
		m.k.Dequantize(dtype.Float64, dtype.Uint8, low, dtype.Sum, 0, 4, 0, 1, 0),
		m.k.Dequantize(dtype.Float64, dtype.Uint16, low, dtype.Sum, 0, 0, 3, 1, 0),
		m.k.MinMaxBounds(dtype.Int32, 0, 0, 0, 1, 0),
		m.k.ZeroPointMoments(dtype.Float64, 0, 4, 1, 0),
	} {
		require.ErrorIs(t, err, errs.InvalidArgument, "%d", i)
	}
	require.ErrorIs(t, m.k.MinMaxBounds(dtype.Float32, 0, 0, 0, 1, 0), errs.NotInitialized, "a file that was not loaded")
	require.NoError(t, m.k.Quantize(dtype.Float32, dtype.Uint8, low, 0, 0, 0, 0))
	require.NoError(t, m.k.Dequantize(dtype.Float32, dtype.Uint8, low, dtype.Sum, 0, 0, 0, 0, 0))
}
