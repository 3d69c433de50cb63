package backendtest

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gopccl/gopccl/core/dtype"
)

// The oracle takes one element at a time as a pattern in the low bits of a
// word and shares no code with any backend: integers are computed in 64 bits
// and cut, floats in float64 and rounded by arithmetic on the exponent.

func load(t dtype.Type, b []byte) uint64 {
	switch t.Size() {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

func store(t dtype.Type, b []byte, v uint64) {
	for i := range t.Size() {
		b[i] = byte(v >> (8 * i))
	}
}

// format returns the explicit fraction bits and the bias of a float type.
func format(t dtype.Type) (fraction, bias int) {
	switch t {
	case dtype.Float16:
		return 10, 15
	case dtype.BFloat16:
		return 7, 127
	case dtype.Float32:
		return 23, 127
	case dtype.Float64:
		return 52, 1023
	}
	dtype.Unhandled("layout of floats", t)
	return 0, 0
}

// value is the number that pattern v means; NaN for every NaN.
func value(t dtype.Type, v uint64) float64 {
	if t == dtype.Float64 {
		return math.Float64frombits(v)
	}
	fraction, bias := format(t)
	width := 8 * t.Size()
	exp := int(v>>fraction) & (1<<(width-1-fraction) - 1)
	frac := v & (1<<fraction - 1)
	var x float64
	switch {
	case exp == 2*bias+1 && frac != 0:
		return math.NaN()
	case exp == 2*bias+1:
		x = math.Inf(1)
	case exp == 0:
		x = math.Ldexp(float64(frac), 1-bias-fraction)
	default:
		x = math.Ldexp(float64(frac+1<<fraction), exp-bias-fraction)
	}
	if v>>(width-1) != 0 {
		x = -x
	}
	return x
}

// round returns x rounded to the values of t, ties to even.
func round(t dtype.Type, x float64) float64 {
	if t == dtype.Float64 || x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	fraction, bias := format(t)
	_, e := math.Frexp(x)
	step := max(e-1, 1-bias) - fraction
	r := math.Ldexp(math.RoundToEven(math.Ldexp(x, -step)), step)
	if limit := math.Ldexp(2-math.Ldexp(1, -fraction), bias); math.Abs(r) > limit {
		return math.Inf(int(math.Copysign(1, x)))
	}
	return r
}

// pattern is the inverse of value for a value of t; any NaN gives one quiet NaN.
func pattern(t dtype.Type, x float64) uint64 {
	if t == dtype.Float64 {
		return math.Float64bits(x)
	}
	fraction, bias := format(t)
	width := 8 * t.Size()
	var v uint64
	if math.Signbit(x) {
		v, x = 1<<(width-1), -x
	}
	switch {
	case math.IsNaN(x):
		return uint64(2*bias+1)<<fraction | 1<<(fraction-1)
	case math.IsInf(x, 0):
		return v | uint64(2*bias+1)<<fraction
	case x == 0:
		return v
	}
	_, e := math.Frexp(x)
	if e-1 < 1-bias {
		return v | uint64(math.Ldexp(x, bias-1+fraction))
	}
	frac := uint64(math.Ldexp(x, fraction-(e-1))) - 1<<fraction
	return v | uint64(e-1+bias)<<fraction | frac
}

// signed extends the sign of pattern v of a signed type.
func signed(t dtype.Type, v uint64) int64 {
	shift := 64 - 8*t.Size()
	return int64(v<<shift) >> shift
}

func less(t dtype.Type, x, y uint64) bool {
	switch {
	case t.IsFloat():
		return value(t, x) < value(t, y)
	case t.IsSigned():
		return signed(t, x) < signed(t, y)
	}
	return x < y
}

// reduceOne is local op received (data spec, section 3).
func reduceOne(t dtype.Type, op dtype.Op, local, received uint64) uint64 {
	switch op {
	case dtype.Max:
		if less(t, local, received) {
			return received
		}
		return local
	case dtype.Min:
		if less(t, received, local) {
			return received
		}
		return local
	case dtype.Prod:
		if t.IsFloat() {
			return pattern(t, round(t, value(t, local)*value(t, received)))
		}
		return local * received & mask(t)
	case dtype.Sum, dtype.Avg:
		if t.IsFloat() {
			return pattern(t, round(t, value(t, local)+value(t, received)))
		}
		return (local + received) & mask(t)
	}
	dtype.Unhandled("oracle", op)
	return 0
}

// divideOne is v / world (data spec, section 3); 16 bit floats are divided in
// float32 and rounded once more.
func divideOne(t dtype.Type, v uint64, world int) uint64 {
	switch {
	case t == dtype.Float64:
		return pattern(t, value(t, v)/float64(world))
	case t.IsFloat():
		w := round(dtype.Float32, float64(world))
		return pattern(t, round(t, round(dtype.Float32, value(t, v)/w)))
	case t.IsSigned():
		return uint64(signed(t, v)/int64(world)) & mask(t)
	}
	return v / uint64(world)
}

func mask(t dtype.Type) uint64 { return ^uint64(0) >> (64 - 8*t.Size()) }

// same compares a result with the oracle's. Which NaN an addition, product or
// quotient yields is the processor's choice; max and min choose between given
// patterns and have no freedom.
func same(t dtype.Type, exact bool, got, want uint64) bool {
	if got == want {
		return true
	}
	return !exact && t.IsFloat() && math.IsNaN(value(t, got)) && math.IsNaN(value(t, want))
}

// compare names the first element of got that differs from want.
func compare(t dtype.Type, exact bool, got, want []byte) error {
	size := t.Size()
	for i := 0; i < len(want); i += size {
		g, w := load(t, got[i:]), load(t, want[i:])
		if !same(t, exact, g, w) {
			return fmt.Errorf("element %d is %#0*x, want %#0*x", i/size, 2*size+2, g, 2*size+2, w)
		}
	}
	return nil
}
