package ptxtest

import (
	"math"
	"math/bits"
)

// What instructions do in the lanes m of a warp. The race detector would watch
// every access to a register, which nobody shares, so it is told not to.

//go:norace
func run1(w *warp, in *instr, m uint32) {
	d, a, f := &w.r[in.dst], &w.r[in.a], in.f
	if m == math.MaxUint32 {
		for l := range d {
			d[l] = f(a[l], 0, 0)
		}
		return
	}
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		d[l] = f(a[l], 0, 0)
	}
}

//go:norace
func run2(w *warp, in *instr, m uint32) {
	d, a, b, f := &w.r[in.dst], &w.r[in.a], &w.r[in.b], in.f
	if m == math.MaxUint32 {
		for l := range d {
			d[l] = f(a[l], b[l], 0)
		}
		return
	}
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		d[l] = f(a[l], b[l], 0)
	}
}

//go:norace
func run3(w *warp, in *instr, m uint32) {
	d, a, b, c, f := &w.r[in.dst], &w.r[in.a], &w.r[in.b], &w.r[in.c], in.f
	if m == math.MaxUint32 {
		for l := range d {
			d[l] = f(a[l], b[l], c[l])
		}
		return
	}
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		d[l] = f(a[l], b[l], c[l])
	}
}

//go:norace
func runMove(w *warp, in *instr, m uint32) {
	d, a := &w.r[in.dst], &w.r[in.a]
	if m == math.MaxUint32 {
		*d = *a
		return
	}
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		d[l] = a[l]
	}
}

//go:norace
func runUnpack(w *warp, in *instr, m uint32) {
	source := w.r[in.a] // a copy: the parts may overwrite it
	for i, to := range in.vec {
		shift := uint64(i) * in.imm
		for mm := m; mm != 0; mm &= mm - 1 {
			l := bits.TrailingZeros32(mm)
			w.r[to][l] = source[l] >> shift & mask(uint32(in.imm))
		}
	}
}

//go:norace
func runPack(w *warp, in *instr, m uint32) {
	var d lanes
	for i, from := range in.vec {
		shift := uint64(i) * in.imm
		for l := range d {
			d[l] |= w.r[from][l] & mask(uint32(in.imm)) << shift
		}
	}
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		w.r[in.dst][l] = d[l]
	}
}

//go:norace
func runInsert(w *warp, in *instr, m uint32) {
	d, a, b := &w.r[in.dst], &w.r[in.a], &w.r[in.b]
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		d[l] = insert(a[l], b[l], uint32(w.r[in.c][l]), uint32(w.r[in.p][l]), uint32(in.imm))
	}
}

// Modes of runCarry.
const (
	carryIn = 1 << iota
	carryOut
	carrySub
)

//go:norace
func runCarry(w *warp, in *instr, m uint32) {
	n := uint32(in.kind.bytes() * 8)
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		a, b := w.r[in.a][l]&mask(n), w.r[in.b][l]&mask(n)
		if in.f != nil {
			a, b = in.f(a, b, 0)&mask(n), w.r[in.c][l]&mask(n)
		}
		var c, d, out uint64
		if in.mode&carryIn != 0 {
			c = uint64(w.carry >> l & 1)
		}
		if in.mode&carrySub != 0 { // the flag is a borrow
			d, out = bits.Sub64(a, b, c)
		} else if d, out = bits.Add64(a, b, c); n < 64 {
			out = d >> n & 1
		}
		if in.mode&carryOut != 0 {
			w.carry = w.carry&^(1<<l) | uint32(out)<<l
		}
		w.r[in.dst][l] = d
	}
}

//go:norace
func runCompare(w *warp, in *instr, m uint32) {
	a, b, cmp := &w.r[in.a], &w.r[in.b], in.cmp
	var yes uint32
	for mm := m; mm != 0; mm &= mm - 1 {
		l := bits.TrailingZeros32(mm)
		if cmp(a[l], b[l]) {
			yes |= 1 << l
		}
	}
	no := ^yes
	if in.join != nil {
		c := w.p[in.c]
		if in.mode != 0 {
			c = ^c
		}
		yes, no = joined(in, yes, c), joined(in, no, c)
	}
	if in.p >= 0 {
		w.p[in.p] = w.p[in.p]&^m | yes&m
	}
	if in.q >= 0 {
		w.p[in.q] = w.p[in.q]&^m | no&m
	}
}

//go:norace
func joined(in *instr, x, y uint32) uint32 {
	var d uint32
	for l := range 32 {
		if in.join(x>>l&1 == 1, y>>l&1 == 1) {
			d |= 1 << l
		}
	}
	return d
}

//go:norace
func runSet(w *warp, in *instr, m uint32) {
	c := uint32(0)
	if in.join != nil {
		if c = w.p[in.c]; in.mode != 0 {
			c = ^c
		}
	}
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		yes := in.cmp(w.r[in.a][l], w.r[in.b][l])
		if in.join != nil {
			yes = in.join(yes, c>>l&1 == 1)
		}
		w.r[in.dst][l] = 0
		if yes {
			w.r[in.dst][l] = in.imm
		}
	}
}

//go:norace
func runSelect(w *warp, in *instr, m uint32) {
	d, a, b, p := &w.r[in.dst], &w.r[in.a], &w.r[in.b], w.p[in.p]
	for ; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		if p>>l&1 == 1 {
			d[l] = a[l]
		} else {
			d[l] = b[l]
		}
	}
}

// Modes of runPredicates.
const (
	predMov = iota
	predNot
	predAnd
	predOr
	predXor
)

//go:norace
func runPredicates(w *warp, in *instr, m uint32) {
	truth := func(p int32, not uint64) uint32 {
		v := uint32(math.MaxUint32)
		if p >= 0 {
			v = w.p[p]
		}
		if not != 0 {
			v = ^v
		}
		return v
	}
	x, y := truth(in.a, in.imm&1), truth(in.b, in.imm&2)
	switch in.mode {
	case predNot:
		x = ^x
	case predAnd:
		x &= y
	case predOr:
		x |= y
	case predXor:
		x ^= y
	}
	w.p[in.p] = w.p[in.p]&^m | x&m
}

// testProperty is testp.
func testProperty(test string, k kind) func(a, b uint64) bool {
	smallest := 0x1p-126
	if k == f64 {
		smallest = 0x1p-1022
	}
	return func(a, _ uint64) bool {
		x := value(k, a)
		y := math.Abs(x)
		switch test {
		case "finite":
			return y <= math.MaxFloat64
		case "infinite":
			return math.IsInf(x, 0)
		case "number":
			return x == x
		case "notanumber":
			return x != x
		case "normal":
			return y >= smallest && y <= math.MaxFloat64
		}
		return y > 0 && y < smallest
	}
}

//go:norace
func runActive(w *warp, in *instr, m uint32) {
	for mm := m; mm != 0; mm &= mm - 1 {
		w.r[in.dst][bits.TrailingZeros32(mm)] = uint64(m)
	}
}

// Modes of runShuffle.
const (
	shflUp = iota
	shflDown
	shflBfly
	shflIdx
)

// poison is what is read where PTX promises nothing.
const poison = 0xa5a5a5a5a5a5a5a5

//go:norace
func runShuffle(w *warp, in *instr, m uint32) {
	a := w.r[in.a] // a copy: dst may be the same
	for mm := m; mm != 0; mm &= mm - 1 {
		l := bits.TrailingZeros32(mm)
		lane := int(l)
		b, c := int(w.r[in.b][l]&31), int(w.r[in.p][l])
		seg := c >> 8 & 31
		last, first := lane&seg|c&31&^seg, lane&seg
		from, ok := 0, false
		switch in.mode {
		case shflUp:
			from = lane - b
			ok = from >= last
		case shflDown:
			from = lane + b
			ok = from <= last
		case shflBfly:
			from = lane ^ b
			ok = from <= last
		default:
			from = first | b&^seg
			ok = from <= last
		}
		if !ok {
			from = lane
		}
		w.r[in.dst][l] = poison
		if m>>from&1 == 1 {
			w.r[in.dst][l] = a[from]
		}
		if in.q >= 0 {
			w.p[in.q] &^= 1 << l
			if ok {
				w.p[in.q] |= 1 << l
			}
		}
	}
}

// Modes of runVote.
const (
	voteBallot = iota
	voteAll
	voteAny
	voteUni
)

//go:norace
func runVote(w *warp, in *instr, m uint32) {
	p := w.p[in.p]
	if in.imm != 0 {
		p = ^p
	}
	for mm := m; mm != 0; mm &= mm - 1 {
		l := bits.TrailingZeros32(mm)
		with := m
		if in.class == meet {
			with &= uint32(w.r[in.c][l])
		}
		yes := false
		switch in.mode {
		case voteBallot:
			w.r[in.dst][l] = uint64(p & with)
			continue
		case voteAll:
			yes = p&with == with
		case voteAny:
			yes = p&with != 0
		default:
			yes = p&with == with || p&with == 0
		}
		w.p[in.dst] &^= 1 << l
		if yes {
			w.p[in.dst] |= 1 << l
		}
	}
}

//go:norace
func runMatch(w *warp, in *instr, m uint32) {
	v := w.r[in.a]
	n := mask(uint32(in.kind.bytes() * 8))
	for mm := m; mm != 0; mm &= mm - 1 {
		l := bits.TrailingZeros32(mm)
		with := m & uint32(w.r[in.c][l])
		var same uint32
		for o := range 32 {
			if with>>o&1 == 1 && v[o]&n == v[l]&n {
				same |= 1 << o
			}
		}
		all := same == with
		if in.mode != 0 && !all {
			same = 0
		}
		w.r[in.dst][l] = uint64(same)
		if in.q >= 0 {
			w.p[in.q] &^= 1 << l
			if all {
				w.p[in.q] |= 1 << l
			}
		}
	}
}
