package ptxtest

import (
	"math"
	"strconv"
	"strings"
)

// What a module may ask for at most. A real compiler has such limits, too;
// here they also bound the memory that a hostile text can claim.
const (
	maxSource = 16 << 20
	maxShared = 48 << 10 // static, per block
	maxLocal  = 64 << 10 // per thread
	maxConst  = 64 << 10
	maxGlobal = 1 << 20
	maxParams = 4352
	maxRegs   = 1 << 16 // used ones, per kernel with all that it calls
	maxNest   = 64
)

// scope is a pair of braces.
type scope struct {
	up     *scope
	ranges map[string]struct {
		kind  kind
		count int
	}
	regs map[string]register
	syms map[string]*symbol
}

type parser struct {
	toks []token
	at   int
	mod  *module
	top  *scope
	cur  *scope
	fn   *function
	nest int
}

func newScope(up *scope) *scope {
	return &scope{up, map[string]struct {
		kind  kind
		count int
	}{}, map[string]register{}, map[string]*symbol{}}
}

func (p *parser) peek() string { return p.toks[p.at].text }
func (p *parser) line() int    { return p.toks[p.at].line }

func (p *parser) next() token {
	t := p.toks[p.at]
	if t.text == "" {
		fail(t.line, "unexpected end")
	}
	p.at++
	return t
}

func (p *parser) expect(text string) {
	if t := p.next(); t.text != text {
		fail(t.line, "expected %q, found %q", text, t.text)
	}
}

func (p *parser) accept(text string) bool {
	if p.peek() != text {
		return false
	}
	p.at++
	return true
}

// word returns the next token, which has to be a name.
func (p *parser) word() string {
	t := p.next()
	if !wordByte(t.text[0]) {
		fail(t.line, "expected a name, found %q", t.text)
	}
	return t.text
}

// number returns the next token as a size that is at most limit.
func (p *parser) number(limit int) int {
	t := p.next()
	v, err := strconv.ParseUint(strings.TrimSuffix(t.text, "U"), 0, 64)
	if err != nil || v > uint64(limit) {
		fail(t.line, "expected a number up to %d, found %q", limit, t.text)
	}
	return int(v)
}

// parse reads a whole module. Errors are *syntaxError.
func parse(src string) (m *module, err error) {
	defer func() {
		if e, ok := recover().(*syntaxError); ok {
			m, err = nil, e
		} else if r := recover(); r != nil {
			panic(r)
		}
	}()
	if len(src) > maxSource {
		fail(1, "%d bytes are more than the interpreter takes", len(src))
	}
	p := &parser{toks: lex(src), mod: &module{funcs: map[string]*function{}}}
	p.top = newScope(nil)
	p.cur = p.top
	for p.peek() != "" {
		p.declaration()
	}
	if p.mod.version == 0 || p.mod.target == 0 {
		fail(p.line(), ".version or .target is missing")
	}
	return p.mod, nil
}

func (p *parser) skipLine() {
	line := p.toks[p.at-1].line
	for p.peek() != "" && p.line() == line {
		p.at++
	}
}

func (p *parser) skipBraces() {
	p.expect("{")
	for depth := 1; depth > 0; {
		switch p.next().text {
		case "{":
			depth++
		case "}":
			depth--
		}
	}
}

func (p *parser) declaration() {
	t := p.next()
	switch t.text {
	case ".version":
		v := p.next()
		major, minor, _ := strings.Cut(v.text, ".")
		a, err1 := strconv.Atoi(major)
		b, err2 := strconv.Atoi(minor)
		if err1 != nil || err2 != nil || a < 1 || a > 99 || b < 0 || b > 9 {
			fail(v.line, "bad version %q", v.text)
		}
		p.mod.version = 10*a + b
	case ".target":
		v := p.next()
		n, err := strconv.Atoi(strings.TrimRight(strings.TrimPrefix(v.text, "sm_"), "af"))
		if err != nil || n <= 0 {
			fail(v.line, "bad target %q", v.text)
		}
		p.mod.target = n
		for p.accept(",") {
			p.word()
		}
	case ".address_size":
		if n := p.number(64); n != 64 {
			fail(t.line, "addresses have 64 bits")
		}
	case ".file", ".loc":
		p.skipLine()
	case ".section":
		p.word()
		p.skipBraces()
	case ".pragma":
		p.skipTo(";")
	case ".visible", ".extern", ".weak", ".common":
	case ".entry", ".func":
		p.function(t.text == ".entry")
	case ".global", ".const", ".shared":
		s := p.variable(spaces[t.text[1:]])
		p.mod.place(s, p.line())
		p.declare(s)
	case ";":
	default:
		fail(t.line, "unexpected %q", t.text)
	}
}

func (p *parser) skipTo(text string) {
	for p.next().text != text {
	}
}

func (p *parser) declare(s *symbol) {
	if p.cur.syms[s.name] != nil {
		fail(p.line(), "%s is declared twice", s.name)
	}
	p.cur.syms[s.name] = s
}

var sizeLimits = [...]int{global: maxGlobal, shared: maxShared, constant: maxConst, local: maxLocal, param: maxParams}

// variable reads what follows .global, .const, .shared, .local or .param: one
// variable, with its initial value. The semicolon is read, but for parameters.
func (p *parser) variable(sp space) *symbol {
	s := &symbol{space: sp}
	unit, lanes := 0, 1
	pointer := false
	for s.name == "" {
		t := p.next()
		switch {
		case t.text == ".align" && pointer: // what a parameter points to
			p.number(1 << 12)
		case t.text == ".align":
			s.align = p.number(1 << 12)
			if s.align == 0 || s.align&(s.align-1) != 0 {
				fail(t.line, "alignment %d is not a power of two", s.align)
			}
		case t.text == ".v2":
			lanes = 2
		case t.text == ".v4":
			lanes = 4
		case t.text == ".ptr":
			pointer = true
		case spaces[strings.TrimPrefix(t.text, ".")] != 0 && t.text[0] == '.': // attributes of a parameter
		case t.text[0] == '.':
			k := kinds[t.text[1:]]
			if k == noKind || k == pred {
				fail(t.line, "no type of a variable: %q", t.text)
			}
			unit = k.bytes()
		case wordByte(t.text[0]):
			s.name = t.text
		default:
			fail(t.line, "expected a name, found %q", t.text)
		}
	}
	if unit == 0 {
		fail(p.line(), "%s has no type", s.name)
	}
	if s.align == 0 {
		s.align = unit * lanes
	}
	limit := sizeLimits[sp]
	s.size = unit * lanes
	for p.accept("[") {
		n := 0
		if p.peek() != "]" {
			n = p.number(limit)
		}
		if s.size *= n; s.size > limit {
			fail(p.line(), "%s is larger than %d bytes", s.name, limit)
		}
		p.expect("]")
	}
	if p.accept("=") {
		s.init = p.initial(unit, s.size)
	}
	if sp != param || p.nest > 0 {
		p.expect(";")
	}
	return s
}

// initial reads an initial value of at most size bytes.
func (p *parser) initial(unit, size int) []byte {
	data := make([]byte, 0, 64)
	var value func(depth int)
	value = func(depth int) {
		if p.accept("{") {
			if depth > maxNest {
				fail(p.line(), "too many braces")
			}
			for !p.accept("}") {
				value(depth + 1)
				if p.peek() != "}" {
					p.expect(",")
				}
			}
			return
		}
		line := p.line()
		v := p.operand()
		if v.kind != opImm {
			fail(line, "only numbers can be initial values here")
		}
		if len(data)+unit > size {
			fail(line, "more initial values than room")
		}
		for i := range unit {
			data = append(data, byte(v.imm>>(8*i)))
		}
	}
	value(0)
	return data
}

func (p *parser) paramList() []*symbol {
	var list []*symbol
	p.expect("(")
	offset := 0
	for !p.accept(")") {
		if len(list) > 0 {
			p.expect(",")
		}
		line := p.line()
		if d := p.next().text; d != ".param" {
			fail(line, "expected a parameter, found %q", d)
		}
		s := p.variable(param)
		s.arg = true
		offset = (offset + s.align - 1) &^ (s.align - 1)
		s.addr = uint64(offset)
		if offset += s.size; offset > maxParams {
			fail(line, "parameters have more than %d bytes", maxParams)
		}
		p.declare(s)
		list = append(list, s)
	}
	return list
}

func (p *parser) function(entry bool) {
	fn := &function{entry: entry, labels: map[string]int{}, tables: map[string][]string{}, line: p.line()}
	p.cur = newScope(p.top)
	if p.peek() == "(" {
		fn.returns = p.paramList()
	}
	fn.name = p.word()
	if p.peek() == "(" {
		fn.params = p.paramList()
	}
	for p.peek() != "{" && p.peek() != ";" {
		t := p.next()
		switch t.text {
		case ".maxntid", ".reqntid":
			n := p.number(1 << 20)
			for p.accept(",") {
				n *= p.number(1 << 10)
			}
			fn.threads = uint32(min(n, 1<<20))
		case ".minnctapersm", ".maxnctapersm", ".maxnreg":
			p.number(1 << 20)
		case ".noreturn":
		case ".pragma":
			p.skipTo(";")
		default:
			fail(t.line, "unexpected %q", t.text)
		}
	}
	if old := p.mod.funcs[fn.name]; old != nil && !old.declare {
		if p.peek() == "{" {
			fail(fn.line, "%s is defined twice", fn.name)
		}
	} else {
		p.mod.funcs[fn.name] = fn
		if old == nil {
			p.mod.order = append(p.mod.order, fn.name)
		}
	}
	if p.accept(";") {
		fn.declare = true
		p.cur = p.top
		return
	}
	p.fn = fn
	p.expect("{")
	p.block()
	p.fn = nil
	p.cur = p.top
}

// block reads statements up to the closing brace.
func (p *parser) block() {
	if p.nest++; p.nest > maxNest {
		fail(p.line(), "too many braces")
	}
	for !p.accept("}") {
		p.statement()
	}
	p.nest--
}

func (p *parser) statement() {
	t := p.toks[p.at]
	switch {
	case t.text == "{":
		p.at++
		p.cur = newScope(p.cur)
		p.block()
		p.cur = p.cur.up
	case t.text == ".reg":
		p.at++
		p.registers()
	case t.text == ".shared" || t.text == ".local" || t.text == ".param":
		p.at++
		s := p.variable(spaces[t.text[1:]])
		p.declare(s)
		p.fn.locals = append(p.fn.locals, s)
	case t.text == ".loc" || t.text == ".file":
		p.at++
		p.skipLine()
	case t.text == ".pragma":
		p.skipTo(";")
	case t.text == ";":
		p.at++
	case p.toks[min(p.at+1, len(p.toks)-1)].text == ":" && wordByte(t.text[0]):
		p.at += 2
		if _, twice := p.fn.labels[t.text]; twice || p.fn.tables[t.text] != nil {
			fail(t.line, "label %s is declared twice", t.text)
		}
		if p.accept(".branchtargets") {
			targets := []string{p.word()}
			for p.accept(",") {
				targets = append(targets, p.word())
			}
			p.expect(";")
			p.fn.tables[t.text] = targets
			return
		}
		p.fn.labels[t.text] = len(p.fn.body)
	default:
		p.instruction()
	}
}

func (p *parser) registers() {
	k := noKind
	for strings.HasPrefix(p.peek(), ".") {
		t := p.next()
		if k = kinds[t.text[1:]]; k == noKind {
			fail(t.line, "no type of a register: %q", t.text)
		}
	}
	if k == noKind {
		fail(p.line(), "registers without a type")
	}
	for {
		line := p.line()
		name := p.word()
		if p.accept("<") {
			p.cur.ranges[name] = struct {
				kind  kind
				count int
			}{k, p.number(math.MaxInt32)}
			p.expect(">")
		} else {
			if _, twice := p.cur.regs[name]; twice {
				fail(line, "%s is declared twice", name)
			}
			p.cur.regs[name] = p.newRegister(k)
		}
		if !p.accept(",") {
			break
		}
	}
	p.expect(";")
}

func (p *parser) newRegister(k kind) register {
	if p.fn.regs >= maxRegs {
		fail(p.line(), "%s uses more than %d registers", p.fn.name, maxRegs)
	}
	p.fn.regs++
	return register{k, p.fn.regs - 1}
}

func (p *parser) instruction() {
	st := statement{line: p.line()}
	if p.accept("@") {
		g := p.operand()
		if g.kind != opReg || g.special != "" || g.reg.kind != pred {
			fail(st.line, "a guard has to be a predicate")
		}
		st.guard = &g
	}
	parts := strings.Split(p.word(), ".")
	st.name, st.mods = parts[0], parts[1:]
	for p.accept(":") { // mov.b64.x::y, cp.async.ca::z
		p.expect(":")
		fail(st.line, "unsupported modifier of %s", st.name)
	}
	for p.peek() != ";" {
		if len(st.args) > 0 {
			p.expect(",")
		}
		st.args = append(st.args, p.operand())
	}
	p.at++
	p.fn.body = append(p.fn.body, st)
}

func (p *parser) operand() operand {
	if p.nest++; p.nest > maxNest {
		fail(p.line(), "too many brackets")
	}
	defer func() { p.nest-- }()
	t := p.next()
	switch c := t.text[0]; {
	case t.text == "!":
		o := p.operand()
		o.not = !o.not
		return o
	case t.text == "-":
		o := p.operand()
		if o.kind != opImm || o.float != noKind {
			fail(t.line, "- before something that is not an integer")
		}
		o.imm = -o.imm
		return o
	case t.text == "{" || t.text == "(":
		o := operand{kind: opVector}
		end := "}"
		if t.text == "(" {
			o.kind, end = opList, ")"
		}
		for !p.accept(end) {
			if len(o.list) > 0 {
				p.expect(",")
			}
			o.list = append(o.list, p.operand())
		}
		return o
	case t.text == "[":
		o := operand{kind: opAddr, list: []operand{p.operand()}}
		for p.peek() == "+" || p.peek() == "-" {
			minus := p.next().text == "-"
			off := p.operand()
			if off.kind != opImm || off.float != noKind {
				fail(t.line, "an offset has to be a number")
			}
			if minus {
				off.imm = -off.imm
			}
			o.imm += off.imm
		}
		p.expect("]")
		return o
	case t.text == "_":
		return operand{kind: opSink}
	case c >= '0' && c <= '9':
		return immediate(t)
	case wordByte(c) && c != '.':
		o := p.name(t)
		if p.accept("|") {
			o = operand{kind: opPair, list: []operand{o, p.operand()}}
		}
		return o
	default:
		fail(t.line, "unexpected %q", t.text)
		return operand{}
	}
}

func immediate(t token) operand {
	text := t.text
	if len(text) == 10 && (text[:2] == "0f" || text[:2] == "0F") {
		if v, err := strconv.ParseUint(text[2:], 16, 32); err == nil {
			return operand{kind: opImm, imm: v, float: f32}
		}
	}
	if len(text) == 18 && (text[:2] == "0d" || text[:2] == "0D") {
		if v, err := strconv.ParseUint(text[2:], 16, 64); err == nil {
			return operand{kind: opImm, imm: v, float: f64}
		}
	}
	if v, err := strconv.ParseUint(strings.TrimSuffix(text, "U"), 0, 64); err == nil && !strings.Contains(text, "_") {
		return operand{kind: opImm, imm: v}
	}
	if v, err := strconv.ParseFloat(text, 64); err == nil && strings.Contains(text, ".") {
		return operand{kind: opImm, imm: math.Float64bits(v), float: f64}
	}
	fail(t.line, "bad number %q", text)
	return operand{}
}

// name resolves what a word stands for.
func (p *parser) name(t token) operand {
	for s := p.cur; s != nil; s = s.up {
		if r, ok := s.regs[t.text]; ok {
			return operand{kind: opReg, reg: r}
		}
		if sym := s.syms[t.text]; sym != nil {
			return operand{kind: opSym, sym: sym, name: t.text}
		}
		stem := strings.TrimRight(t.text, "0123456789")
		if r, ok := s.ranges[stem]; ok && stem != t.text {
			digits := t.text[len(stem):]
			n, err := strconv.Atoi(digits)
			if err != nil || n >= r.count || len(digits) > 1 && digits[0] == '0' {
				fail(t.line, "register %s is not declared", t.text)
			}
			reg := p.newRegister(r.kind)
			s.regs[t.text] = reg
			return operand{kind: opReg, reg: reg}
		}
	}
	if t.text[0] == '%' || t.text == "WARP_SZ" {
		return operand{kind: opReg, special: t.text}
	}
	return operand{kind: opLabel, name: t.text}
}
