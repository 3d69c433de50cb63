package main

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// absmax encodes x as round(x/scale) with scale = max|x| / 127 (int8) or / 32767
// (int16). Its metadata are of its own kind: the scale, a float32. What is not
// finite does not count for the scale; NaN becomes 0.
type absmax struct{}

// Name implements quant.Quantizer.
func (absmax) Name() string { return "absmax" }

// Check implements quant.Quantizer.
func (absmax) Check(t, q dtype.Type, op dtype.Op, minChunk int, native bool) error {
	switch {
	case !native:
		return fmt.Errorf("PCCL peers do not have absmax")
	case t != dtype.Float32 && t != dtype.Float64, q != dtype.Int8 && q != dtype.Int16:
		return fmt.Errorf("absmax encodes float32 and float64 as int8 or int16, not %v as %v", t, q)
	case !op.Valid():
		return fmt.Errorf("absmax does not know operation %v", op)
	case minChunk < 1:
		return fmt.Errorf("absmax wants chunks of 1 element or more")
	}
	return nil
}

func load(t dtype.Type, b []byte, i int) float64 {
	if t == dtype.Float32 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
}

func store(t dtype.Type, b []byte, i int, v float64) {
	if t == dtype.Float32 {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(float32(v)))
		return
	}
	binary.LittleEndian.PutUint64(b[8*i:], math.Float64bits(v))
}

func largest(q dtype.Type) float64 {
	if q == dtype.Int8 {
		return math.MaxInt8
	}
	return math.MaxInt16
}

// Params implements quant.Quantizer.
func (absmax) Params(t, q dtype.Type, src []byte) quant.Meta {
	top := 0.0
	for i := range len(src) / t.Size() {
		if v := math.Abs(load(t, src, i)); v > top && !math.IsInf(v, 1) {
			top = v
		}
	}
	scale := math.Min(top/largest(q), math.MaxFloat32)
	if scale = float64(float32(scale)); scale == 0 {
		scale = math.SmallestNonzeroFloat32
	}
	m := quant.Meta{Kind: kind, Size: 4}
	binary.LittleEndian.PutUint32(m.Bytes[:], math.Float32bits(float32(scale)))
	return m
}

// kind is that of absmax' metadata.
const kind = quant.Own + 1

// scaleOf reads the scale.
func scaleOf(m *quant.Meta) float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(m.Bytes[:])))
}

// Form implements quant.Formed: elements one after the other, metadata of its own.
func (absmax) Form(_, q dtype.Type) quant.Form {
	return quant.Form{Elements: 1, Bytes: q.Size(), Kind: kind}
}

// Quantize implements quant.Quantizer.
func (absmax) Quantize(t, q dtype.Type, m *quant.Meta, dst, src []byte) {
	top, scale := largest(q), scaleOf(m)
	for i := range len(src) / t.Size() {
		v := math.RoundToEven(load(t, src, i) / scale)
		switch {
		case v != v:
			v = 0
		case v > top:
			v = top
		case v < -top:
			v = -top
		}
		if q == dtype.Int8 {
			dst[i] = byte(int8(v))
		} else {
			binary.LittleEndian.PutUint16(dst[2*i:], uint16(int16(v)))
		}
	}
}

// Dequantize implements quant.Quantizer. The value of an integer is its product
// with the scale, rounded to t once.
func (absmax) Dequantize(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, q []byte) {
	scale := scaleOf(m)
	for i := range len(dst) / t.Size() {
		var n float64
		if qt == dtype.Int8 {
			n = float64(int8(q[i]))
		} else {
			n = float64(int16(binary.LittleEndian.Uint16(q[2*i:])))
		}
		v := n * scale // exact: 16 and 24 bits
		if t == dtype.Float32 {
			v = float64(float32(v))
		}
		a := load(t, dst, i)
		switch op {
		case dtype.Set:
			a = v
		case dtype.Sum, dtype.Avg:
			a += v
		case dtype.Prod:
			a *= v
		case dtype.Max:
			if a < v {
				a = v
			}
		case dtype.Min:
			if v < a {
				a = v
			}
		}
		store(t, dst, i, a)
	}
}

// CheckMeta implements quant.Quantizer.
func (absmax) CheckMeta(_, _ dtype.Type, m *quant.Meta) error {
	if m.Kind != kind || m.Size != 4 {
		return fmt.Errorf("metadata of another quantizer")
	}
	if s := scaleOf(m); !(s > 0) || math.IsInf(s, 1) {
		return fmt.Errorf("scale %v is not a positive number", s)
	}
	return nil
}
