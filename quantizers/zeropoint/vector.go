//go:build (amd64 || arm64) && !noasm

package zeropoint

import (
	"math"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/quantizers/internal/linear"
)

// float32 to uint8 and back goes by vectors as far as whole vectors reach, at any
// address and with the bits of the loops in plain Go, which do the rest.

// byVector adds whole sixteens of src and returns how many elements that were.
func (s *sums) byVector(src []byte, mean float64, squared bool) int {
	n := len(src) / 4 &^ 15
	if !byVector || n == 0 {
		return 0
	}
	dtype.RaceRead(src[:4*n])
	if squared {
		squaresKernel(linear.Floats(src), n, mean, (*[16]float64)(s))
	} else {
		sumKernel(linear.Floats(src), n, (*[16]float64)(s))
	}
	return n
}

// quantizeByVector returns what is left to do.
func quantizeByVector(m *quant.Meta, dst, src []byte) (restOfDst, restOfSrc []byte) {
	inv := 1 / float64(m.Scale)
	if !byVector || !finite(inv) || inv == 0 { // these make NaNs of numbers
		return dst, src
	}
	base := float64(m.ZeroPoint)
	// float32 decides where its error cannot matter: that of a reciprocal, a
	// multiply-add and its constant is below a quarter of fastError for what
	// is between 0 and 255.
	fast := byFusedVector && math.Abs(base) <= 1024 && 0x1p-100 < math.Abs(inv) && math.Abs(inv) < 0x1p100
	fastError := float64(0x1p-22 * (256 + math.Abs(base)))
	for len(dst) >= 16 && len(src) >= 64 {
		n := min(len(dst), len(src)/4) &^ 15
		if whole := n &^ 31; fast && whole > 0 {
			dtype.RaceRead(src[:4*whole])
			dtype.RaceWrite(dst[:whole])
			rest := quantizeFastKernel(&dst[0], linear.Floats(src), whole, 0, float32(inv), float32(base+0.5-fastError), float32(base+0.5+fastError))
			dst, src = dst[whole-rest:], src[4*(whole-rest):]
			n = min(n-whole+rest, 32) &^ 15
			if n == 0 {
				break
			}
		}
		dtype.RaceRead(src[:4*n])
		dtype.RaceWrite(dst[:n])
		rest := quantizeKernel(&dst[0], linear.Floats(src), n, inv, base, 0.5, 255)
		dst, src = dst[n-rest:], src[4*(n-rest):]
		if rest > 0 { // a NaN is among the next 16
			quantizeNaNs(m, dst[:16], src[:64])
			dst, src = dst[16:], src[64:]
		}
	}
	return dst, src
}

func quantizeNaNs(m *quant.Meta, dst, src []byte) {
	var block [16]float32
	copy(dtype.AsBytes(block[:]), src)
	quantizeNarrow(dtype.Uint8, m, dst, block[:])
}

// dequantizeByVector returns how many elements it did. A scale that is not
// finite makes NaNs, which need care.
func dequantizeByVector(m *quant.Meta, op dtype.Op, dst, acc, q []byte) int {
	n := len(q) &^ 15
	zero := int32(m.ZeroPoint)
	if !byVector || n == 0 || zero < -math.MaxInt32+255 || m.Scale-m.Scale != 0 || len(dst) < 4*n || len(acc) < 4*n {
		return 0
	}
	if op != dtype.Set && op != dtype.Sum && op != dtype.Avg {
		return 0
	}
	dtype.RaceRead(q[:n])
	dtype.RaceWrite(dst[:4*n])
	if op == dtype.Set {
		setValuesKernel(linear.Floats(dst), &q[0], n, zero, m.Scale)
		return n
	}
	dtype.RaceRead(acc[:4*n])
	addValuesKernel(linear.Floats(dst), linear.Floats(acc), &q[0], n, zero, m.Scale)
	return n
}
