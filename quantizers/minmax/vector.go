//go:build (amd64 || arm64) && !noasm

package minmax

import (
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/quantizers/internal/linear"
)

// float32 to uint8 and back goes by vectors as far as whole vectors reach, at any
// address and with the bits of the loops in plain Go. Each function returns
// how many elements it did; the caller does the rest.

func boundsByVector(src []byte, low, high float32) (float32, float32, int) {
	n := len(src) / 4 &^ 31
	if !byVector || n == 0 {
		return low, high, 0
	}
	dtype.RaceRead(src[:4*n])
	low, high = boundsKernel(linear.Floats(src), n, low, high)
	return low, high, n
}

func quantizeByVector(m *quant.Meta, dst, src []byte) int {
	n := len(dst) &^ 15
	low := float32(m.Min)
	d := float64(float32(m.Max) - low)
	if !byVector || n == 0 || d == 0 || len(src) < 4*n {
		return 0
	}
	dtype.RaceRead(src[:4*n])
	dtype.RaceWrite(dst[:n])
	k := 1 / d
	for at := 0; at < n; {
		left := n - at
		// float32 decides where its error cannot matter. The error of the
		// three operations is below 3*2^-24 of a result, at most 255.
		if whole := left &^ 31; whole > 0 && fastLeast < d && d < fastMost {
			rest := quantizeFastKernel(&dst[at], linear.Floats(src[4*at:]), whole, low, float32(255*k), -fastError, fastError)
			at += whole - rest
			left = min(n-at, 32)
		}
		if left > 0 {
			quantizeKernel(&dst[at], linear.Floats(src[4*at:]), left, float64(low), k, 255)
			at += left
		}
	}
	return n
}

const (
	fastError = 255 * 4 * 0x1p-24
	fastLeast = 0x1p-100 // the range of an element type's bounds in which
	fastMost  = 0x1p100  // float32 neither overflows nor loses digits
)

// The reciprocal of 255 as the sum of two float32: q times it is rounded once
// by a fused multiply-add, to what the float64 product of the plain loop is
// rounded to (a test compares all 256).
const (
	reciprocal      = 1.0 / 255
	upperReciprocal = float32(reciprocal)
)

var lowerReciprocal = float32(reciprocal - float64(upperReciprocal))

// dequantizeByVector leaves to the table what is rare: other operations, and
// ranges that are not finite, where NaNs need care.
func dequantizeByVector(m *quant.Meta, op dtype.Op, dst, acc, q []byte) int {
	n := len(q) &^ 15
	low := float32(m.Min)
	span := float32(m.Max) - low
	if !byVector || n == 0 || span-span != 0 || low-low != 0 || len(dst) < 4*n || len(acc) < 4*n {
		return 0
	}
	if op != dtype.Set && op != dtype.Sum && op != dtype.Avg {
		return 0
	}
	dtype.RaceRead(q[:n])
	dtype.RaceWrite(dst[:4*n])
	if op == dtype.Set {
		setValuesKernel(linear.Floats(dst), &q[0], n, low, span, upperReciprocal, lowerReciprocal)
		return n
	}
	dtype.RaceRead(acc[:4*n])
	addValuesKernel(linear.Floats(dst), linear.Floats(acc), &q[0], n, low, span, upperReciprocal, lowerReciprocal)
	return n
}
