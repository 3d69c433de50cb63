package main

import (
	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func minmaxKernels() {
	minmaxBounds()
	minmaxQuantize()
	quantizeFast()
	dequantize("set", "func(dst *float32, q *byte, n int, low, span, recipHigh, recipLow float32)", minmaxValue, false)
	dequantize("add", "func(dst, acc *float32, q *byte, n int, low, span, recipHigh, recipLow float32)", minmaxValue, true)
}

// minmaxBounds keeps the bound where an element is NaN, the second source.
func minmaxBounds() {
	function("boundsAVX2", "func(src *float32, n int, low, high float32) (least, most float32)",
		"boundsAVX2 moves the bounds apart until n elements, a multiple of 32, lie between them.")
	src, n := pointer("src"), count("n")
	var low, high [4]reg.VecVirtual
	for i := range low {
		low[i], high[i] = float32s("low"), float32s("high")
	}
	loop("block", n, 32, func() {
		for i := range low {
			x := YMM()
			VMOVUPS(src.Offset(32*i), x)
			VMINPS(low[i], x, low[i])
			VMAXPS(high[i], x, high[i])
		}
		advance(128, src)
	})
	fold := func(v [4]reg.VecVirtual, do instruction) reg.VecVirtual {
		do(v[1], v[0], v[0])
		do(v[3], v[2], v[2])
		do(v[2], v[0], v[0])
		x, y := v[0].AsX(), XMM()
		VEXTRACTF128(Imm(1), v[0], y)
		do(y, x, x)
		VPERMILPS(Imm(0x4e), x, y)
		do(y, x, x)
		VPERMILPS(Imm(0xb1), x, y)
		do(y, x, x)
		return v[0]
	}
	l, h := fold(low, VMINPS), fold(high, VMAXPS)
	VZEROUPPER() // before the scalar stores, which keep the upper halves otherwise
	Store(l.AsX(), ReturnIndex(0))
	Store(h.AsX(), ReturnIndex(1))
	RET()
}

// float64Bytes converts 16 float32 at src through value, in float64, and
// stores them as bytes. value leaves out the lower limit: too small numbers
// and NaN become the smallest int32, and the packing makes them 0.
func float64Bytes(dst, src Mem, value func(x reg.VecVirtual)) {
	var r [4]reg.VecVirtual
	for i := range r {
		x := YMM()
		VCVTPS2PD(src.Offset(16*i), x)
		value(x)
		r[i] = XMM()
		VCVTTPD2DQY(x, r[i])
	}
	VPACKSSDW(r[1], r[0], r[0])
	VPACKSSDW(r[3], r[2], r[2])
	VPACKUSWB(r[2], r[0], r[0])
	VMOVDQU(r[0], dst)
}

func minmaxQuantize() {
	function("quantizeAVX2", "func(dst *byte, src *float32, n int, low, k, top float64)",
		"quantizeAVX2 sets dst to (src-low)*k*top, cut to [0, top], top being 255; n is a multiple of 16.")
	dst, src, n := pointer("dst"), pointer("src"), count("n")
	low, k, top := float64s("low"), float64s("k"), float64s("top")
	loop("block", n, 16, func() {
		float64Bytes(dst, src, func(x reg.VecVirtual) {
			VSUBPD(low, x, x)
			VMULPD(k, x, x)
			VMULPD(top, x, x)
			VMINPD(x, top, x)
		})
		advance(16, dst)
		advance(64, src)
	})
	VZEROUPPER()
	RET()
}

// quantizeFast computes in float32 what float64 would give, once a little
// too low and once a little too high, and stops where that makes a difference.
// It also stops at numbers below zero and at what no int32 holds.
func quantizeFast() {
	function("quantizeFastAVX2", "func(dst *byte, src *float32, n int, low, k, below, above float32) (rest int)",
		"quantizeFastAVX2 sets dst to (src-low)*k, cut to [0, 255]; n is a multiple of 32. It stops before a block of 32 "+
			"elements in which one is not the same with below and above added, and returns how many elements are left.")
	dst, src, n := pointer("dst"), pointer("src"), count("n")
	low, k, below, above := float32s("low"), float32s("k"), float32s("below"), float32s("above")
	order := YMM()
	indices := GLOBL("order", attr.RODATA|attr.NOPTR)
	for i, v := range []uint32{0, 4, 1, 5, 2, 6, 3, 7} {
		DATA(4*i, U32(v))
	}
	VMOVDQU(indices, order)
	loop("block", n, 32, func() {
		var r [4]reg.VecVirtual
		differ, signs := YMM(), YMM()
		for i := range r {
			x, y := YMM(), YMM()
			VMOVUPS(src.Offset(32*i), x)
			VSUBPS(low, x, x)
			VMOVAPS(x, y)
			VFMADD213PS(below, k, x)
			VFMADD213PS(above, k, y)
			VCVTTPS2DQ(x, x)
			VCVTTPS2DQ(y, y)
			r[i] = x
			if i == 0 {
				VPXOR(x, y, differ)
				VMOVDQA(x, signs)
				continue
			}
			VPXOR(x, y, y)
			VPOR(y, differ, differ)
			VPOR(x, signs, signs)
		}
		VPSRLD(Imm(31), signs, signs)
		VPOR(signs, differ, differ)
		VPTEST(differ, differ)
		JNE(LabelRef("blockdone"))
		VPACKSSDW(r[1], r[0], r[0])
		VPACKSSDW(r[3], r[2], r[2])
		VPACKUSWB(r[2], r[0], r[0])
		VPERMD(r[0], order, r[0])
		VMOVDQU(r[0], dst)
		advance(32, dst)
		advance(128, src)
	})
	Store(n, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// minmaxValue is low + (q/255)*span. The quotient, rounded to float32, is
// that of q times a reciprocal in two parts, whose sum it is (recipHigh, recipLow).
func minmaxValue() func(x reg.VecVirtual) {
	low, span, recipHigh, recipLow := float32s("low"), float32s("span"), float32s("recipHigh"), float32s("recipLow")
	return func(x reg.VecVirtual) {
		y := YMM()
		VCVTDQ2PS(x, x)
		VMULPS(recipLow, x, y)
		VFMADD231PS(recipHigh, x, y)
		VMULPS(span, y, y)
		VADDPS(y, low, x)
	}
}

// dequantize makes float32 of bytes: begin prepares constants, the function it
// returns turns a vector of 32 bit integers into values.
func dequantize(name, signature string, begin func() func(reg.VecVirtual), add bool) {
	doc := name + "ValuesAVX2 sets dst to the values of q; n is a multiple of 16."
	if add {
		doc = name + "ValuesAVX2 sets dst to acc and the values of q; n is a multiple of 16."
	}
	function(name+"ValuesAVX2", signature, doc)
	dst, q, n := pointer("dst"), pointer("q"), count("n")
	acc := dst
	if add {
		acc = pointer("acc")
	}
	value := begin()
	loop("block", n, 16, func() {
		for i := range 2 {
			x := YMM()
			VPMOVZXBD(q.Offset(8*i), x)
			value(x)
			if add {
				y := YMM()
				VMOVUPS(acc.Offset(32*i), y)
				VADDPS(x, y, x)
			}
			VMOVUPS(x, dst.Offset(32*i))
		}
		advance(64, dst)
		if add {
			advance(64, acc)
		}
		advance(16, q)
	})
	VZEROUPPER()
	RET()
}

func zeropointKernels() {
	zeropointSum()
	zeropointSquares()
	zeropointQuantize()
	quantizeFast()
	dequantize("set", "func(dst *float32, q *byte, n int, zero int32, scale float32)", zeropointValue, false)
	dequantize("add", "func(dst, acc *float32, q *byte, n int, zero int32, scale float32)", zeropointValue, true)
}

func zeropointValue() func(x reg.VecVirtual) {
	zero, scale := float32s("zero"), float32s("scale") // a pattern is a pattern
	return func(x reg.VecVirtual) {
		VPSUBD(zero, x, x)
		VCVTDQ2PS(x, x)
		VMULPS(scale, x, x)
	}
}

func zeropointSum() {
	function("sumAVX2", "func(src *float32, n int, sums *[16]float64)",
		"sumAVX2 adds element i to sums[i%16]; n is a multiple of 16.")
	src, n, sums := pointer("src"), count("n"), pointer("sums")
	s := loadSums(sums)
	loop("block", n, 16, func() {
		for i := range s {
			x := YMM()
			VCVTPS2PD(src.Offset(16*i), x)
			VADDPD(x, s[i], s[i])
		}
		advance(64, src)
	})
	storeSums(s, sums)
}

func zeropointSquares() {
	function("squaresAVX2", "func(src *float32, n int, mean float64, sums *[16]float64)",
		"squaresAVX2 adds the square of element i minus mean to sums[i%16]; n is a multiple of 16.")
	src, n, mean, sums := pointer("src"), count("n"), float64s("mean"), pointer("sums")
	s := loadSums(sums)
	loop("block", n, 16, func() {
		for i := range s {
			x := YMM()
			VCVTPS2PD(src.Offset(16*i), x)
			VSUBPD(mean, x, x)
			VMULPD(x, x, x)
			VADDPD(x, s[i], s[i])
		}
		advance(64, src)
	})
	storeSums(s, sums)
}

func loadSums(sums Mem) (s [4]reg.VecVirtual) {
	for i := range s {
		s[i] = YMM()
		VMOVUPD(sums.Offset(32*i), s[i])
	}
	return s
}

func storeSums(s [4]reg.VecVirtual, sums Mem) {
	for i := range s {
		VMOVUPD(s[i], sums.Offset(32*i))
	}
	VZEROUPPER()
	RET()
}

// zeropointQuantize stops before a block with a NaN, for which the caller has
// a slow loop: NaN becomes the zero point, not 0.
func zeropointQuantize() {
	function("quantizeAVX2", "func(dst *byte, src *float32, n int, inv, base, half, top float64) (rest int)",
		"quantizeAVX2 sets dst to src*inv + base + half, cut to [0, top], top being 255; n is a multiple of 16. "+
			"It stops before a block of 16 elements that has a NaN, and returns how many elements are left.")
	dst, src, n := pointer("dst"), pointer("src"), count("n")
	inv, base, half, top := float64s("inv"), float64s("base"), float64s("half"), float64s("top")
	const unordered = 3
	bits := GP32()
	loop("block", n, 16, func() {
		x, y := YMM(), YMM()
		VMOVUPS(src, x)
		VCMPPS(Imm(unordered), src.Offset(32), x, y)
		VMOVMSKPS(y, bits)
		TESTL(bits, bits)
		JNE(LabelRef("blockdone"))
		float64Bytes(dst, src, func(x reg.VecVirtual) {
			VMULPD(inv, x, x)
			VADDPD(base, x, x)
			VADDPD(half, x, x)
			VMINPD(x, top, x)
		})
		advance(16, dst)
		advance(64, src)
	})
	Store(n, ReturnIndex(0))
	VZEROUPPER()
	RET()
}
