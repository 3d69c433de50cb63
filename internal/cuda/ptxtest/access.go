package ptxtest

// Loads, stores and atomic operations.

// Windows of the generic address space. Global addresses are below.
const (
	window       = uint64(1) << 60
	sharedWindow = 1 * window
	localWindow  = 2 * window
	constWindow  = 3 * window
)

var windowAt = [...]uint64{generic: 0, global: 0, shared: sharedWindow, constant: constWindow, local: localWindow}

// place is an address operand: a register and an offset.
func (l *linker) location(o operand, in *instr) {
	if o.kind != opAddr {
		l.fail("%s: an address belongs here", l.full())
	}
	base := o.list[0]
	switch {
	case base.kind == opSym:
		if in.space == param && !(base.sym.arg && l.fn.entry) {
			in.space = local
		}
		in.a = l.symbol(base.sym, o.imm)
	case base.kind == opImm:
		in.a = l.constant(base.imm + o.imm)
	default:
		in.a, in.imm = l.source(base, b64), o.imm
		if base.reg.kind == pred {
			l.unsupported()
		}
	}
}

func (l *linker) takeSpace() space {
	for i, m := range l.mods {
		if s, ok := spaces[m]; ok {
			l.mods = append(l.mods[:i], l.mods[i+1:]...)
			return s
		}
	}
	return generic
}

// takeHints removes what changes nothing here: order and scope, since one
// block runs at a time, and caches. It reports whether the access is strong:
// may meet those of other threads.
func (l *linker) takeHints() (strong bool) {
	for l.takeOne("volatile", "relaxed", "acquire", "release", "acq_rel") != "" {
		strong = true
	}
	for l.takeOne("weak", "cta", "gpu", "sys", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "cluster") != "" {
	}
	return strong
}

func (l *linker) access() {
	in := instr{class: memory}
	in.kind = l.takeKind()
	in.space = l.takeSpace()
	strong := l.takeHints()
	lanes := map[string]int{"": 1, "v2": 2, "v4": 4}[l.takeOne("v2", "v4")]
	if in.kind == pred {
		l.unsupported()
	}
	in.width = uint64(in.kind.bytes() * lanes)
	args := l.count(2, 2)
	at, data := args[1], args[0]
	if l.st.name == "st" {
		at, data = data, at
	}
	l.location(at, &in)
	list := []operand{data}
	if data.kind == opVector {
		list = data.list
	}
	if len(list) != lanes {
		l.fail("%s of %d elements", l.full(), len(list))
	}
	for _, o := range list {
		if l.st.name == "st" {
			in.vec = append(in.vec, l.wider(o, in.kind))
			continue
		}
		l.fits(o, in.kind, o.reg.kind.bytes() >= in.kind.bytes())
		in.vec = append(in.vec, l.register(o))
	}
	if l.st.name == "st" {
		if in.space == constant || in.space == param {
			l.fail("%s writes what cannot be written", l.full())
		}
		in.run, in.mode, in.stores = runStore, writes, true
	} else {
		in.run = runLoad
	}
	if strong {
		in.mode = agrees
	}
	l.emit(in)
}

func (l *linker) atomic() {
	in := instr{class: memory, run: runAtomic, kind: l.takeKind(), dst: -1, mode: agrees, stores: true}
	in.space = l.takeSpace()
	l.takeHints()
	name := l.takeOne("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
	mode := roundings[l.takeOne("rn")]
	l.take("noftz")
	args := l.st.args
	if l.st.name == "atom" {
		if len(args) == 0 {
			l.count(1, 4)
		}
		in.dst = l.result(args[0], in.kind)
		args = args[1:]
	}
	want := 2
	if name == "cas" {
		want = 3
	}
	if len(args) != want || in.kind.bytes() < 4 {
		l.unsupported()
	}
	in.f = l.update(name, in.kind, mode)
	in.width = uint64(in.kind.bytes())
	l.location(args[0], &in)
	if in.space != generic && in.space != global && in.space != shared {
		l.unsupported()
	}
	in.b = l.source(args[1], in.kind)
	if want == 3 {
		in.c = l.source(args[2], in.kind)
	}
	l.emit(in)
}

// update is what an atomic operation makes of the old value and its operands.
func (l *linker) update(name string, k kind, mode rounding) scalar {
	m := mask(uint32(k.bytes() * 8))
	switch name {
	case "exch":
		return func(_, b, _ uint64) uint64 { return b }
	case "cas":
		return func(a, b, c uint64) uint64 {
			if a&m == b&m {
				return c
			}
			return a
		}
	case "inc":
		return func(a, b, _ uint64) uint64 {
			if a&m >= b&m {
				return 0
			}
			return a + 1
		}
	case "dec":
		return func(a, b, _ uint64) uint64 {
			if a&m == 0 || a&m > b&m {
				return b
			}
			return a - 1
		}
	}
	if k.float() {
		if f, _ := floatOp(name, k, mode, l.other); f != nil && name == "add" {
			return f
		}
		l.unsupported()
	}
	ik := k
	if k <= b64 {
		ik = k.int(false)
	}
	f, _ := integerOp(name, ik)
	if f == nil {
		l.unsupported()
	}
	return f
}

func (l *linker) cvta() {
	to := l.take("to")
	sp := l.takeSpace()
	if l.takeKind() != u64 || sp == generic || sp == param {
		l.unsupported()
	}
	args := l.count(2, 2)
	delta := windowAt[sp]
	if to {
		delta = -delta
	}
	l.emit(instr{
		run: run1, dst: l.result(args[0], u64), a: l.source(args[1], u64),
		f: func(a, _, _ uint64) uint64 { return a + delta },
	})
}

func (l *linker) isspacep() {
	sp := l.takeSpace()
	args := l.count(2, 2)
	in := instr{run: runCompare, p: l.predicate(args[0]), q: -1, c: -1, a: l.source(args[1], u64), b: l.constant(windowAt[sp])}
	in.cmp = func(a, b uint64) bool { return a&^(window-1) == b }
	l.emit(in)
}
