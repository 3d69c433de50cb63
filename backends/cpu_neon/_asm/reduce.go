package main

import "fmt"

// step is one instruction, or a few, on one vector of each operand: r[0] is
// the local value and becomes the result, r[1] the received one, the others
// are free. Steps are written for several vectors in turn, since most do not
// wait for one another.
type step func(k *kernel, r []vec)

// lanes is the work of a kernel on one vector.
type lanes struct {
	uses  int // registers, operands included
	steps []step
	begin func(k *kernel) // sets constants, in registers from V24 up
}

const (
	reduceParams = "dst *byte, a *byte, b *byte, n int"
	divideParams = "dst *byte, n int, w %s"
)

func reduceKernels(f *file) {
	for _, t := range []struct {
		name string
		s    shape
	}{{"Float32", s4}, {"Float64", d2}} {
		f.reduce("add"+t.name+"NEON", t.s, one("fadd", t.s), 4)
		f.reduce("mul"+t.name+"NEON", t.s, one("fmul", t.s), 4)
		f.reduce("max"+t.name+"NEON", t.s, choice("fcmgt", t.s, false), 4)
		f.reduce("min"+t.name+"NEON", t.s, choice("fcmgt", t.s, true), 4)
	}
	for _, s := range []shape{b16, h8, s4, d2} {
		f.reduce(fmt.Sprintf("add%dNEON", s.bits), s, one("add", s), 4)
		if s == d2 {
			break
		}
		f.reduce(fmt.Sprintf("mul%dNEON", s.bits), s, one("mul", s), 4)
		for _, name := range []string{"max", "min"} {
			f.reduce(fmt.Sprintf("%sUint%dNEON", name, s.bits), s, one("u"+name, s), 4)
			f.reduce(fmt.Sprintf("%sInt%dNEON", name, s.bits), s, one("s"+name, s), 4)
		}
	}
	f.multiply64()
	f.reduce("maxUint64NEON", d2, choice("cmhi", d2, false), 4)
	f.reduce("maxInt64NEON", d2, choice("cmgt", d2, false), 4)
	f.reduce("minUint64NEON", d2, choice("cmhi", d2, true), 4)
	f.reduce("minInt64NEON", d2, choice("cmgt", d2, true), 4)
	for _, h := range []sixteen{float16, bfloat16} {
		f.reduce("add"+h.name+"NEON", h8, h.arithmetic("fadd"), 2)
		f.reduce("mul"+h.name+"NEON", h8, h.arithmetic("fmul"), 2)
		f.reduce("max"+h.name+"NEON", h8, h.choice(false), 2)
		f.reduce("min"+h.name+"NEON", h8, h.choice(true), 2)
	}
	f.scale("divFloat32NEON", "float32", s4, one2("fdiv", s4))
	f.scale("divFloat64NEON", "float64", d2, one2("fdiv", d2))
	f.scale("mulByFloat32NEON", "float32", s4, one2("fmul", s4))
	f.scale("mulByFloat64NEON", "float64", d2, one2("fmul", d2))
	f.scale("divFloat16NEON", "float32", h8, float16.divide())
	f.scale("divBFloat16NEON", "float32", h8, bfloat16.divide())
}

// reduce writes dst := a op b: vectors at a time, then one at a time.
func (f *file) reduce(name string, s shape, l lanes, vectors int) {
	k := f.kernel(name, "elements", reduceParams, "", name+" sets dst to a op b; n is a multiple of 16 bytes.")
	dst, a, b, n := k.load("dst", 0), k.load("a", 1), k.load("b", 2), k.load("n", 3)
	if l.begin != nil {
		l.begin(k)
	}
	sets := l.registers(vectors)
	k.loop("many", n, 16*vectors, vectors*s.lanes(), func() {
		for i := 0; i < vectors; i += 2 {
			k.loadPair(a, 16*i, sets[i][0], sets[i+1][0])
			k.loadPair(b, 16*i, sets[i][1], sets[i+1][1])
		}
		k.advance(16*vectors, a, b)
		l.write(k, sets)
		for i := 0; i < vectors; i += 2 {
			k.storePair(dst, 16*i, sets[i][0], sets[i+1][0])
		}
		k.advance(16*vectors, dst)
	})
	k.loop("one", n, 16, s.lanes(), func() {
		k.loadOne(a, sets[0][0])
		k.loadOne(b, sets[0][1])
		l.write(k, sets[:1])
		k.storeOne(dst, sets[0][0])
	})
}

// divisor is the register of the argument w.
const divisor = vec(31)

// scale writes dst := dst op w.
func (f *file) scale(name, typ string, s shape, l lanes) {
	const vectors = 2
	k := f.kernel(name, "elements", fmt.Sprintf(divideParams, typ), "", name+" sets dst to dst op w; n is a multiple of 16 bytes.")
	dst, n := k.load("dst", 0), k.load("n", 1)
	k.broadcast("w", divisor)
	if l.begin != nil {
		l.begin(k)
	}
	sets := l.registers(vectors)
	k.loop("many", n, 16*vectors, vectors*s.lanes(), func() {
		k.loadPair(dst, 0, sets[0][0], sets[1][0])
		l.write(k, sets)
		k.storePair(dst, 0, sets[0][0], sets[1][0])
		k.advance(16*vectors, dst)
	})
	k.loop("one", n, 16, s.lanes(), func() {
		k.ins("FMOVQ (%v), F%d", dst, int(sets[0][0]))
		l.write(k, sets[:1])
		k.storeOne(dst, sets[0][0])
	})
}

// registers are those of each of some vectors.
func (l lanes) registers(vectors int) (sets [][]vec) {
	for i := range vectors {
		var r []vec
		for j := range l.uses {
			r = append(r, vec(i*l.uses+j))
		}
		sets = append(sets, r)
	}
	return sets
}

func (l lanes) write(k *kernel, sets [][]vec) {
	for _, s := range l.steps {
		for _, r := range sets {
			s(k, r)
		}
	}
}

// one is a single instruction. Of two quiet NaNs, or two signalling ones, an
// addition or product gives its first source, the local value.
func one(name string, s shape) lanes {
	return lanes{uses: 2, steps: []step{func(k *kernel, r []vec) { k.op(name, s, r[0], r[0], r[1]) }}}
}

// one2 is a single instruction whose second source is the divisor.
func one2(name string, s shape) lanes {
	return lanes{uses: 1, steps: []step{func(k *kernel, r []vec) { k.op(name, s, r[0], r[0], divisor) }}}
}

// choice keeps the local value unless the received one is beyond it, so that
// no pattern changes. The instructions for maximum and minimum would make a
// NaN of every NaN and order the zeros.
func choice(greater string, s shape, smaller bool) lanes {
	return lanes{uses: 3, steps: []step{
		func(k *kernel, r []vec) { beyond(k, greater, s, r[2], r[0], r[1], smaller) },
		func(k *kernel, r []vec) { k.op("bit", s, r[0], r[1], r[2]) },
	}}
}

// beyond sets the lanes of mask where b is larger, or smaller, than a.
func beyond(k *kernel, greater string, s shape, mask, a, b vec, smaller bool) {
	if smaller {
		a, b = b, a
	}
	k.op(greater, s, mask, b, a)
}

// sixteen is a float type of 16 bits, computed in float32.
type sixteen struct {
	name  string
	widen string
	begin func(k *kernel)
	join  []step // makes r[0] of r[0], the float32 of the lower half, and r[2], of the upper half; V1, V3 to V7 of a set are free
}

// The conversions of float16 are exact one way and round to nearest even the
// other way; NaNs become quiet and keep what fits of their payload.
var float16 = sixteen{name: "Float16", widen: "fcvtl", join: []step{
	func(k *kernel, r []vec) { k.narrow("fcvtn", s4, r[0], r[0], false) },
	func(k *kernel, r []vec) { k.narrow("fcvtn", s4, r[0], r[2], true) },
}}

const (
	lowest = vec(24 + iota) // the lowest bit that a bfloat16 keeps
	bias                    // just below half of it
	quiet                   // the bit that makes a NaN quiet
)

// A bfloat16 is the upper half of a float32. Half a step less one bit, and one
// more where the lowest kept bit is set, rounds to nearest even; a NaN is made
// quiet instead.
var bfloat16 = sixteen{
	name: "BFloat16", widen: "shll",
	begin: func(k *kernel) {
		k.words(0x00010000, lowest)
		k.words(0x7fff, bias)
		k.words(0x00400000, quiet)
	},
	join: []step{
		func(k *kernel, r []vec) { k.op("cmtst", s4, r[1], r[0], lowest) },
		func(k *kernel, r []vec) { k.op("cmtst", s4, r[3], r[2], lowest) },
		func(k *kernel, r []vec) { k.op("fcmeq", s4, r[4], r[0], r[0]) },
		func(k *kernel, r []vec) { k.op("fcmeq", s4, r[5], r[2], r[2]) },
		func(k *kernel, r []vec) { k.op("sub", s4, r[1], bias, r[1]) },
		func(k *kernel, r []vec) { k.op("sub", s4, r[3], bias, r[3]) },
		func(k *kernel, r []vec) { k.op("orr", s4, r[6], r[0], quiet) },
		func(k *kernel, r []vec) { k.op("orr", s4, r[7], r[2], quiet) },
		func(k *kernel, r []vec) { k.op("add", s4, r[1], r[1], r[0]) },
		func(k *kernel, r []vec) { k.op("add", s4, r[3], r[3], r[2]) },
		func(k *kernel, r []vec) { k.op("bsl", s4, r[4], r[1], r[6]) },
		func(k *kernel, r []vec) { k.op("bsl", s4, r[5], r[3], r[7]) },
		func(k *kernel, r []vec) { k.zip("uzp2", h8, r[0], r[4], r[5]) },
	},
}

func (h sixteen) arithmetic(name string) lanes {
	steps := []step{
		func(k *kernel, r []vec) { k.widen(h.widen, s4, r[2], r[0], true) },
		func(k *kernel, r []vec) { k.widen(h.widen, s4, r[3], r[1], true) },
		func(k *kernel, r []vec) { k.widen(h.widen, s4, r[0], r[0], false) },
		func(k *kernel, r []vec) { k.widen(h.widen, s4, r[1], r[1], false) },
		func(k *kernel, r []vec) { k.op(name, s4, r[2], r[2], r[3]) },
		func(k *kernel, r []vec) { k.op(name, s4, r[0], r[0], r[1]) },
	}
	return lanes{uses: 8, steps: append(steps, h.join...), begin: h.begin}
}

func (h sixteen) divide() lanes {
	steps := []step{
		func(k *kernel, r []vec) { k.widen(h.widen, s4, r[2], r[0], true) },
		func(k *kernel, r []vec) { k.widen(h.widen, s4, r[0], r[0], false) },
		func(k *kernel, r []vec) { k.op("fdiv", s4, r[2], r[2], divisor) },
		func(k *kernel, r []vec) { k.op("fdiv", s4, r[0], r[0], divisor) },
	}
	return lanes{uses: 8, steps: append(steps, h.join...), begin: h.begin}
}

// choice compares values and chooses between patterns, so that signalling NaNs
// stay as they are.
func (h sixteen) choice(smaller bool) lanes {
	return lanes{uses: 6, steps: []step{
		func(k *kernel, r []vec) { k.widen(h.widen, s4, r[2], r[0], false) },
		func(k *kernel, r []vec) { k.widen(h.widen, s4, r[3], r[1], false) },
		func(k *kernel, r []vec) { k.widen(h.widen, s4, r[4], r[0], true) },
		func(k *kernel, r []vec) { k.widen(h.widen, s4, r[5], r[1], true) },
		func(k *kernel, r []vec) { beyond(k, "fcmgt", s4, r[2], r[2], r[3], smaller) },
		func(k *kernel, r []vec) { beyond(k, "fcmgt", s4, r[4], r[4], r[5], smaller) },
		func(k *kernel, r []vec) { k.zip("uzp1", h8, r[2], r[2], r[4]) },
		func(k *kernel, r []vec) { k.op("bit", b16, r[0], r[1], r[2]) },
	}}
}

// multiply64 uses the general registers: there is no vector product of 64 bits.
func (f *file) multiply64() {
	const name = "mul64NEON"
	k := f.kernel(name, "elements", reduceParams, "", name+" sets dst to a op b; n is a multiple of 16 bytes.")
	dst, a, b, n := k.load("dst", 0), k.load("a", 1), k.load("b", 2), k.load("n", 3)
	pairs := func(count int) func() {
		return func() {
			for i := range count {
				k.ins("LDP %d(%v), (%v, %v)", 16*i, a, reg(4+2*i), reg(5+2*i))
			}
			for i := range count {
				k.ins("LDP %d(%v), (%v, %v)", 16*i, b, reg(8+2*i), reg(9+2*i))
			}
			for i := range 2 * count {
				k.ins("MUL %v, %v, %v", reg(8+i), reg(4+i), reg(4+i))
			}
			for i := range count {
				k.ins("STP (%v, %v), %d(%v)", reg(4+2*i), reg(5+2*i), 16*i, dst)
			}
			k.advance(16*count, dst, a, b)
		}
	}
	k.loop("many", n, 32, 4, pairs(2))
	k.loop("one", n, 16, 2, pairs(1))
}
