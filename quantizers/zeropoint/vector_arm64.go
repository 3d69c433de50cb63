//go:build arm64 && !noasm

package zeropoint

// byVector is a variable for the tests, which compare both ways. Every
// processor has the instructions.
var (
	byVector      = true
	byFusedVector = true
)

// What the wrappers call; the compiler leaves nothing of it.

func sumKernel(src *float32, n int, sums *[16]float64) { sumNEON(src, n, sums) }

func squaresKernel(src *float32, n int, mean float64, sums *[16]float64) {
	squaresNEON(src, n, mean, sums)
}

func quantizeKernel(dst *byte, src *float32, n int, inv, base, half, top float64) (rest int) {
	return quantizeNEON(dst, src, n, inv, base, half, top)
}

func quantizeFastKernel(dst *byte, src *float32, n int, low, k, below, above float32) (rest int) {
	return quantizeFastNEON(dst, src, n, low, k, below, above)
}

func setValuesKernel(dst *float32, q *byte, n int, zero int32, scale float32) {
	setValuesNEON(dst, q, n, zero, scale)
}

func addValuesKernel(dst, acc *float32, q *byte, n int, zero int32, scale float32) {
	addValuesNEON(dst, acc, q, n, zero, scale)
}
