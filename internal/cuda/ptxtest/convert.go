package ptxtest

import (
	"math"
	"math/big"
)

// conversion returns cvt from one kind to another. Rounding to an integer,
// saturation and flushing are the instruction's modifiers.
func conversion(to, from kind, mode rounding, integral, sat, ftz bool, other nans) scalar {
	if to.bytes() == 8 && to.float() && from.float() && from.bytes() == 8 && !integral && !sat {
		return func(a, _, _ uint64) uint64 { return a }
	}
	var f scalar
	switch {
	case from.float() && to.float():
		f = floatToFloat(to, from, mode, integral, other)
	case from.float():
		f = floatToInt(to, from, mode)
	case to.float():
		f = intToFloat(to, from, mode)
	default:
		return intToInt(to, from, sat)
	}
	if sat && to.float() {
		f = saturateBits(f, to)
	}
	if ftz {
		g := f
		f = func(a, b, c uint64) uint64 {
			if from == f32 && a&0x7f800000 == 0 {
				a &= 0x80000000
			}
			d := g(a, b, c)
			if to == f32 && d&0x7f800000 == 0 {
				d &= 0x80000000
			}
			return d
		}
	}
	return f
}

// extend is a register's value of an integer kind, with its sign in all bits.
func extend(k kind, a uint64) uint64 {
	switch k {
	case u8, b8:
		return uint64(uint8(a))
	case u16, b16:
		return uint64(uint16(a))
	case u32, b32:
		return uint64(uint32(a))
	case s8:
		return uint64(int8(a))
	case s16:
		return uint64(int16(a))
	case s32:
		return uint64(int32(a))
	}
	return a
}

// limits are the smallest and the largest number of an integer kind.
func limits(k kind) (lo int64, hi uint64) {
	n := uint32(k.bytes() * 8)
	if k.signed() {
		return -1 << (n - 1), 1<<(n-1) - 1
	}
	return 0, mask(n)
}

func intToInt(to, from kind, sat bool) scalar {
	if !sat {
		return func(a, _, _ uint64) uint64 { return extend(to, extend(from, a)) }
	}
	lo, hi := limits(to)
	return func(a, _, _ uint64) uint64 {
		v := extend(from, a)
		if from.signed() && int64(v) < 0 {
			return uint64(max(int64(v), lo))
		}
		return min(v, hi)
	}
}

// value is a register's number of a floating-point kind.
func value(k kind, a uint64) float64 {
	switch k {
	case f16:
		return from16(uint16(a))
	case f32:
		return float64(get32(a))
	}
	return get64(a)
}

func floatToInt(to, from kind, mode rounding) scalar {
	lo, hi := limits(to)
	n := to.bytes() * 8
	// PTX: NaN becomes 0, but the one bit at the top where a double or an
	// integer of 64 bits takes part.
	nan := uint64(0)
	if from == f64 || n == 64 {
		nan = 1 << (n - 1)
	}
	return func(a, _, _ uint64) uint64 {
		x := value(from, a)
		if x != x {
			return nan
		}
		switch x = toIntegral(x, mode); {
		case x <= float64(lo):
			return uint64(lo)
		case x >= float64(hi):
			return hi
		case x < 0:
			return uint64(int64(x))
		}
		return uint64(x)
	}
}

func toIntegral(x float64, mode rounding) float64 {
	switch mode {
	case rn:
		return math.RoundToEven(x)
	case rz:
		return math.Trunc(x)
	case rm:
		return math.Floor(x)
	}
	return math.Ceil(x)
}

func intToFloat(to, from kind, mode rounding) scalar {
	if mode == rn && to != f16 {
		return nearest(to, from)
	}
	return func(a, _, _ uint64) uint64 {
		v := extend(from, a)
		neg := from.signed() && int64(v) < 0
		if neg {
			v = -v
		}
		if v == 0 {
			return 0
		}
		b := new(big.Float).SetUint64(v)
		if neg {
			b.Neg(b)
		}
		switch to {
		case f64:
			return math.Float64bits(directed(b, mode))
		case f32: // rounded to odd in between
			x, acc := b.Float64()
			return word32(to32(odd(x, -float64(acc)), mode))
		}
		x, _ := b.Float64() // far beyond the range wherever it is not exact
		return uint64(to16(x, mode))
	}
}

// nearest is intToFloat for the rounding that the machine has, too.
func nearest(to, from kind) scalar {
	switch {
	case to == f32 && from.signed():
		return func(a, _, _ uint64) uint64 { return word32(float32(int64(extend(from, a)))) }
	case to == f32:
		return func(a, _, _ uint64) uint64 { return word32(float32(extend(from, a))) }
	case from.signed():
		return func(a, _, _ uint64) uint64 { return math.Float64bits(float64(int64(extend(from, a)))) }
	}
	return func(a, _, _ uint64) uint64 { return math.Float64bits(float64(extend(from, a))) }
}

func floatToFloat(to, from kind, mode rounding, integral bool, other nans) scalar {
	return func(a, _, _ uint64) uint64 {
		x := value(from, a)
		if integral && x == x {
			x = math.Copysign(toIntegral(x, mode), x)
		}
		if other && x != x && (to == f16 || from == f16) {
			return keepPayload(to, from, a)
		}
		switch to {
		case f16:
			return uint64(to16(x, mode))
		case f32:
			if from == f32 && !integral {
				return word32(get32(a))
			}
			return word32(to32(x, mode))
		}
		if x != x && from == f32 {
			return other.word64(x, a&0x80000000<<32|0x7ff8<<48|a&0x3fffff<<29)
		}
		return other.word64(x, a)
	}
}

// keepPayload is a NaN with the sign and the upper bits of another kind's.
func keepPayload(to, from kind, a uint64) uint64 {
	fraction := map[kind]int{f16: 10, f32: 23, f64: 52}
	n := uint32(from.bytes() * 8)
	a &= mask(n)
	payload := a & mask(uint32(fraction[from])) << (64 - fraction[from]) >> (64 - fraction[to])
	sign := a >> (n - 1) << (to.bytes()*8 - 1)
	inf := mask(uint32(to.bytes()*8-1)) >> fraction[to] << fraction[to]
	return sign | inf | payload | 1<<(fraction[to]-1)
}

func saturateBits(f scalar, to kind) scalar {
	if to != f16 {
		return saturate(f, to)
	}
	return func(a, b, c uint64) uint64 { return uint64(to16(unit(from16(uint16(f(a, b, c)))), rn)) }
}

// from16 is the number of a half.
func from16(h uint16) float64 {
	e, m := int(h>>10&31), float64(h&0x3ff)
	var x float64
	switch {
	case e == 31 && m != 0:
		return math.NaN()
	case e == 31:
		x = math.Inf(1)
	case e == 0:
		x = math.Ldexp(m, -24)
	default:
		x = math.Ldexp(m+1024, e-25)
	}
	if h>>15 == 1 {
		return -x
	}
	return x
}

// to16 rounds x to a half.
func to16(x float64, mode rounding) uint16 {
	if x != x {
		return nan16
	}
	s := uint16(0)
	if math.Signbit(x) {
		s = 0x8000
	}
	y := math.Abs(x)
	if s != 0 && mode == rm {
		mode = rp
	} else if s != 0 && mode == rp {
		mode = rm
	}
	if math.IsInf(y, 0) {
		return s | 0x7c00
	}
	_, e := math.Frexp(y) // y < 1<<e
	e = max(e, -13)
	m := toIntegral(math.Ldexp(y, 11-e), mode) // in units of the last place
	if m == 2048 {
		m, e = 1024, e+1
	}
	if e > 16 {
		if mode == rn || mode == rp {
			return s | 0x7c00
		}
		return s | 0x7bff
	}
	if m < 1024 { // subnormal, so e is -13
		return s | uint16(m)
	}
	return s | uint16(e+14)<<10 | uint16(m)&0x3ff
}
