package ptxtest

import (
	"slices"
	"strconv"
)

// statement decodes l.st into one instruction.
func (l *linker) statement() {
	st := l.st
	l.mods = slices.Clone(st.mods)
	switch st.name {
	case "mov":
		l.mov()
	case "ld", "ldu", "st":
		l.access()
	case "atom", "red":
		l.atomic()
	case "cvt":
		l.cvt()
	case "cvta":
		l.cvta()
	case "isspacep":
		l.isspacep()
	case "setp", "set":
		l.set()
	case "selp":
		l.selp()
	case "slct":
		l.slct()
	case "testp":
		l.testp()
	case "bra":
		l.take("uni")
		l.emit(instr{class: branch, target: l.label(l.count(1, 1)[0])})
	case "brx":
		l.brx()
	case "call":
		l.call()
	case "ret":
		l.take("uni")
		l.count(0, 0)
		l.emitReturn()
	case "exit":
		l.count(0, 0)
		l.emit(instr{class: ret, a: -1})
	case "trap":
		l.emit(instr{class: trap})
	case "bar", "barrier":
		l.bar()
	case "membar", "fence", "nanosleep", "prefetch", "prefetchu", "brkpt", "discard":
		l.mods = nil
		l.emit(instr{run: func(*warp, *instr, uint32) {}})
	case "shfl":
		l.shfl()
	case "vote":
		l.vote()
	case "match":
		l.match()
	case "activemask":
		l.take("b32")
		l.emit(instr{run: runActive, dst: l.result(l.count(1, 1)[0], b32)})
	default:
		l.arithmetic()
	}
	if len(l.mods) > 0 {
		l.fail("the interpreter does not know .%s of %s", l.mods[0], l.full())
	}
}

func (l *linker) mov() {
	k := l.takeKind()
	args := l.count(2, 2)
	d, s := args[0], args[1]
	switch {
	case k == pred:
		l.logicPred("mov", d, s, s)
	case d.kind == opVector:
		part := l.part(k, d)
		in := instr{run: runUnpack, a: l.source(s, k), imm: uint64(part.bytes() * 8)}
		for _, o := range d.list {
			in.vec = append(in.vec, l.result(o, part))
		}
		l.emit(in)
	case s.kind == opVector:
		part := l.part(k, s)
		in := instr{run: runPack, dst: l.result(d, k), imm: uint64(part.bytes() * 8)}
		for _, o := range s.list {
			in.vec = append(in.vec, l.source(o, part))
		}
		l.emit(in)
	default:
		l.emit(instr{run: runMove, dst: l.result(d, k), a: l.source(s, k)})
	}
}

// part is the kind of the elements that o cuts a value of kind k into.
func (l *linker) part(k kind, o operand) kind {
	n := len(o.list)
	if n != 2 && n != 4 || k.bytes()/n == 0 || k.float() && k != f64 && k != f32 {
		l.fail("%s of %d elements", l.full(), n)
	}
	return map[int]kind{1: b8, 2: b16, 4: b32}[k.bytes()/n]
}

// arithmetic is everything that is a scalar in each lane.
func (l *linker) arithmetic() {
	name := l.st.name
	if name == "lop3" {
		l.lop3()
		return
	}
	if name == "bfi" {
		l.bfi()
		return
	}
	if name == "prmt" {
		l.prmt()
		return
	}
	k := l.takeKind()
	if k == pred {
		args := l.count(2, 3)
		l.logicPred(name, args[0], args[1], args[len(args)-1])
		return
	}
	if k.float() {
		l.floating(name, k)
		return
	}
	if l.take("cc") || name == "addc" || name == "subc" || name == "madc" {
		l.carry(name, k, slices.Contains(l.st.mods, "cc"))
		return
	}
	wide := l.takeOne("lo", "hi", "wide")
	switch name {
	case "shf":
		name += "." + l.takeOne("l", "r") + "." + l.takeOne("wrap", "clamp")
	case "bfind":
		if l.take("shiftamt") {
			name += ".shiftamt"
		}
	case "add", "sub":
		if l.take("sat") {
			name += ".sat"
		}
	case "dp4a":
		l.dp4a(k)
		return
	}
	if wide != "" {
		name += "." + wide
	}
	// Untyped bits: arithmetic on them is unsigned, where there is any.
	ik := k
	if k <= b64 {
		ik = k.int(false)
	}
	if k == u8 || k == s8 || k == b8 {
		l.unsupported()
	}
	f, n := integerOp(name, ik)
	if f == nil {
		l.unsupported()
	}
	args := l.count(n+1, n+1)
	in := instr{run: runners[n], f: f}
	dk := k
	third := k
	second := k
	switch l.st.name {
	case "popc", "clz", "bfind":
		dk = b32
	case "shl", "shr":
		second = b32
	case "bfe":
		second, third = b32, b32
	case "shf":
		third = b32
	}
	if wide == "wide" {
		dk = map[kind]kind{u16: u32, s16: s32, u32: u64, s32: s64}[k]
		if dk == noKind {
			l.unsupported()
		}
		third = dk
	}
	in.dst = l.result(args[0], dk)
	in.a = l.source(args[1], k)
	if n > 1 {
		in.b = l.source(args[2], second)
	}
	if n > 2 {
		in.c = l.source(args[3], third)
	}
	l.emit(in)
}

var runners = [...]func(*warp, *instr, uint32){1: run1, 2: run2, 3: run3}

func (l *linker) floating(name string, k kind) {
	mode, known := roundings[l.takeOne("rn", "rz", "rm", "rp")]
	approx := l.takeOne("approx", "full") != ""
	ftz, sat := l.take("ftz"), l.take("sat")
	if l.take("NaN") {
		name += ".NaN"
	}
	// div.approx and its like are computed as if they were exact.
	switch name {
	case "ex2", "lg2", "sin", "cos", "tanh", "rsqrt":
		known = known || !approx
	case "add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt":
		known = false
	}
	if known {
		l.unsupported()
	}
	f, n := floatOp(name, k, mode, l.other)
	if f == nil {
		l.unsupported()
	}
	if sat {
		f = saturate(f, k)
	}
	if ftz {
		if k != f32 {
			l.unsupported()
		}
		f = flush(f)
	}
	args := l.count(n+1, n+1)
	in := instr{run: runners[n], f: f, dst: l.result(args[0], k), a: l.source(args[1], k)}
	if n > 1 {
		in.b = l.source(args[2], k)
	}
	if n > 2 {
		in.c = l.source(args[3], k)
	}
	l.emit(in)
}

func (l *linker) lop3() {
	if l.take("b32"); len(l.mods) > 0 {
		l.unsupported()
	}
	args := l.count(5, 5)
	if args[4].kind != opImm || args[4].imm > 255 {
		l.fail("lop3 needs a table of 8 bits")
	}
	l.emit(instr{
		run: run3, f: logic(args[4].imm), dst: l.result(args[0], b32),
		a: l.source(args[1], b32), b: l.source(args[2], b32), c: l.source(args[3], b32),
	})
}

func (l *linker) prmt() {
	l.take("b32")
	mode := l.takeOne("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
	if mode != "" {
		mode = "." + mode
	}
	args := l.count(4, 4)
	l.emit(instr{
		run: run3, f: permutation(mode), dst: l.result(args[0], b32),
		a: l.source(args[1], b32), b: l.source(args[2], b32), c: l.source(args[3], b32),
	})
}

func (l *linker) bfi() {
	k := l.takeKind()
	if k != b32 && k != b64 {
		l.unsupported()
	}
	args := l.count(5, 5)
	l.emit(instr{
		run: runInsert, imm: uint64(k.bytes() * 8), dst: l.result(args[0], k),
		a: l.source(args[1], k), b: l.source(args[2], k), c: l.source(args[3], b32), p: l.source(args[4], b32),
	})
}

// dp4a adds the products of four bytes to c.
func (l *linker) dp4a(bk kind) {
	ak := l.takeKind()
	if ak.bytes() != 4 || bk.bytes() != 4 {
		l.unsupported()
	}
	args := l.count(4, 4)
	l.emit(instr{
		run: run3, dst: l.result(args[0], b32),
		a: l.source(args[1], b32), b: l.source(args[2], b32), c: l.source(args[3], b32),
		f: func(a, b, c uint64) uint64 {
			for i := range 4 {
				x, y := a>>(8*i), b>>(8*i)
				c += extend(u8+(ak-u32), x) * extend(u8+(bk-u32), y)
			}
			return c
		},
	})
}

// carry is the arithmetic that reads or writes the carry flag.
func (l *linker) carry(name string, k kind, writes bool) {
	wide := l.takeOne("lo", "hi")
	if k.bytes() < 4 || k.float() {
		l.unsupported()
	}
	args := l.count(3, 4)
	in := instr{run: runCarry, kind: k, dst: l.result(args[0], k), a: l.source(args[1], k), b: l.source(args[2], k)}
	ik := k
	if k <= b64 {
		ik = k.int(false)
	}
	switch name {
	case "add", "addc":
	case "sub", "subc":
		in.mode |= carrySub
	case "mad", "madc":
		if len(args) != 4 || wide == "" {
			l.unsupported()
		}
		in.f, _ = integerOp("mul."+wide, ik)
		in.c = l.source(args[3], k)
	default:
		l.unsupported()
	}
	if (name == "mad" || name == "madc") != (len(args) == 4) {
		l.unsupported()
	}
	if name[len(name)-1] == 'c' {
		in.mode |= carryIn
	}
	if writes {
		in.mode |= carryOut
	}
	l.emit(in)
}

func (l *linker) cvt() {
	n := len(l.mods)
	if n < 2 {
		l.unsupported()
	}
	from := l.takeKind()
	to := l.takeKind()
	if from == pred || to == pred || from <= b64 || to <= b64 {
		l.unsupported()
	}
	word := l.takeOne("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi")
	integral := len(word) == 3
	ftz, sat := l.take("ftz"), l.take("sat")
	if from.float() && !to.float() && !integral {
		l.unsupported()
	}
	args := l.count(2, 2)
	l.fits(args[0], to, args[0].reg.kind.bytes() >= to.bytes())
	l.emit(instr{
		run: run1, f: conversion(to, from, roundings[word], integral, sat, ftz, l.other),
		dst: l.register(args[0]), a: l.wider(args[1], from),
	})
}

var compareNames = []string{
	"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs",
	"equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
}

func (l *linker) set() {
	k := l.takeKind()
	dk := noKind
	if l.st.name == "set" {
		if dk = l.takeKind(); dk != f32 && dk.bytes() != 4 {
			l.unsupported()
		}
	}
	op := l.takeOne(compareNames...)
	combine := l.takeOne("and", "or", "xor")
	ftz := l.take("ftz")
	ik := k
	if k <= b64 {
		ik = k.int(false)
	}
	cmp := integerCompare(op, ik)
	if k.float() {
		cmp = floatCompare(op, k)
	}
	if cmp == nil || ftz && k != f32 {
		l.unsupported()
	}
	if ftz {
		exact := cmp
		z := flush(func(a, _, _ uint64) uint64 { return a })
		cmp = func(a, b uint64) bool { return exact(z(a, 0, 0), z(b, 0, 0)) }
	}
	args := l.count(3, 4)
	in := instr{run: runCompare, cmp: cmp, a: l.source(args[1], k), b: l.source(args[2], k), p: -1, q: -1, c: -1}
	if (combine != "") != (len(args) == 4) {
		l.fail("%s with %d operands", l.full(), len(args))
	}
	if combine != "" {
		in.c = l.predicate(args[3])
		in.join = joins[combine]
		if args[3].not {
			in.mode = 1
		}
	}
	if dk != noKind {
		in.run, in.dst, in.imm = runSet, l.result(args[0], dk), 0xffffffff
		if dk == f32 {
			in.imm = 0x3f800000
		}
		l.emit(in)
		return
	}
	d := args[0]
	if d.kind == opPair {
		in.p, in.q = l.optional(d.list[0]), l.optional(d.list[1])
	} else {
		in.p = l.optional(d)
	}
	l.emit(in)
}

// optional is a predicate that is written, -1 for a sink.
func (l *linker) optional(o operand) int32 {
	if o.kind == opSink {
		return -1
	}
	return l.predicate(o)
}

var joins = map[string]func(x, y bool) bool{
	"and": func(x, y bool) bool { return x && y },
	"or":  func(x, y bool) bool { return x || y },
	"xor": func(x, y bool) bool { return x != y },
}

func (l *linker) selp() {
	k := l.takeKind()
	args := l.count(4, 4)
	in := instr{run: runSelect, dst: l.result(args[0], k), a: l.source(args[1], k), b: l.source(args[2], k), p: l.predicate(args[3])}
	if args[3].not {
		in.a, in.b = in.b, in.a
	}
	l.emit(in)
}

func (l *linker) slct() {
	ck := l.takeKind()
	k := l.takeKind()
	l.take("ftz")
	if ck != f32 && ck != s32 {
		l.unsupported()
	}
	args := l.count(4, 4)
	l.emit(instr{
		run: run3, dst: l.result(args[0], k), a: l.source(args[1], k), b: l.source(args[2], k), c: l.source(args[3], ck),
		f: func(a, b, c uint64) uint64 {
			if ck == s32 && int32(c) >= 0 || ck == f32 && get32(c) >= 0 {
				return a
			}
			return b
		},
	})
}

func (l *linker) testp() {
	k := l.takeKind()
	test := l.takeOne("finite", "infinite", "number", "notanumber", "normal", "subnormal")
	if k != f32 && k != f64 || test == "" {
		l.unsupported()
	}
	args := l.count(2, 2)
	l.emit(instr{run: runCompare, p: l.predicate(args[0]), q: -1, c: -1, a: l.source(args[1], k), b: l.constant(0), cmp: testProperty(test, k)})
}

// logicPred is mov, not, and, or, xor of predicates, all lanes at once.
func (l *linker) logicPred(name string, d, x, y operand) {
	in := instr{run: runPredicates, p: l.predicate(d)}
	switch name {
	case "mov":
		in.mode = predMov
	case "not":
		in.mode = predNot
	case "and":
		in.mode = predAnd
	case "or":
		in.mode = predOr
	case "xor":
		in.mode = predXor
	default:
		l.unsupported()
	}
	in.a, in.imm = l.truth(x)
	var not uint64
	in.b, not = l.truth(y)
	in.imm |= not << 1
	l.emit(in)
}

// truth is a predicate that is read, or -1 for a number; not is 1 if it is negated.
func (l *linker) truth(o operand) (p int32, not uint64) {
	if o.kind == opImm {
		return -1, (o.imm ^ 1) & 1
	}
	if o.not {
		not = 1
	}
	return l.predicate(o), not
}

func (l *linker) brx() {
	l.take("uni")
	if !l.take("idx") {
		l.unsupported()
	}
	args := l.count(2, 2)
	names, ok := l.fn.tables[args[1].name]
	if !ok {
		l.fail("%s is no .branchtargets", args[1].name)
	}
	in := instr{class: table, a: l.source(args[0], u32)}
	for _, n := range names {
		in.targets = append(in.targets, l.labelNamed(n))
	}
	l.emit(in)
}

func (l *linker) call() {
	l.take("uni")
	args := l.count(1, 4)
	if len(args) > 1 && args[0].kind == opList { // results
		args = args[1:]
	}
	fn := l.mod.funcs[args[0].name]
	if args[0].kind != opLabel || fn == nil || fn.entry {
		l.fail("call of %q, which is not a function of the module", args[0].name)
	}
	given := [2][]operand{}
	if l.st.args[0].kind == opList {
		given[0] = l.st.args[0].list
	}
	if len(args) > 1 {
		given[1] = args[1].list
	}
	in := instr{class: call}
	for i, want := range [2][]*symbol{fn.returns, fn.params} {
		if len(given[i]) != len(want) {
			l.fail("%s: %d parameters where %s has %d", l.full(), len(given[i]), fn.name, len(want))
		}
		for j, o := range given[i] {
			if o.kind != opSym || o.sym.space != param || o.sym.size != want[j].size {
				l.fail("%s: parameters have to be variables of the size that %s declares", l.full(), fn.name)
			}
		}
	}
	site := int32(len(l.prog.code))
	l.calls = append(l.calls, callSite{site, fn, given})
	l.emit(in)
}

func (l *linker) bar() {
	l.take("cta")
	l.take("aligned")
	if l.take("warp") {
		l.take("sync")
		l.emit(instr{class: meet, c: l.source(l.count(1, 1)[0], u32), run: func(*warp, *instr, uint32) {}})
		return
	}
	in := instr{class: barrier, p: -1, c: -1}
	if l.take("red") {
		op := l.takeOne("popc", "and", "or")
		l.takeOne("u32", "pred")
		args := l.count(3, 4)
		in.mode = map[string]uint8{"popc": barPopc, "and": barAnd, "or": barOr}[op]
		if op == "popc" {
			in.dst = l.result(args[0], u32)
		} else {
			in.dst = l.predicate(args[0])
		}
		in.a = l.source(args[1], u32)
		if len(args) == 4 {
			in.c = l.source(args[2], u32)
		}
		last := args[len(args)-1]
		if in.p = l.predicate(last); last.not {
			in.imm = 1
		}
		l.emit(in)
		return
	}
	if !l.take("sync") {
		l.unsupported()
	}
	args := l.count(1, 2)
	in.a = l.source(args[0], u32)
	if len(args) == 2 {
		in.c = l.source(args[1], u32)
	}
	l.emit(in)
}

func (l *linker) shfl() {
	sync := l.take("sync")
	mode := l.takeOne("up", "down", "bfly", "idx")
	if mode == "" || l.takeKind() != b32 {
		l.unsupported()
	}
	n := 4
	if sync {
		n = 5
	}
	args := l.count(n, n)
	in := instr{run: runShuffle, q: -1, mode: map[string]uint8{"up": shflUp, "down": shflDown, "bfly": shflBfly, "idx": shflIdx}[mode]}
	d := args[0]
	if d.kind == opPair {
		in.q = l.optional(d.list[1])
		d = d.list[0]
	}
	in.dst = l.result(d, b32)
	in.a, in.b, in.p = l.source(args[1], b32), l.source(args[2], b32), l.source(args[3], b32)
	if sync {
		in.class, in.c = meet, l.source(args[4], b32)
	}
	l.emit(in)
}

func (l *linker) vote() {
	sync := l.take("sync")
	op := l.takeOne("all", "any", "uni", "ballot")
	l.takeOne("pred", "b32")
	n := 2
	if sync {
		n = 3
	}
	args := l.count(n, n)
	in := instr{run: runVote, p: l.predicate(args[1])}
	if args[1].not {
		in.imm = 1
	}
	switch op {
	case "ballot":
		in.mode, in.dst = voteBallot, l.result(args[0], b32)
	case "all", "any", "uni":
		in.mode, in.dst = map[string]uint8{"all": voteAll, "any": voteAny, "uni": voteUni}[op], l.predicate(args[0])
	default:
		l.unsupported()
	}
	if sync {
		in.class, in.c = meet, l.source(args[2], b32)
	}
	l.emit(in)
}

func (l *linker) match() {
	l.take("sync")
	all := l.takeOne("any", "all") == "all"
	k := l.takeKind()
	if k != b32 && k != b64 {
		l.unsupported()
	}
	args := l.count(3, 3)
	in := instr{class: meet, run: runMatch, kind: k, q: -1}
	d := args[0]
	if all {
		in.mode = 1
		if d.kind == opPair {
			in.q = l.optional(d.list[1])
			d = d.list[0]
		}
	}
	in.dst, in.a, in.c = l.result(d, b32), l.source(args[1], k), l.source(args[2], b32)
	l.emit(in)
}

func knownSpecial(name string) bool {
	switch name {
	case "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z",
		"%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z",
		"%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid",
		"%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt",
		"%dynamic_smem_size", "%total_smem_size":
		return true
	}
	n, err := strconv.Atoi(name[min(len(name), len("%envreg")):])
	return err == nil && name == "%envreg"+strconv.Itoa(n) && n < 32
}
