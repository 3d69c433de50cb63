package ptxtest

import (
	"slices"
	"strings"
)

// class says how a warp's loop treats an instruction.
type class uint8

const (
	plain   class = iota // run does it in all active lanes; it cannot fail
	memory               // run does it, and may fail the launch
	branch               // to target
	table                // to targets[a]
	call                 // of a function: to target, return addresses in dst
	ret                  // to the addresses in a, or the end if a is -1
	barrier              // of the block
	meet                 // run, once all lanes of the member mask c are here
	trap                 // fails the launch
)

// instr is a decoded instruction. Registers are indices into warp.r, and
// predicates into warp.p; immediates and special registers are registers, too.
type instr struct {
	class   class
	space   space
	kind    kind
	not     bool
	guard   int32
	dst     int32
	a, b, c int32
	p, q    int32
	target  int32
	f       scalar
	cmp     func(a, b uint64) bool
	run     func(w *warp, in *instr, m uint32)
	join    func(x, y bool) bool
	imm     uint64
	mode    uint8
	vec     []int32
	targets []int32
	give    []transfer // of a call, before and after
	get     []transfer
	width   uint64 // bytes of an access
	stores  bool
	st      *statement
	fn      *function
}

// program is a kernel with all that it calls, ready to run. It does not change.
type program struct {
	fn       *function
	code     []instr
	regs     int // registers of a lane
	preds    int
	consts   []constSlot
	specials []specialSlot
	dynamics []constSlot // offsets in the dynamic shared memory
	shared   int         // static bytes of a block
	dynamic  int         // alignment of the dynamic shared memory, 0: none
	local    int         // bytes of a thread
	args     int         // bytes of parameters
}

// constSlot is a register that is the same in all lanes; with global, value is
// an offset from the module's variables.
type constSlot struct {
	slot   int32
	value  uint64
	global bool
}

type specialSlot struct {
	slot int32
	name string
	// perBlock is set if the value is another one in each block.
	perBlock bool
}

type linker struct {
	mod     *module
	prog    *program
	other   nans
	regs    map[*function][]int32 // of registers, -1: none yet
	consts  map[constSlot]int32
	special map[string]int32
	entry   map[*function]int32 // address of the first instruction
	back    map[*function]int32 // register with return addresses
	calls   []callSite
	stack   []*function
	placed  map[*symbol]uint64
	extern  []*symbol // dynamic shared memory
	st      *statement
	fn      *function
	mods    []string
}

// callSite is a call whose target is not decoded yet.
type callSite struct {
	at    int32
	fn    *function
	given [2][]operand // results and parameters
}

// transfer is a parameter on its way, in the thread's local memory.
type transfer struct{ to, from, size uint64 }

// link decodes a kernel. Errors are *syntaxError.
func link(mod *module, fn *function, other nans) (p *program, err error) {
	defer func() {
		if e, ok := recover().(*syntaxError); ok {
			p, err = nil, e
		} else if r := recover(); r != nil {
			panic(r)
		}
	}()
	l := &linker{
		mod: mod, prog: &program{fn: fn}, other: other,
		regs: map[*function][]int32{}, consts: map[constSlot]int32{}, special: map[string]int32{},
		entry: map[*function]int32{}, back: map[*function]int32{}, placed: map[*symbol]uint64{},
	}
	for _, s := range mod.globals {
		if s.space == shared {
			l.place(s)
		}
	}
	l.function(fn)
	if n := len(fn.params); n > 0 {
		l.prog.args = int(fn.params[n-1].addr) + fn.params[n-1].size
	}
	for _, c := range l.calls {
		in := &l.prog.code[c.at]
		in.target, in.dst = l.entry[c.fn], l.back[c.fn]
		for i, o := range c.given[1] {
			s := c.fn.params[i]
			in.give = append(in.give, transfer{l.placed[s], l.placed[o.sym], uint64(s.size)})
		}
		for i, o := range c.given[0] {
			s := c.fn.returns[i]
			in.get = append(in.get, transfer{l.placed[o.sym], l.placed[s], uint64(s.size)})
		}
	}
	return l.prog, nil
}

func (l *linker) fail(format string, args ...any) {
	line := l.fn.line
	if l.st != nil {
		line = l.st.line
	}
	fail(line, format, args...)
}

// place gives a variable of the shared or local memory its address in the
// program. The dynamic shared memory comes after the static one.
func (l *linker) place(s *symbol) {
	size, limit := &l.prog.local, maxLocal
	if s.space == shared {
		if s.size == 0 {
			l.prog.dynamic = max(l.prog.dynamic, s.align)
			l.extern = append(l.extern, s)
			return
		}
		size, limit = &l.prog.shared, maxShared
	}
	at := (*size + s.align - 1) &^ (s.align - 1)
	if *size = at + s.size; *size > limit {
		fail(l.prog.fn.line, "%s and what comes before it have more than %d bytes", s.name, limit)
	}
	l.placed[s] = uint64(at)
}

// address is what a variable's name stands for.
func (l *linker) address(s *symbol) uint64 {
	if at, ok := l.placed[s]; ok {
		return at
	}
	return s.addr
}

// function decodes fn and, after it, what it calls.
func (l *linker) function(fn *function) {
	if slices.Contains(l.stack, fn) {
		l.fail("%s calls itself, which the interpreter does not support", fn.name)
	}
	if _, done := l.entry[fn]; done {
		return
	}
	if fn.declare {
		l.fail("%s is declared, but not defined", fn.name)
	}
	l.stack = append(l.stack, fn)
	l.fn, l.st = fn, nil
	first := int32(len(l.prog.code))
	l.entry[fn] = first
	regs := make([]int32, fn.regs)
	for i := range regs {
		regs[i] = -1
	}
	l.regs[fn] = regs
	if !fn.entry {
		l.back[fn] = l.newSlot()
		for _, s := range slices.Concat(fn.returns, fn.params) {
			l.place(s)
		}
	}
	for _, s := range fn.locals {
		l.place(s)
	}
	calls := len(l.calls)
	for i := range fn.body {
		l.st = &fn.body[i]
		l.statement()
	}
	l.st = nil
	l.emitReturn()
	for _, c := range l.calls[calls:] {
		l.function(c.fn)
		l.fn = fn
	}
	l.stack = l.stack[:len(l.stack)-1]
}

func (l *linker) newSlot() int32 {
	if l.prog.regs >= maxRegs {
		l.fail("more than %d registers", maxRegs)
	}
	l.prog.regs++
	return int32(l.prog.regs - 1)
}

func (l *linker) emit(in instr) {
	in.st, in.fn = l.st, l.fn
	in.guard = -1
	if l.st != nil && l.st.guard != nil {
		in.guard, in.not = l.predicate(*l.st.guard), l.st.guard.not
	}
	l.prog.code = append(l.prog.code, in)
}

func (l *linker) emitReturn() {
	a := int32(-1)
	if !l.fn.entry {
		a = l.back[l.fn]
	}
	l.emit(instr{class: ret, a: a})
}

// take removes a modifier and reports whether it was there.
func (l *linker) take(name string) bool {
	i := slices.Index(l.mods, name)
	if i < 0 {
		return false
	}
	l.mods = slices.Delete(l.mods, i, i+1)
	return true
}

// takeOne removes the first modifier that is one of names; "" if none is.
func (l *linker) takeOne(names ...string) string {
	for _, n := range names {
		if l.take(n) {
			return n
		}
	}
	return ""
}

// takeKind removes the last modifier, which has to be a type.
func (l *linker) takeKind() kind {
	if n := len(l.mods); n > 0 {
		if k := kinds[l.mods[n-1]]; k != noKind {
			l.mods = l.mods[:n-1]
			return k
		}
	}
	l.fail("%s has no type that the interpreter knows", l.full())
	return noKind
}

func (l *linker) full() string { return l.st.full() }

// full is the instruction's name with all modifiers.
func (st *statement) full() string { return strings.Join(append([]string{st.name}, st.mods...), ".") }

func (l *linker) unsupported() { l.fail("the interpreter does not know %s", l.full()) }

// count fails if the statement does not have between lo and hi operands.
func (l *linker) count(lo, hi int) []operand {
	if n := len(l.st.args); n < lo || n > hi {
		l.fail("%s with %d operands", l.full(), n)
	}
	return l.st.args
}

// register is the slot of an operand that is written.
func (l *linker) register(o operand) int32 {
	if o.kind == opSink {
		return l.newSlot()
	}
	if o.kind != opReg || o.special != "" || o.reg.kind == pred || o.not {
		l.fail("%s: a result has to be a register", l.full())
	}
	regs := l.regs[l.fn]
	if regs[o.reg.id] < 0 {
		regs[o.reg.id] = l.newSlot()
	}
	return regs[o.reg.id]
}

// result is the slot of an operand that an instruction of kind k writes.
func (l *linker) result(o operand, k kind) int32 {
	l.fits(o, k, o.reg.kind.bytes() == k.bytes())
	return l.register(o)
}

// fits fails if o is a register and not ok.
func (l *linker) fits(o operand, k kind, ok bool) {
	if o.kind == opReg && o.special == "" && !ok {
		l.fail("%s: a register of type %v where %v belongs", l.full(), o.reg.kind, k)
	}
}

// source is the slot of an operand that is read as a value of kind k.
func (l *linker) source(o operand, k kind) int32 {
	l.fits(o, k, o.reg.kind.bytes() == k.bytes())
	return l.wider(o, k)
}

// wider is source for instructions that take registers wider than k, too.
func (l *linker) wider(o operand, k kind) int32 {
	l.fits(o, k, o.reg.kind.bytes() >= k.bytes())
	switch o.kind {
	case opReg:
		if o.special != "" {
			return l.specialSlot(o.special)
		}
		return l.register(o)
	case opImm:
		v := o.imm
		switch {
		case o.float == noKind && k.float():
			l.fail("%s: an integer where a floating-point number belongs", l.full())
		case o.float == f64 && k == f32:
			v = word32(float32(get64(v)))
		case o.float == f32 && k == f64:
			l.fail("%s: a single where a double belongs", l.full())
		}
		return l.constant(v)
	case opSym:
		return l.symbol(o.sym, 0)
	}
	l.fail("%s: not an operand that can be read", l.full())
	return 0
}

func (l *linker) constant(v uint64) int32 { return l.constSlot(v, false) }

func (l *linker) constSlot(v uint64, global bool) int32 {
	key := constSlot{0, v, global}
	s, ok := l.consts[key]
	if !ok {
		s = l.newSlot()
		l.consts[key] = s
		l.prog.consts = append(l.prog.consts, constSlot{s, v, global})
	}
	return s
}

// symbol is the slot with a variable's address and an offset.
func (l *linker) symbol(s *symbol, offset uint64) int32 {
	if slices.Contains(l.extern, s) {
		// The parser knows no size; the block's memory begins at the end of the
		// static variables, and those of all that is called are placed later.
		slot := l.newSlot()
		l.prog.dynamics = append(l.prog.dynamics, constSlot{slot, offset, false})
		return slot
	}
	return l.constSlot(l.address(s)+offset, s.space == global)
}

func (l *linker) specialSlot(name string) int32 {
	if name == "WARP_SZ" {
		return l.constant(32)
	}
	if !knownSpecial(name) {
		l.fail("unknown register %s", name)
	}
	s, ok := l.special[name]
	if !ok {
		s = l.newSlot()
		l.special[name] = s
		l.prog.specials = append(l.prog.specials, specialSlot{s, name, strings.HasPrefix(name, "%ctaid.")})
	}
	return s
}

// predicate is the index of a predicate register.
func (l *linker) predicate(o operand) int32 {
	if o.kind != opReg || o.special != "" || o.reg.kind != pred {
		l.fail("%s: a predicate belongs here", l.full())
	}
	regs := l.regs[l.fn]
	if regs[o.reg.id] < 0 {
		regs[o.reg.id] = l.newPredicate()
	}
	return regs[o.reg.id]
}

func (l *linker) newPredicate() int32 {
	if l.prog.preds >= maxRegs {
		l.fail("more than %d predicates", maxRegs)
	}
	l.prog.preds++
	return int32(l.prog.preds - 1)
}

func (l *linker) label(o operand) int32 {
	if o.kind == opLabel {
		return l.labelNamed(o.name)
	}
	l.fail("%s needs a label", l.full())
	return 0
}

func (l *linker) labelNamed(name string) int32 {
	at, ok := l.fn.labels[name]
	if !ok {
		l.fail("label %s is not there", name)
	}
	return l.entry[l.fn] + int32(at)
}
