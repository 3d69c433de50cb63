package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// instruction is one of three operands: (second source, first source, destination).
type instruction func(ops ...Op)

// lanewise are the kernels that are one instruction per vector. Where both
// operands are NaN an addition gives its first source, the local value; max
// and min give their second source unless the first one is beyond it, so the
// received value comes first there.
var lanewise = []struct {
	name   string
	first  string
	do     instruction
	widths []width
}{
	{"addFloat32", "a", VADDPS, both},
	{"mulFloat32", "a", VMULPS, both},
	{"maxFloat32", "b", VMAXPS, both},
	{"minFloat32", "b", VMINPS, both},
	{"addFloat64", "a", VADDPD, both},
	{"mulFloat64", "a", VMULPD, both},
	{"maxFloat64", "b", VMAXPD, both},
	{"minFloat64", "b", VMINPD, both},
	{"add8", "a", VPADDB, both},
	{"add16", "a", VPADDW, both},
	{"add32", "a", VPADDD, both},
	{"add64", "a", VPADDQ, both},
	{"mul16", "a", VPMULLW, both},
	{"mul32", "a", VPMULLD, both},
	{"mul64", "a", VPMULLQ, only512},
	{"maxUint8", "a", VPMAXUB, both},
	{"minUint8", "a", VPMINUB, both},
	{"maxInt8", "a", VPMAXSB, both},
	{"minInt8", "a", VPMINSB, both},
	{"maxUint16", "a", VPMAXUW, both},
	{"minUint16", "a", VPMINUW, both},
	{"maxInt16", "a", VPMAXSW, both},
	{"minInt16", "a", VPMINSW, both},
	{"maxUint32", "a", VPMAXUD, both},
	{"minUint32", "a", VPMINUD, both},
	{"maxInt32", "a", VPMAXSD, both},
	{"minInt32", "a", VPMINSD, both},
	{"maxUint64", "a", VPMAXUQ, only512},
	{"minUint64", "a", VPMINUQ, only512},
	{"maxInt64", "a", VPMAXSQ, only512},
	{"minInt64", "a", VPMINSQ, only512},
}

var (
	both    = []width{avx2, avx512}
	only512 = []width{avx512}
)

const (
	reduceSignature = "func(dst, a, b *byte, n int)"
	divideSignature = "func(dst *byte, n int, w %s)"
)

func reduceKernels() {
	for _, k := range lanewise {
		for _, w := range k.widths {
			reduceLanes(w, k.name+w.suffix, k.first, k.do)
		}
	}
	reduceHalves("addFloat16AVX2", float16Arithmetic(VADDPS))
	reduceHalves("mulFloat16AVX2", float16Arithmetic(VMULPS))
	reduceHalves("maxFloat16AVX2", float16Choice(false))
	reduceHalves("minFloat16AVX2", float16Choice(true))
	reduceHalves("addBFloat16AVX2", bfloat16Arithmetic(VADDPS))
	reduceHalves("mulBFloat16AVX2", bfloat16Arithmetic(VMULPS))
	reduceHalves("maxBFloat16AVX2", bfloat16Choice(VMAXPS))
	reduceHalves("minBFloat16AVX2", bfloat16Choice(VMINPS))

	scale("divFloat32AVX2", "float32", VDIVPS, float32s)
	scale("divFloat64AVX2", "float64", VDIVPD, float64s)
	scale("mulByFloat32AVX2", "float32", VMULPS, float32s)
	scale("mulByFloat64AVX2", "float64", VMULPD, float64s)
	divideFloat16()
	divideBFloat16()
}

func reduceLanes(w width, name, first string, do instruction) {
	function(name, reduceSignature, fmt.Sprintf("%s sets dst to a op b; n is a multiple of %d bytes.", name, w.bytes))
	dst, a, b := pointer("dst"), pointer("a"), pointer("b")
	n := count("n")
	x, y := a, b
	if first == "b" {
		x, y = b, a
	}
	step := func(vectors int) func() {
		return func() {
			var r [4]reg.VecVirtual
			for i := range vectors {
				r[i] = w.vector()
				w.load(x.Offset(i*w.bytes), r[i])
			}
			for i := range vectors {
				do(y.Offset(i*w.bytes), r[i], r[i])
			}
			for i := range vectors {
				w.store(r[i], dst.Offset(i*w.bytes))
			}
			advance(vectors*w.bytes, dst, a, b)
		}
	}
	loop("four", n, 4*w.bytes, step(4))
	loop("one", n, w.bytes, step(1))
	VZEROUPPER()
	RET()
}

// halves is the work on 16 elements of two bytes: begin prepares constants,
// the function it returns handles one vector.
type halves func() func(dst, a, b Mem)

func reduceHalves(name string, begin halves) {
	function(name, reduceSignature, name+" sets dst to a op b; n is a multiple of 32 bytes.")
	dst, a, b := pointer("dst"), pointer("a"), pointer("b")
	n := count("n")
	body := begin()
	loop("one", n, 32, func() {
		body(dst, a, b)
		advance(32, dst, a, b)
	})
	VZEROUPPER()
	RET()
}

// The conversions are exact one way and round to nearest even (immediate 0)
// the other way, whatever the control register says about subnormal numbers.
func float16Arithmetic(do instruction) halves {
	return func() func(dst, a, b Mem) {
		return func(dst, a, b Mem) {
			var r [2]reg.VecVirtual
			for i := range r {
				x, y := YMM(), YMM()
				VCVTPH2PS(a.Offset(16*i), x)
				VCVTPH2PS(b.Offset(16*i), y)
				do(y, x, x)
				r[i] = x
			}
			for i := range r {
				VCVTPS2PH(Imm(0), r[i], dst.Offset(16*i))
			}
		}
	}
}

// float16Choice compares values and chooses between patterns, so that
// signalling NaNs stay as they are.
func float16Choice(smaller bool) halves {
	const lessQuiet = 0x11
	return func() func(dst, a, b Mem) {
		return func(dst, a, b Mem) {
			var mask [2]reg.VecVirtual
			for i := range mask {
				x, y := YMM(), YMM()
				VCVTPH2PS(a.Offset(16*i), x)
				VCVTPH2PS(b.Offset(16*i), y)
				if smaller {
					x, y = y, x
				}
				VCMPPS(Imm(lessQuiet), y, x, x) // x < y
				mask[i] = x
			}
			v := YMM()
			VPACKSSDW(mask[1], mask[0], mask[0])
			VPERMQ(Imm(0xd8), mask[0], mask[0])
			VMOVDQU(a, v)
			VPBLENDVB(mask[0], b, v, v)
			VMOVDQU(v, dst)
		}
	}
}

// bfloat16s are the elements of a vector at even and odd places as float32.
func bfloat16s(m Mem, upper Op) (even, odd reg.VecVirtual) {
	even, odd = YMM(), YMM()
	VMOVDQU(m, odd)
	VPSLLD(Imm(16), odd, even)
	VPAND(upper, odd, odd)
	return even, odd
}

func bfloat16Arithmetic(do instruction) halves {
	return func() func(dst, a, b Mem) {
		upper, round := words(0xffff0000), rounder()
		return func(dst, a, b Mem) {
			a0, a1 := bfloat16s(a, upper)
			b0, b1 := bfloat16s(b, upper)
			do(b0, a0, a0)
			do(b1, a1, a1)
			joinBFloat16(round(a0), round(a1), dst)
		}
	}
}

func bfloat16Choice(do instruction) halves {
	return func() func(dst, a, b Mem) {
		upper := words(0xffff0000)
		return func(dst, a, b Mem) {
			a0, a1 := bfloat16s(a, upper)
			b0, b1 := bfloat16s(b, upper)
			do(a0, b0, a0)
			do(a1, b1, a1)
			joinBFloat16(a0, a1, dst)
		}
	}
}

// joinBFloat16 stores the upper halves of the lanes.
func joinBFloat16(even, odd reg.VecVirtual, dst Mem) {
	VPSRLD(Imm(16), even, even)
	VPBLENDW(Imm(0xaa), odd, even, even)
	VMOVDQU(even, dst)
}

// rounder rounds float32 to what the upper half of the lane holds, to nearest
// even; a NaN is made quiet and keeps the upper part of its payload.
func rounder() func(x reg.VecVirtual) reg.VecVirtual {
	const unordered = 3
	one, bias, quiet := words(1), words(0x7fff), words(0x00400000)
	return func(x reg.VecVirtual) reg.VecVirtual {
		r, nan, mask := YMM(), YMM(), YMM()
		VPSRLD(Imm(16), x, r)
		VPAND(one, r, r)
		VPADDD(bias, r, r)
		VPADDD(x, r, r)
		VPOR(quiet, x, nan)
		VCMPPS(Imm(unordered), x, x, mask)
		VBLENDVPS(mask, nan, r, r)
		return r
	}
}

// scale is dst := dst op w, for division and for multiplication with a reciprocal.
func scale(name, typ string, do instruction, broadcast func(string) reg.VecVirtual) {
	function(name, fmt.Sprintf(divideSignature, typ), name+" sets dst to dst op w; n is a multiple of 32 bytes.")
	dst, n, w := pointer("dst"), count("n"), broadcast("w")
	loop("one", n, 32, func() {
		x := YMM()
		VMOVUPS(dst, x)
		do(w, x, x)
		VMOVUPS(x, dst)
		advance(32, dst)
	})
	VZEROUPPER()
	RET()
}

func divideFloat16() {
	const name = "divFloat16AVX2"
	function(name, fmt.Sprintf(divideSignature, "float32"), name+" divides by w; n is a multiple of 32 bytes.")
	dst, n, w := pointer("dst"), count("n"), float32s("w")
	loop("one", n, 32, func() {
		x, y := YMM(), YMM()
		VCVTPH2PS(dst, x)
		VCVTPH2PS(dst.Offset(16), y)
		VDIVPS(w, x, x)
		VDIVPS(w, y, y)
		VCVTPS2PH(Imm(0), x, dst)
		VCVTPS2PH(Imm(0), y, dst.Offset(16))
		advance(32, dst)
	})
	VZEROUPPER()
	RET()
}

func divideBFloat16() {
	const name = "divBFloat16AVX2"
	function(name, fmt.Sprintf(divideSignature, "float32"), name+" divides by w; n is a multiple of 32 bytes.")
	dst, n, w := pointer("dst"), count("n"), float32s("w")
	upper, round := words(0xffff0000), rounder()
	loop("one", n, 32, func() {
		x, y := bfloat16s(dst, upper)
		VDIVPS(w, x, x)
		VDIVPS(w, y, y)
		joinBFloat16(round(x), round(y), dst)
		advance(32, dst)
	})
	VZEROUPPER()
	RET()
}
