package main

import "fmt"

// The kernels between float32 and uint8 have the signatures, the blocks and
// the reasons to stop of those for amd64, so that one set of wrappers serves
// both. Conversions to integers saturate here, and make zero of NaN: they
// need no lower and upper limits.

// some are count registers from first on.
func some(first, count int) (v []vec) {
	for i := range count {
		v = append(v, vec(first+i))
	}
	return v
}

// loadAll loads vectors from p on.
func (k *kernel) loadAll(p reg, v []vec) {
	for i := 0; i < len(v); i += 2 {
		k.loadPair(p, 16*i, v[i], v[i+1])
	}
}

func (k *kernel) storeAll(p reg, v []vec) {
	for i := 0; i < len(v); i += 2 {
		k.storePair(p, 16*i, v[i], v[i+1])
	}
}

func minmaxKernels(f *file) {
	f.minmaxBounds()
	f.minmaxQuantize()
	f.quantizeFast(false)
	value, begin := minmaxValue()
	f.dequantize("low float32, span float32, recipHigh float32, recipLow float32", begin, value, false)
	f.dequantize("low float32, span float32, recipHigh float32, recipLow float32", begin, value, true)
}

// minmaxBounds compares and chooses: the instructions for minimum and maximum
// would make a NaN of a signalling NaN.
func (f *file) minmaxBounds() {
	k := f.kernel("boundsNEON", "elements", "src *float32, n int, low float32, high float32", "least float32, most float32",
		"boundsNEON moves the bounds apart until n elements, a multiple of 32, lie between them.")
	src, n := k.load("src", 0), k.load("n", 1)
	const chains = 4
	low, high := some(0, chains), some(4, chains)
	for i := range chains {
		k.broadcast("low", low[i])
		k.broadcast("high", high[i])
	}
	k.loop("block", n, 32, 32, func() {
		x := some(16, 8)
		k.loadAll(src, x)
		k.advance(128, src)
		for first := 0; first < len(x); first += chains {
			v := x[first : first+chains]
			below, above := some(8, chains), some(12, chains)
			for i := range v {
				k.op("fcmgt", s4, below[i], low[i], v[i])
			}
			for i := range v {
				k.op("fcmgt", s4, above[i], v[i], high[i])
			}
			for i := range v {
				k.op("bit", s4, low[i], v[i], below[i])
			}
			for i := range v {
				k.op("bit", s4, high[i], v[i], above[i])
			}
		}
	})
	fold := func(v []vec, name string) vec { // no NaN is left
		k.op(name, s4, v[0], v[0], v[1])
		k.op(name, s4, v[2], v[2], v[3])
		k.op(name, s4, v[0], v[0], v[2])
		k.reduceLanes(name+"v", v[0], v[0])
		return v[0]
	}
	k.storeResult("least", fold(low, "fminnm"))
	k.storeResult("most", fold(high, "fmaxnm"))
}

// bytes makes 16 bytes in v[0] of 16 integers of 32 bits in four vectors.
func (k *kernel) bytes(v []vec) {
	k.narrow("sqxtn", s4, v[0], v[0], false)
	k.narrow("sqxtn", s4, v[2], v[2], false)
	k.narrow("sqxtn", s4, v[0], v[1], true)
	k.narrow("sqxtn", s4, v[2], v[3], true)
	k.narrow("sqxtun", h8, v[0], v[0], false)
	k.narrow("sqxtun", h8, v[0], v[2], true)
}

// float64Bytes makes 16 bytes of the 16 float32 in x, through value, in
// float64. x is V16 to V19; V0 to V7 are used.
func (k *kernel) float64Bytes(x []vec, values ...func(v vec)) vec {
	wide := some(0, 8)
	for i, v := range x {
		k.widen("fcvtl", d2, wide[2*i], v, false)
		k.widen("fcvtl", d2, wide[2*i+1], v, true)
	}
	for _, value := range values {
		for _, v := range wide {
			value(v)
		}
	}
	for _, v := range wide {
		k.convert("fcvtzs", d2, v, v)
	}
	for i := range x {
		k.narrow("sqxtn", d2, wide[2*i], wide[2*i], false)
	}
	for i := range x {
		k.narrow("sqxtn", d2, wide[2*i], wide[2*i+1], true)
	}
	v := []vec{wide[0], wide[2], wide[4], wide[6]}
	k.bytes(v)
	return v[0]
}

func (f *file) minmaxQuantize() {
	k := f.kernel("quantizeNEON", "elements", "dst *byte, src *float32, n int, low float64, k float64, top float64", "",
		"quantizeNEON sets dst to (src-low)*k*top, cut to [0, 255]; n is a multiple of 16.")
	dst, src, n := k.load("dst", 0), k.load("src", 1), k.load("n", 2)
	low, factor, top := k.broadcast("low", 24), k.broadcast("k", 25), k.broadcast("top", 26)
	k.loop("block", n, 16, 16, func() {
		x := some(16, 4)
		k.loadAll(src, x)
		k.advance(64, src)
		q := k.float64Bytes(x,
			func(v vec) { k.op("fsub", d2, v, v, low) },
			func(v vec) { k.op("fmul", d2, v, v, factor) },
			func(v vec) { k.op("fmul", d2, v, v, top) })
		k.storeOne(dst, q)
	})
}

// quantizeFast computes in float32 what float64 would give, once a little too
// low and once a little too high, and stops where that makes a difference.
func (f *file) quantizeFast(stopAtNaN bool) {
	doc := "quantizeFastNEON sets dst to (src-low)*k, cut to [0, 255]; n is a multiple of 32. It stops before a block of 32 " +
		"elements in which one is not the same with below and above added, and returns how many elements are left."
	if stopAtNaN {
		doc += " It also stops before a NaN."
	}
	k := f.kernel("quantizeFastNEON", "elements", "dst *byte, src *float32, n int, low float32, k float32, below float32, above float32", "rest int", doc)
	dst, src, n := k.load("dst", 0), k.load("src", 1), k.load("n", 2)
	low, factor, below, above := k.broadcast("low", 28), k.broadcast("k", 29), k.broadcast("below", 30), k.broadcast("above", 31)
	const nan, differ = vec(24), vec(25)
	k.loop("block", n, 32, 32, func() {
		x, less, more := some(16, 8), some(0, 8), some(8, 8)
		k.loadAll(src, x)
		if stopAtNaN { // the maximum of a NaN and anything is one
			k.op("fmax", s4, nan, x[0], x[1])
			for _, v := range x[2:] {
				k.op("fmax", s4, nan, nan, v)
			}
		}
		for i := range x {
			k.op("fsub", s4, x[i], x[i], low)
		}
		for i := range x {
			k.move(less[i], below)
			k.move(more[i], above)
		}
		for i := range x {
			k.op("fmla", s4, less[i], x[i], factor)
			k.op("fmla", s4, more[i], x[i], factor)
		}
		for i := range x {
			k.convert("fcvtzs", s4, less[i], less[i])
			k.convert("fcvtzs", s4, more[i], more[i])
		}
		for _, v := range [][]vec{less[:4], less[4:], more[:4], more[4:]} {
			k.bytes(v)
		}
		k.op("eor", b16, differ, less[0], more[0])
		k.op("eor", b16, more[4], less[4], more[4])
		k.op("orr", b16, differ, differ, more[4])
		if stopAtNaN {
			k.op("fcmeq", s4, nan, nan, nan)
			k.op("orn", b16, differ, differ, nan)
		}
		k.reduceLanes("umaxv", differ, differ)
		k.ins("FMOVS F%d, %v", int(differ), scratch)
		k.ins("CBNZW %v, blockleft", scratch)
		k.storePair(dst, 0, less[0], less[4])
		k.advance(32, dst)
		k.advance(128, src)
	})
	k.storeResult("rest", n)
}

// minmaxValue is low + (q/255)*span. The quotient, rounded to float32, is
// that of q times a reciprocal in two parts, whose sum it is (recipHigh, recipLow).
func minmaxValue() (value []func(k *kernel, r []vec), begin func(k *kernel)) {
	const low, span, recipHigh, recipLow = vec(28), vec(29), vec(30), vec(31)
	begin = func(k *kernel) {
		k.broadcast("low", low)
		k.broadcast("span", span)
		k.broadcast("recipHigh", recipHigh)
		k.broadcast("recipLow", recipLow)
	}
	return []func(k *kernel, r []vec){
		func(k *kernel, r []vec) { k.convert("ucvtf", s4, r[0], r[0]) },
		func(k *kernel, r []vec) { k.op("fmul", s4, r[1], r[0], recipLow) },
		func(k *kernel, r []vec) { k.op("fmla", s4, r[1], r[0], recipHigh) },
		func(k *kernel, r []vec) { k.op("fmul", s4, r[1], r[1], span) },
		func(k *kernel, r []vec) { k.op("fadd", s4, r[0], low, r[1]) },
	}, begin
}

func zeropointValue() (value []func(k *kernel, r []vec), begin func(k *kernel)) {
	const zero, scale = vec(28), vec(29)
	begin = func(k *kernel) {
		k.broadcast("zero", zero)
		k.broadcast("scale", scale)
	}
	return []func(k *kernel, r []vec){
		func(k *kernel, r []vec) { k.op("sub", s4, r[0], r[0], zero) },
		func(k *kernel, r []vec) { k.convert("scvtf", s4, r[0], r[0]) },
		func(k *kernel, r []vec) { k.op("fmul", s4, r[0], r[0], scale) },
	}, begin
}

// dequantize makes float32 of bytes: begin sets constants, and the steps of
// value turn a vector of 32 bit integers, r[0], into values; r[1] is free.
func (f *file) dequantize(params string, begin func(k *kernel), value []func(k *kernel, r []vec), add bool) {
	name, acc, what := "setValuesNEON", "", "the values of q"
	if add {
		name, acc, what = "addValuesNEON", "acc *float32, ", "acc and the values of q"
	}
	k := f.kernel(name, "elements", "dst *float32, "+acc+"q *byte, n int, "+params, "",
		fmt.Sprintf("%s sets dst to %s; n is a multiple of 16.", name, what))
	dst, q, n, from := k.load("dst", 0), k.load("q", 1), k.load("n", 2), reg(3)
	if add {
		k.load("acc", from)
	}
	begin(k)
	k.loop("block", n, 16, 16, func() {
		x := some(0, 4)
		k.loadOne(q, 8)
		k.extend(h8, 9, 8, true)
		k.extend(h8, 8, 8, false)
		k.extend(s4, x[3], 9, true)
		k.extend(s4, x[2], 9, false)
		k.extend(s4, x[1], 8, true)
		k.extend(s4, x[0], 8, false)
		var sets [][]vec
		for _, v := range x {
			sets = append(sets, []vec{v, v + 4})
		}
		old := some(16, 4)
		if add {
			k.loadAll(from, old)
			k.advance(64, from)
		}
		for _, step := range value {
			for _, r := range sets {
				step(k, r)
			}
		}
		if add {
			for i := range x {
				k.op("fadd", s4, x[i], old[i], x[i])
			}
		}
		k.storeAll(dst, x)
		k.advance(64, dst)
	})
}

func zeropointKernels(f *file) {
	f.zeropointSums("sumNEON", "src *float32, n int, sums *[16]float64",
		"sumNEON adds element i to sums[i%16]; n is a multiple of 16.", false)
	f.zeropointSums("squaresNEON", "src *float32, n int, mean float64, sums *[16]float64",
		"squaresNEON adds the square of element i minus mean to sums[i%16]; n is a multiple of 16.", true)
	f.zeropointQuantize()
	f.quantizeFast(true)
	value, begin := zeropointValue()
	f.dequantize("zero int32, scale float32", begin, value, false)
	f.dequantize("zero int32, scale float32", begin, value, true)
}

// zeropointSums rounds squares before they are added, as plain Go does.
func (f *file) zeropointSums(name, params, doc string, squared bool) {
	k := f.kernel(name, "elements", params, "", doc)
	src, n, at := k.load("src", 0), k.load("n", 1), k.load("sums", 2)
	const mean = vec(28)
	if squared {
		k.broadcast("mean", mean)
	}
	sums := some(0, 8)
	k.loadAll(at, sums)
	k.loop("block", n, 16, 16, func() {
		x, wide := some(16, 4), some(8, 8)
		k.loadAll(src, x)
		k.advance(64, src)
		for i, v := range x {
			k.widen("fcvtl", d2, wide[2*i], v, false)
			k.widen("fcvtl", d2, wide[2*i+1], v, true)
		}
		if squared {
			for _, v := range wide {
				k.op("fsub", d2, v, v, mean)
			}
			for _, v := range wide {
				k.op("fmul", d2, v, v, v)
			}
		}
		for i := range sums {
			k.op("fadd", d2, sums[i], sums[i], wide[i])
		}
	})
	k.storeAll(at, sums)
}

// zeropointQuantize stops before a block with a NaN, for which the caller has
// a slow loop: NaN becomes the zero point, not 0.
func (f *file) zeropointQuantize() {
	k := f.kernel("quantizeNEON", "elements", "dst *byte, src *float32, n int, inv float64, base float64, half float64, top float64", "rest int",
		"quantizeNEON sets dst to src*inv + base + half, cut to [0, 255], top being 255; n is a multiple of 16. "+
			"It stops before a block of 16 elements that has a NaN, and returns how many elements are left.")
	dst, src, n := k.load("dst", 0), k.load("src", 1), k.load("n", 2)
	inv, base, half := k.broadcast("inv", 24), k.broadcast("base", 25), k.broadcast("half", 26)
	k.loop("block", n, 16, 16, func() {
		x, number := some(16, 4), some(20, 4)
		k.loadAll(src, x)
		for i := range x {
			k.op("fcmeq", s4, number[i], x[i], x[i])
		}
		k.op("and", b16, number[0], number[0], number[1])
		k.op("and", b16, number[2], number[2], number[3])
		k.op("and", b16, number[0], number[0], number[2])
		k.reduceLanes("uminv", number[0], number[0])
		k.ins("FMOVS F%d, %v", int(number[0]), scratch)
		k.ins("CBZW %v, blockleft", scratch)
		k.advance(64, src)
		q := k.float64Bytes(x,
			func(v vec) { k.op("fmul", d2, v, v, inv) },
			func(v vec) { k.op("fadd", d2, v, v, base) },
			func(v vec) { k.op("fadd", d2, v, v, half) })
		k.storeOne(dst, q)
	})
	k.storeResult("rest", n)
}
