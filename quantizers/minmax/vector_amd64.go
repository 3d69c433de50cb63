//go:build amd64 && !noasm

package minmax

import "golang.org/x/sys/cpu"

// byVector is a variable for the tests, which compare both ways.
var byVector = cpu.X86.HasAVX2 && cpu.X86.HasFMA

// What the wrappers call; the compiler leaves nothing of it.

func boundsKernel(src *float32, n int, low, high float32) (least, most float32) {
	return boundsAVX2(src, n, low, high)
}

func quantizeKernel(dst *byte, src *float32, n int, low, k, top float64) {
	quantizeAVX2(dst, src, n, low, k, top)
}

func quantizeFastKernel(dst *byte, src *float32, n int, low, k, below, above float32) (rest int) {
	return quantizeFastAVX2(dst, src, n, low, k, below, above)
}

func setValuesKernel(dst *float32, q *byte, n int, low, span, recipHigh, recipLow float32) {
	setValuesAVX2(dst, q, n, low, span, recipHigh, recipLow)
}

func addValuesKernel(dst, acc *float32, q *byte, n int, low, span, recipHigh, recipLow float32) {
	addValuesAVX2(dst, acc, q, n, low, span, recipHigh, recipLow)
}
