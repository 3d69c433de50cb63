package dtype

import "math"

const (
	f16Sign   = 0x8000
	f16Mag    = 0x7fff // exponent and fraction
	f16Inf    = 0x7c00
	f16Quiet  = 0x0200
	bf16Quiet = 0x0040

	f32Sign  = 0x80000000
	f32Mag   = 0x7fffffff
	f32Inf   = 0x7f800000
	f32Quiet = 0x00400000
)

// Float16ToFloat32 returns the value of the IEEE 754 binary16 pattern h. The
// conversion is exact; the payload of a NaN is kept and the NaN made quiet.
func Float16ToFloat32(h uint16) float32 {
	mag := uint32(h & f16Mag)
	if mag >= f16Inf {
		return notFinite(h)
	}
	// No branch between normal and subnormal numbers, which data mix. A
	// normal one moves its exponent's bias from 15 to 127. A subnormal one is
	// given the exponent of 2^-14 and has the 2^-14 that this adds taken away.
	subnormal := uint32(int32(mag-0x0400) >> 31) // all ones, or zero
	v := math.Float32frombits(mag<<13+(112<<23+subnormal&(1<<23))) - math.Float32frombits(subnormal&(113<<23))
	return math.Float32frombits(math.Float32bits(v) | uint32(h&f16Sign)<<16)
}

func notFinite(h uint16) float32 {
	b := uint32(h&f16Sign)<<16 | f32Inf
	if frac := uint32(h & 0x03ff); frac != 0 {
		b |= f32Quiet | frac<<13
	}
	return math.Float32frombits(b)
}

// Float16FromFloat32 returns f rounded to the nearest IEEE 754 binary16
// pattern, ties to even; too large values become infinite. A NaN stays a
// quiet NaN with its sign and the upper bits of its payload.
func Float16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	mag := b & f32Mag
	if mag >= (127+16)<<23 {
		return tooLarge(b)
	}
	// Added to a power of two that is 2^13 times that of the number (or of
	// the smallest normal one), the number is rounded by the addition to what
	// binary16 holds, and the difference of the patterns counts its steps.
	exp := max(mag&f32Inf, (127-14)<<23)
	power := exp + 13<<23
	steps := math.Float32bits(math.Float32frombits(mag)+math.Float32frombits(power)) - power
	// The implicit bit among the steps adds one to the exponent.
	return uint16(b>>16)&f16Sign | uint16((exp-(127-14)<<23)>>13+steps)
}

// tooLarge is Float16FromFloat32 for magnitudes from 2^16, infinities and NaN.
func tooLarge(b uint32) uint16 {
	h := uint16(b>>16)&f16Sign | f16Inf
	if b&f32Mag > f32Inf {
		h |= f16Quiet | uint16(b>>13)&0x03ff
	}
	return h
}

// BFloat16ToFloat32 returns the value of the bfloat16 pattern h, bit for bit
// the upper half of the float32.
func BFloat16ToFloat32(h uint16) float32 {
	return math.Float32frombits(uint32(h) << 16)
}

// BFloat16FromFloat32 returns f rounded to the nearest bfloat16 pattern, ties
// to even; too large values become infinite. A NaN stays a quiet NaN with its
// sign and the upper bits of its payload.
func BFloat16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	if b&f32Mag > f32Inf {
		return uint16(b>>16) | bf16Quiet
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
