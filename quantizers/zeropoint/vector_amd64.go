//go:build amd64 && !noasm

package zeropoint

import "golang.org/x/sys/cpu"

// byVector is a variable for the tests, which compare both ways.
var (
	byVector      = cpu.X86.HasAVX2
	byFusedVector = byVector && cpu.X86.HasFMA
)

// What the wrappers call; the compiler leaves nothing of it.

func sumKernel(src *float32, n int, sums *[16]float64) { sumAVX2(src, n, sums) }

func squaresKernel(src *float32, n int, mean float64, sums *[16]float64) {
	squaresAVX2(src, n, mean, sums)
}

func quantizeKernel(dst *byte, src *float32, n int, inv, base, half, top float64) (rest int) {
	return quantizeAVX2(dst, src, n, inv, base, half, top)
}

func quantizeFastKernel(dst *byte, src *float32, n int, low, k, below, above float32) (rest int) {
	return quantizeFastAVX2(dst, src, n, low, k, below, above)
}

func setValuesKernel(dst *float32, q *byte, n int, zero int32, scale float32) {
	setValuesAVX2(dst, q, n, zero, scale)
}

func addValuesKernel(dst, acc *float32, q *byte, n int, zero int32, scale float32) {
	addValuesAVX2(dst, acc, q, n, zero, scale)
}
