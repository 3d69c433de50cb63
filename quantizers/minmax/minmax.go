// Package minmax is PCCL's MinMax quantizer: a chunk is mapped linearly from
// its smallest and largest value to the whole range of an unsigned integer
// (data spec, section 4.4).
package minmax

import (
	"fmt"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/quantizers/internal/linear"
)

// Name is the name under which the quantizer is registered.
const Name = "minmax"

func init() { quant.Register(New()) }

// New returns the quantizer, which has no state.
func New() quant.Quantizer { return quantizer{} }

type quantizer struct{}

func (quantizer) Name() string { return Name }

// Check implements the table of data spec, section 4.1. uint64, which PCCL
// accepts and then gets wrong (quirk Q31), is refused.
func (quantizer) Check(t, q dtype.Type, op dtype.Op, minChunk int, _ bool) error {
	switch {
	case t != dtype.Float32 && t != dtype.Float64:
		return fmt.Errorf("minmax quantizes float32 and float64, not %v", t)
	case q == dtype.Uint64:
		return fmt.Errorf("minmax to uint64 loses the largest elements in PCCL 1.0.0 and is not offered (use uint8, uint16 or uint32)")
	case q != dtype.Uint8 && q != dtype.Uint16 && q != dtype.Uint32:
		return fmt.Errorf("minmax quantizes to uint8, uint16 or uint32, not %v", q)
	case !op.Valid():
		return fmt.Errorf("minmax supports sum, avg, prod, max and min, not %v", op)
	case minChunk < 1:
		return fmt.Errorf("minmax needs at least one element per peer")
	}
	return nil
}

// CheckMeta refuses metadata of another kind or data type and bounds that are
// not numbers. A minimum above the maximum is legal: PCCL sends it for a chunk of NaNs.
func (quantizer) CheckMeta(t, q dtype.Type, m *quant.Meta) error {
	switch {
	case m.Kind != quant.MinMax:
		return fmt.Errorf("minmax: metadata of kind %d", m.Kind)
	case m.DType != t:
		return fmt.Errorf("minmax: metadata for %v, data is %v", m.DType, t)
	case m.Min != m.Min || m.Max != m.Max:
		return fmt.Errorf("minmax: metadata with NaN bounds")
	}
	return nil
}

// Params returns the bounds of src as PCCL computes them: NaN is ignored, and
// the maximum is never below the smallest normal number (quirk Q30).
func (quantizer) Params(t, _ dtype.Type, src []byte) quant.Meta {
	m := quant.Meta{Kind: quant.MinMax, DType: t}
	if t == dtype.Float32 {
		low, high, done := boundsByVector(src, math.MaxFloat32, 0x1p-126)
		if done > 0 && low == 0 {
			low = firstZero(src, low)
		}
		low, high = bounds[float32](src[4*done:], low, high)
		m.Min, m.Max = float64(low), float64(high)
	} else {
		m.Min, m.Max = bounds[float64](src, math.MaxFloat64, 0x1p-1022)
	}
	return m
}

// Gather widens the bounds in g. See quant.Gatherer.
func (z quantizer) Gather(t, q dtype.Type, g *quant.Gathered, part []byte) {
	m := z.Params(t, q, part)
	if g.Elements == 0 {
		g.A, g.B = m.Min, m.Max
	}
	// A zero that came first stays, as in Params.
	if m.Min < g.A {
		g.A = m.Min
	}
	if g.B < m.Max {
		g.B = m.Max
	}
	g.Elements += len(part) / t.Size()
}

// Gathering returns the bounds of all parts.
func (quantizer) Gathering(t, _ dtype.Type, g *quant.Gathered) (quant.Meta, bool) {
	return quant.Meta{Kind: quant.MinMax, DType: t, Min: g.A, Max: g.B}, g.Elements > 0
}

// FromBounds returns the metadata of a chunk with these bounds. See quant.Bounded.
func (quantizer) FromBounds(t, _ dtype.Type, low, high float64) quant.Meta {
	return quant.Meta{Kind: quant.MinMax, DType: t, Min: low, Max: high}
}

// firstZero returns the zero that comes first in src: comparisons one by one
// keep it, while vectors may have kept one of the other sign. There is one.
func firstZero(src []byte, zero float32) float32 {
	var one [1]float32
	for ; len(src) >= 4; src = src[4:] {
		copy(dtype.AsBytes(one[:]), src)
		if one[0] == 0 {
			return one[0]
		}
	}
	return zero
}

func bounds[T quant.Float](src []byte, low, high T) (T, T) {
	if dtype.Aligned(src, dtype.TypeOf[T]().Size()) {
		return widen(dtype.View[T](src), low, high)
	}
	var block linear.Block
	for len(src) > 0 {
		b := block.Load(src)
		low, high = widen(dtype.View[T](b), low, high)
		src = src[len(b):]
	}
	return low, high
}

// widen moves the bounds apart until the elements of x lie between them. Once
// the bounds are wide the branches are never taken, so the loop is fast.
func widen[T quant.Float](x []T, low, high T) (T, T) {
	for len(x) >= 4 {
		p := (*[4]T)(x)
		a, b, c, d := p[0], p[1], p[2], p[3]
		if a < low {
			low = a
		}
		if high < a {
			high = a
		}
		if b < low {
			low = b
		}
		if high < b {
			high = b
		}
		if c < low {
			low = c
		}
		if high < c {
			high = c
		}
		if d < low {
			low = d
		}
		if high < d {
			high = d
		}
		x = x[4:]
	}
	for _, a := range x {
		if a < low {
			low = a
		}
		if high < a {
			high = a
		}
	}
	return low, high
}

// Quantize writes the wire form of src. Values that rounding pushed out of the
// range of the wire type are clamped (quirk Q31), NaN becomes the minimum.
func (quantizer) Quantize(t, q dtype.Type, m *quant.Meta, dst, src []byte) {
	if t == dtype.Float32 && q == dtype.Uint8 {
		done := quantizeByVector(m, dst, src)
		dst, src = dst[done:], src[4*done:]
	}
	if linear.Aligned(q, dst, t, src) {
		quantizeAligned(t, q, m, dst, src)
		return
	}
	var pair linear.Pair
	for len(dst) > 0 {
		d, s := pair.Load(q, dst, t, src)
		quantizeAligned(t, q, m, d, s)
		dst, src = dst[copy(dst, d):], src[len(s):]
	}
}

func quantizeAligned(t, q dtype.Type, m *quant.Meta, dst, src []byte) {
	if t == dtype.Float32 {
		quantizeFrom(q, float32(m.Min), float32(m.Max), dst, dtype.View[float32](src))
		return
	}
	quantizeFrom(q, m.Min, m.Max, dst, dtype.View[float64](src))
}

func quantizeFrom[T quant.Float](q dtype.Type, low, high T, dst []byte, src []T) {
	switch q {
	case dtype.Uint8:
		quantize(low, high, dst, src)
	case dtype.Uint16:
		quantize(low, high, dtype.View[uint16](dst), src)
	case dtype.Uint32:
		quantize(low, high, dtype.View[uint32](dst), src)
	default:
		dtype.Unhandled(Name, q)
	}
}

func quantize[T quant.Float, Q uint8 | uint16 | uint32](low, high T, dst []Q, src []T) {
	top := ^Q(0)
	qmax := float64(top)
	src = src[:len(dst)]
	d := float64(high - low)
	if d == 0 {
		for i, x := range src {
			dst[i] = truncate(float64(x-low)*qmax, qmax, top)
		}
		return
	}
	k, base := 1.0/d, float64(low)
	for i, x := range src {
		rel := float64((float64(x) - base) * k)
		dst[i] = truncate(float64(rel*qmax), qmax, top)
	}
}

// truncate returns v cut to a whole number within [0, top]; NaN gives 0.
func truncate[Q uint8 | uint16 | uint32](v, qmax float64, top Q) Q {
	if v >= qmax {
		return top
	}
	if v > 0 {
		return Q(int64(v))
	}
	return 0
}

// Dequantize sets dst := dst op value(q); every operation is rounded to t.
func (z quantizer) Dequantize(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, q []byte) {
	z.DequantizeFrom(t, qt, m, op, dst, dst, q)
}

// DequantizeFrom sets dst := acc op value(q). See quant.Fused.
func (quantizer) DequantizeFrom(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, acc, q []byte) {
	if t == dtype.Float32 && qt == dtype.Uint8 {
		done := dequantizeByVector(m, op, dst, acc, q)
		dst, acc, q = dst[4*done:], acc[4*done:], q[done:]
	}
	linear.Accumulate(dst, acc)
	if linear.Aligned(t, dst, qt, q) {
		dequantizeAligned(t, qt, m, op, dst, q)
		return
	}
	var pair linear.Pair
	for len(dst) > 0 {
		d, s := pair.Load(t, dst, qt, q)
		dequantizeAligned(t, qt, m, op, d, s)
		dst, q = dst[copy(dst, d):], q[len(s):]
	}
}

func dequantizeAligned(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, q []byte) {
	if t == dtype.Float32 {
		dequantizeTo(qt, float32(m.Min), float32(m.Max), op, dtype.View[float32](dst), q)
		return
	}
	dequantizeTo(qt, m.Min, m.Max, op, dtype.View[float64](dst), q)
}

func dequantizeTo[T quant.Float](qt dtype.Type, low, high T, op dtype.Op, dst []T, q []byte) {
	switch qt {
	case dtype.Uint8:
		if len(dst) >= 256 {
			dequantizeByTable(low, high, op, dst, q)
			return
		}
		dequantize(low, high, op, dst, q)
	case dtype.Uint16:
		dequantize(low, high, op, dst, dtype.View[uint16](q))
	case dtype.Uint32:
		dequantize(low, high, op, dst, dtype.View[uint32](q))
	default:
		dtype.Unhandled(Name, qt)
	}
}

// values sets dst to the values of q. Each product is converted before it is
// added: a fused multiply-add would round once instead of twice and differ
// from other peers.
func values[T quant.Float, Q uint8 | uint16 | uint32](low, high T, dst []T, q []Q) {
	inv := 1.0 / float64(^Q(0))
	span := T(high - low)
	q = q[:len(dst)]
	for i, v := range q {
		rel := T(float64(v) * inv)
		dst[i] = T(low + T(rel*span))
	}
	if span-span != 0 {
		quant.CanonicalNaNs(dst)
	}
}

func dequantize[T quant.Float, Q uint8 | uint16 | uint32](low, high T, op dtype.Op, dst []T, q []Q) {
	if op == dtype.Set {
		values(low, high, dst, q)
		return
	}
	var block [linear.BlockElements]T
	for len(dst) > 0 {
		n := min(len(block), len(dst))
		values(low, high, block[:n], q[:n])
		quant.Combine(op, dst[:n], block[:n])
		dst, q = dst[n:], q[n:]
	}
}

// dequantizeByTable computes the value of each of the 256 bytes once.
func dequantizeByTable[T quant.Float](low, high T, op dtype.Op, dst []T, q []uint8) {
	all := linear.Bytes[uint8]()
	var table [256]T
	values(low, high, table[:], all[:])
	quant.CombineTable(op, dst, &table, q)
}
