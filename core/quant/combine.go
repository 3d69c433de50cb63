package quant

import "github.com/gopccl/gopccl/core/dtype"

// Float is the Go type of a data type that can be quantized.
type Float interface{ ~float32 | ~float64 }

// Combine sets dst[i] := dst[i] op values[i], op being dtype.Set, Sum, Avg
// (adds), Prod, Max or Min with the arithmetic of data spec, section 3. It is
// the last step of a quantizer's Dequantize; values has the length of dst.
func Combine[T Float](op dtype.Op, dst, values []T) {
	v := values[:len(dst)]
	switch op {
	case dtype.Set:
		copy(dst, v)
	case dtype.Sum, dtype.Avg:
		for i := range dst {
			dst[i] += v[i]
		}
	case dtype.Prod:
		for i := range dst {
			dst[i] *= v[i]
		}
	case dtype.Max:
		for i := range dst {
			if dst[i] < v[i] {
				dst[i] = v[i]
			}
		}
	case dtype.Min:
		for i := range dst {
			if v[i] < dst[i] {
				dst[i] = v[i]
			}
		}
	default:
		dtype.Unhandled("quant.Combine", op)
	}
}

// CombineTable sets dst[i] := dst[i] op table[q[i]], like Combine, for
// quantizers to 8 bits. q has the length of dst.
func CombineTable[T Float](op dtype.Op, dst []T, table *[256]T, q []uint8) {
	switch op {
	case dtype.Set:
		for len(dst) >= 8 && len(q) >= 8 {
			p, v := (*[8]T)(dst), (*[8]uint8)(q)
			p[0] = table[v[0]]
			p[1] = table[v[1]]
			p[2] = table[v[2]]
			p[3] = table[v[3]]
			p[4] = table[v[4]]
			p[5] = table[v[5]]
			p[6] = table[v[6]]
			p[7] = table[v[7]]
			dst, q = dst[8:], q[8:]
		}
		for i := range dst {
			dst[i] = table[q[i]]
		}
	case dtype.Sum, dtype.Avg:
		for len(dst) >= 8 && len(q) >= 8 {
			p, v := (*[8]T)(dst), (*[8]uint8)(q)
			p[0] += table[v[0]]
			p[1] += table[v[1]]
			p[2] += table[v[2]]
			p[3] += table[v[3]]
			p[4] += table[v[4]]
			p[5] += table[v[5]]
			p[6] += table[v[6]]
			p[7] += table[v[7]]
			dst, q = dst[8:], q[8:]
		}
		for i := range dst {
			dst[i] += table[q[i]]
		}
	default:
		var block [256]T
		for len(dst) > 0 {
			n := min(len(block), len(dst))
			for i, v := range q[:n] {
				block[i] = table[v]
			}
			Combine(op, dst[:n], block[:n])
			dst, q = dst[n:], q[n:]
		}
	}
}

// CanonicalNaNs gives every NaN in v one pattern, negative, quiet and without
// payload, which is what x86 processors make; others make the positive one.
// Values that a dequantization may turn into NaN (infinite parameters) pass
// through it, so that peers on different processors agree on the bits.
func CanonicalNaNs[T Float](v []T) {
	negative := canonicalNaN[T]()
	for i, x := range v {
		if x != x {
			v[i] = negative
		}
	}
}

func canonicalNaN[T Float]() T {
	var v [1]T
	if dtype.TypeOf[T]() == dtype.Float32 {
		dtype.View[uint32](dtype.AsBytes(v[:]))[0] = 0xffc00000
	} else {
		dtype.View[uint64](dtype.AsBytes(v[:]))[0] = 0xfff8000000000000
	}
	return v[0]
}
