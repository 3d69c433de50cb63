package kernels

import (
	"fmt"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"

	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// The wire types of the quantizers (data spec, section 4.1).
var (
	minMaxTypes    = []dtype.Type{dtype.Uint8, dtype.Uint16, dtype.Uint32}
	zeroPointTypes = []dtype.Type{dtype.Uint8, dtype.Int8, dtype.Uint16, dtype.Int16, dtype.Uint32, dtype.Int32, dtype.Int64}
)

func quantizeName(kind, direction string, t, q dtype.Type) string {
	return kind + "_" + direction + "_" + t.String() + "_" + q.String()
}

func quantizeNames() (names []string) {
	for _, t := range []dtype.Type{dtype.Float32, dtype.Float64} {
		for _, direction := range []string{"quantize", "dequantize"} {
			for _, q := range minMaxTypes {
				names = append(names, quantizeName("minmax", direction, t, q))
			}
			for _, q := range zeroPointTypes {
				names = append(names, quantizeName("zeropoint", direction, t, q))
			}
		}
	}
	return names
}

// quantizer returns the name of the kernels for m, or why there are none.
func quantizer(op string, t, q dtype.Type, m *quant.Meta) (string, error) {
	kind, types := "minmax", minMaxTypes
	if m.Kind == quant.ZeroPoint {
		kind, types = "zeropoint", zeroPointTypes
	} else if m.Kind != quant.MinMax {
		return "", errs.New(errs.InvalidArgument, op, fmt.Errorf("metadata of kind %d", m.Kind))
	}
	legal := false
	for _, other := range types {
		legal = legal || q == other
	}
	if t != dtype.Float32 && t != dtype.Float64 || !legal {
		return "", errs.New(errs.InvalidArgument, op, fmt.Errorf("%s does not quantize %v to %v", kind, t, q))
	}
	return kind, nil
}

// Quantizes reports whether there are kernels for elements of t and wire type q.
func Quantizes(t, q dtype.Type, kind quant.Kind) bool {
	_, err := quantizer("", t, q, &quant.Meta{Kind: kind})
	return err == nil
}

// Quantize queues the wire form of n elements of t at src, under m, to dst, with
// the bits of package minmax or zeropoint, whichever m.Kind says (data spec,
// sections 4.4 and 4.5). Addresses are multiples of the elements' sizes.
func (k *Set) Quantize(t, q dtype.Type, m *quant.Meta, dst, src driver.Ptr, n uint64, s driver.Stream) error {
	const op = "device quantize"
	kind, err := quantizer(op, t, q, m)
	if err == nil {
		err = aligned(op, t, src)
	}
	if err == nil {
		err = aligned(op, q, dst)
	}
	if err != nil || n == 0 {
		return err
	}
	a := args().ptr(dst, src).u64(n)
	switch {
	case kind == "minmax":
		low, span := m.Min, m.Max-m.Min
		if t == dtype.Float32 {
			low, span = float64(float32(m.Min)), float64(float32(m.Max)-float32(m.Min))
			a.f32(float32(low)).f32(float32(span))
		} else {
			a.f64(low).f64(span)
		}
		a.f64(1 / span).f64(low)
	case q == dtype.Int64:
		a.f64(1 / float64(m.Scale)).u64(uint64(m.ZeroPoint))
	default:
		low, span := bounds(q)
		base := float64(m.ZeroPoint - int64(low))
		zero := int64(low + math.Max(0, math.Min(base, span)))
		a.f64(1 / float64(m.Scale)).f64(base).u32(uint32(zero))
	}
	return k.launch(quantizeName(kind, "quantize", t, q), k.grid((n+3)/4), s, a)
}

// bounds returns the smallest value of an integer type of at most 32 bits, and
// how much larger the largest is.
func bounds(q dtype.Type) (low, span float64) {
	span = math.Ldexp(1, 8*q.Size()) - 1
	if q.IsSigned() {
		low = -math.Ldexp(1, 8*q.Size()-1)
	}
	return low, span
}

// Dequantize queues dst[i] := acc[i] op value(q[i]) for n elements of t, under
// m, with the bits of package minmax or zeropoint. Op is dtype.Set, which does
// not read acc, Sum, Avg (adds), Prod, Max or Min. dst may be acc, never a
// shifted view of it. Addresses are multiples of the elements' sizes.
func (k *Set) Dequantize(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, acc, q driver.Ptr, n uint64, s driver.Stream) error {
	const name = "device dequantize"
	kind, err := quantizer(name, t, qt, m)
	if op == dtype.Set {
		acc = dst
	}
	if err == nil {
		err = aligned(name, t, dst, acc)
	}
	if err == nil {
		err = aligned(name, qt, q)
	}
	if err == nil && op >= dtype.NumOps {
		err = errs.New(errs.InvalidArgument, name, fmt.Errorf("there is no %v", op))
	}
	if err != nil || n == 0 {
		return err
	}
	if op == dtype.Avg {
		op = dtype.Sum
	}
	a := args().ptr(dst, acc, q).u64(n).u32(uint32(op))
	switch {
	case kind == "zeropoint":
		a.u64(uint64(m.ZeroPoint)).f32(m.Scale)
	case t == dtype.Float32:
		a.f32(float32(m.Min)).f32(float32(m.Max) - float32(m.Min)).f64(inverse(qt))
	default:
		a.f64(m.Min).f64(m.Max - m.Min).f64(inverse(qt))
	}
	return k.launch(quantizeName(kind, "dequantize", t, qt), k.grid((n+3)/4), s, a)
}

// inverse is the reciprocal of the largest q.
func inverse(q dtype.Type) float64 { return 1 / (math.Ldexp(1, 8*q.Size()) - 1) }
