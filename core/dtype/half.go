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
	sign := uint32(h&f16Sign) << 16
	mag := uint32(h & f16Mag)
	switch {
	case mag-0x0400 < f16Inf-0x0400: // normal: move the exponent's bias from 15 to 127
		return math.Float32frombits(sign | (mag<<13 + (127-15)<<23))
	case mag < 0x0400: // zero or subnormal: a multiple of 2^-24, exact in float32
		return math.Float32frombits(sign | math.Float32bits(float32(mag)*0x1p-24))
	case mag == f16Inf:
		return math.Float32frombits(sign | f32Inf)
	}
	return math.Float32frombits(sign | f32Inf | f32Quiet | (mag&0x03ff)<<13)
}

// Float16FromFloat32 returns f rounded to the nearest IEEE 754 binary16
// pattern, ties to even; too large values become infinite. A NaN stays a
// quiet NaN with its sign and the upper bits of its payload.
func Float16FromFloat32(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & f16Sign
	mag := b & f32Mag
	switch {
	case mag < 0x38800000: // below the smallest normal, 2^-14
		// The sum's unit in the last place is 2^-24, the step of subnormals,
		// so the addition does the rounding.
		sum := math.Float32frombits(mag) + 0.5
		return sign | uint16(math.Float32bits(sum)-math.Float32bits(0.5))
	case mag < 0x47800000: // below 2^16; the carry of rounding may reach infinity
		mag += 0x0fff + mag>>13&1
		return sign | uint16((mag-(127-15)<<23)>>13)
	case mag <= f32Inf:
		return sign | f16Inf
	}
	return sign | f16Inf | f16Quiet | uint16(mag>>13)&0x03ff
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
