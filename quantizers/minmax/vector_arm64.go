//go:build arm64 && !noasm

package minmax

// byVector is a variable for the tests, which compare both ways. Every
// processor has the instructions.
var byVector = true

// What the wrappers call; the compiler leaves nothing of it.

func boundsKernel(src *float32, n int, low, high float32) (least, most float32) {
	return boundsNEON(src, n, low, high)
}

func quantizeKernel(dst *byte, src *float32, n int, low, k, top float64) {
	quantizeNEON(dst, src, n, low, k, top)
}

func quantizeFastKernel(dst *byte, src *float32, n int, low, k, below, above float32) (rest int) {
	return quantizeFastNEON(dst, src, n, low, k, below, above)
}

func setValuesKernel(dst *float32, q *byte, n int, low, span, recipHigh, recipLow float32) {
	setValuesNEON(dst, q, n, low, span, recipHigh, recipLow)
}

func addValuesKernel(dst, acc *float32, q *byte, n int, low, span, recipHigh, recipLow float32) {
	addValuesNEON(dst, acc, q, n, low, span, recipHigh, recipLow)
}
