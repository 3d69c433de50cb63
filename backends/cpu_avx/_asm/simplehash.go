package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// simplehashKernels mixes whole rows of 256 vecs into 256 accumulators, eight
// at a time. Two unpackings turn the vecs into words of eight accumulators, in
// the order 0 2 4 6 1 3 5 7; the accumulators are kept in that order and the
// caller puts them right at the end.
func simplehashKernels() {
	function("mixRowsAVX2", "func(acc *[256]uint32, b *byte, rows int)",
		"mixRowsAVX2 takes rows of 4096 bytes into the accumulators, each eight of which are in the order 0 2 4 6 1 3 5 7.")
	acc, b, rows := pointer("acc"), pointer("b"), count("rows")
	add, mul := words(0x9e3779b1), words(0x85ebca6b)
	group := GP64()
	loop("row", rows, 1, func() {
		MOVQ(U32(0), group)
		Label("group")
		var v [4]reg.VecVirtual
		for i := range v {
			v[i] = YMM()
			VMOVDQU(b.Offset(32*i), v[i])
		}
		// v[i] holds vecs 2i and 2i+1, one in each half.
		lo01, hi01, lo23, hi23 := YMM(), YMM(), YMM(), YMM()
		VPUNPCKLDQ(v[1], v[0], lo01) // w0 w0 w1 w1 of vecs 0, 2
		VPUNPCKHDQ(v[1], v[0], hi01) // w2 w2 w3 w3
		VPUNPCKLDQ(v[3], v[2], lo23)
		VPUNPCKHDQ(v[3], v[2], hi23)
		w := [4]reg.VecVirtual{YMM(), YMM(), YMM(), YMM()}
		VPUNPCKLQDQ(lo23, lo01, w[0])
		VPUNPCKHQDQ(lo23, lo01, w[1])
		VPUNPCKLQDQ(hi23, hi01, w[2])
		VPUNPCKHQDQ(hi23, hi01, w[3])
		at := Mem{Base: acc.Base, Index: group, Scale: 1}
		a := YMM()
		VMOVDQU(at, a)
		for i := range w {
			left := YMM()
			VPADDD(add, w[i], w[i])
			VPXOR(w[i], a, a)
			VPSLLD(Imm(7), a, left)
			VPSRLD(Imm(25), a, a)
			VPOR(left, a, a)
			VPMULLD(mul, a, a)
		}
		VMOVDQU(a, at)
		advance(128, b)
		ADDQ(Imm(32), group)
		CMPQ(group, U32(1024))
		JNE(LabelRef("group"))
	})
	VZEROUPPER()
	RET()
}
