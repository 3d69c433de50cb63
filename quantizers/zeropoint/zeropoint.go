// Package zeropoint is PCCL's ZeroPointScale quantizer: a chunk is mapped
// linearly to an integer by a scale and the integer that stands for zero
// (data spec, section 4.5).
package zeropoint

import (
	"fmt"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/quantizers/internal/linear"
)

// Name is the name under which the quantizer is registered.
const Name = "zeropoint"

func init() { quant.Register(New()) }

// New returns the quantizer, which has no state.
func New() quant.Quantizer { return quantizer{} }

type quantizer struct{}

func (quantizer) Name() string { return Name }

// Check implements the table of data spec, section 4.1. uint64, which PCCL
// accepts and then gets wrong (quirk Q31), is refused; chunks of one element
// kill a PCCL sender (quirk Q32) and are refused where one may take part.
func (quantizer) Check(t, q dtype.Type, op dtype.Op, minChunk int, native bool) error {
	least := 2
	if native {
		least = 1
	}
	switch {
	case t != dtype.Float32 && t != dtype.Float64:
		return fmt.Errorf("zeropoint quantizes float32 and float64, not %v", t)
	case q == dtype.Uint64:
		return fmt.Errorf("zeropoint to uint64 is useless in PCCL 1.0.0 and not offered (use int8, uint8, int16, uint16, int32, uint32 or int64)")
	case !q.Valid() || q.IsFloat():
		return fmt.Errorf("zeropoint quantizes to int8, uint8, int16, uint16, int32, uint32 or int64, not %v", q)
	case op != dtype.Sum && op != dtype.Avg:
		return fmt.Errorf("zeropoint supports sum and avg, not %v", op)
	case minChunk < least:
		return fmt.Errorf("zeropoint needs at least %d elements per peer, the smallest chunk has %d", least, minChunk)
	}
	return nil
}

// CheckMeta refuses metadata of another kind and a scale that is not a number.
func (quantizer) CheckMeta(_, _ dtype.Type, m *quant.Meta) error {
	switch {
	case m.Kind != quant.ZeroPoint:
		return fmt.Errorf("zeropoint: metadata of kind %d", m.Kind)
	case m.Scale != m.Scale:
		return fmt.Errorf("zeropoint: scale is NaN")
	}
	return nil
}

// Quantize writes round(x / scale) + zero point, clamped to the wire type.
// Ties round up. NaN becomes the zero point.
func (quantizer) Quantize(t, q dtype.Type, m *quant.Meta, dst, src []byte) {
	if t == dtype.Float32 && q == dtype.Uint8 {
		dst, src = quantizeByVector(m, dst, src)
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
		quantizeFrom(q, m, dst, dtype.View[float32](src))
		return
	}
	quantizeFrom(q, m, dst, dtype.View[float64](src))
}

func quantizeFrom[T quant.Float](q dtype.Type, m *quant.Meta, dst []byte, src []T) {
	switch q {
	case dtype.Uint8:
		quantizeNarrow(q, m, dst, src)
	case dtype.Int8:
		quantizeNarrow(q, m, dtype.View[int8](dst), src)
	case dtype.Uint16:
		quantizeNarrow(q, m, dtype.View[uint16](dst), src)
	case dtype.Int16:
		quantizeNarrow(q, m, dtype.View[int16](dst), src)
	case dtype.Uint32:
		quantizeNarrow(q, m, dtype.View[uint32](dst), src)
	case dtype.Int32:
		quantizeNarrow(q, m, dtype.View[int32](dst), src)
	case dtype.Int64:
		quantizeInt64(m, dtype.View[int64](dst), src)
	default:
		dtype.Unhandled(Name, q)
	}
}

type narrow interface {
	uint8 | int8 | uint16 | int16 | uint32 | int32
}

// quantizeNarrow counts steps from the lower end of the wire type, where they
// are not negative and rounding is an addition and a cut.
func quantizeNarrow[T quant.Float, Q narrow](q dtype.Type, m *quant.Meta, dst []Q, src []T) {
	w := integersOf(q)
	inv := 1 / float64(m.Scale)
	base := float64(m.ZeroPoint - int64(w.low)) // steps from the lower end to zero
	span := w.high - w.low
	lowest, highest := int64(w.low), Q(int64(w.high))
	zero := Q(int64(w.low + math.Max(0, math.Min(base, span))))
	src = src[:len(dst)]
	for i, x := range src {
		v := float64(float64(x)*inv) + base + 0.5
		switch {
		case v >= span:
			dst[i] = highest
		case v > 0:
			dst[i] = Q(lowest + int64(v))
		case v == v:
			dst[i] = Q(lowest)
		default:
			dst[i] = zero
		}
	}
}

// quantizeInt64 adds in integers, since a float64 does not hold the sum.
func quantizeInt64[T quant.Float](m *quant.Meta, dst []int64, src []T) {
	inv := 1 / float64(m.Scale)
	src = src[:len(dst)]
	for i, x := range src {
		dst[i] = addClamped(roundClamped(float64(float64(x)*inv)), m.ZeroPoint)
	}
}

func roundClamped(v float64) int64 {
	switch {
	case v >= 0x1p63:
		return math.MaxInt64
	case v >= -0x1p63:
		return int64(math.Round(v))
	case v < 0:
		return math.MinInt64
	}
	return 0 // NaN
}

func addClamped(a, b int64) int64 {
	s := a + b
	if (a^s)&(b^s) < 0 { // both operands have the other sign: overflow
		if a < 0 {
			return math.MinInt64
		}
		return math.MaxInt64
	}
	return s
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
		zp := m.ZeroPoint
		if qt == dtype.Uint8 {
			dequantizeUint8(int32(zp), m.Scale, op, dtype.View[float32](dst), q)
			return
		}
		dequantizeTo(qt, zp, m.Scale, op, dtype.View[float32](dst), q)
		return
	}
	dequantizeTo(qt, m.ZeroPoint, m.Scale, op, dtype.View[float64](dst), q)
}

func dequantizeTo[T quant.Float](qt dtype.Type, zp int64, scale float32, op dtype.Op, dst []T, q []byte) {
	switch qt {
	case dtype.Uint8:
		dequantizeBytes(zp, scale, op, dst, q)
	case dtype.Int8:
		dequantizeBytes(zp, scale, op, dst, dtype.View[int8](q))
	case dtype.Uint16:
		dequantize(zp, scale, op, dst, dtype.View[uint16](q))
	case dtype.Int16:
		dequantize(zp, scale, op, dst, dtype.View[int16](q))
	case dtype.Uint32:
		dequantize(zp, scale, op, dst, dtype.View[uint32](q))
	case dtype.Int32:
		dequantize(zp, scale, op, dst, dtype.View[int32](q))
	case dtype.Int64:
		dequantize(zp, scale, op, dst, dtype.View[int64](q))
	default:
		dtype.Unhandled(Name, qt)
	}
}

// values sets dst to the values of q. The product is converted, so that no
// later addition is fused with it. For float32 the float64 product is exact and
// its rounding is that of a float32 product.
func values[T quant.Float, Q narrow | int64](zp int64, scale float32, dst []T, q []Q) {
	s := float64(scale)
	q = q[:len(dst)]
	for i, v := range q {
		t := T(int64(v) - zp)
		dst[i] = T(float64(t) * s)
	}
	if s-s != 0 {
		quant.CanonicalNaNs(dst)
	}
}

func dequantize[T quant.Float, Q narrow | int64](zp int64, scale float32, op dtype.Op, dst []T, q []Q) {
	if op == dtype.Set {
		values(zp, scale, dst, q)
		return
	}
	var block [linear.BlockElements]T
	for len(dst) > 0 {
		n := min(len(block), len(dst))
		values(zp, scale, block[:n], q[:n])
		quant.Combine(op, dst[:n], block[:n])
		dst, q = dst[n:], q[n:]
	}
}

// dequantizeBytes computes the value of each of the 256 bytes once if there
// are more elements than that.
func dequantizeBytes[T quant.Float, Q uint8 | int8](zp int64, scale float32, op dtype.Op, dst []T, q []Q) {
	if len(dst) < 256 {
		dequantize(zp, scale, op, dst, q)
		return
	}
	all := linear.Bytes[Q]()
	var table [256]T
	values(zp, scale, table[:], all[:])
	quant.CombineTable(op, dst, &table, dtype.View[uint8](dtype.AsBytes(q)))
}

// dequantizeUint8 is uint8 to float32, where PCCL cuts the zero point to 32
// bits and subtracts in 32 bits.
func dequantizeUint8(zp int32, scale float32, op dtype.Op, dst []float32, q []byte) {
	if zp >= -math.MaxInt32+255 { // no byte minus zp leaves an int32
		dequantizeBytes(int64(zp), scale, op, dst, q)
		return
	}
	var table [256]float32
	for i := range table {
		table[i] = float32(float32(int32(i)-zp) * scale)
	}
	if scale-scale != 0 {
		quant.CanonicalNaNs(table[:])
	}
	quant.CombineTable(op, dst, &table, q)
}
