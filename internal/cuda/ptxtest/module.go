package ptxtest

// spaces of addresses.
type space uint8

const (
	generic space = iota
	global
	shared
	constant
	local
	param
)

var spaces = map[string]space{"global": global, "shared": shared, "const": constant, "local": local, "param": param}

// symbol is a variable in memory.
type symbol struct {
	name  string
	space space
	align int
	size  int // bytes; 0 for the dynamic shared memory
	init  []byte
	addr  uint64 // in its space, once it is placed
	arg   bool   // a parameter of the function itself
}

// register is declared by a .reg of the function that owns it.
type register struct {
	kind kind
	id   int // among the function's registers
}

type operandKind uint8

const (
	opReg operandKind = iota
	opImm
	opSym    // address of a variable
	opLabel  // or a function, or anything else known by name only
	opVector // {a, b}
	opAddr   // [list[0]+imm]
	opPair   // a|b
	opList   // (a, b)
	opSink   // _
)

type operand struct {
	kind    operandKind
	not     bool // !%p
	reg     register
	special string // %tid.x
	imm     uint64
	float   kind // of an immediate that is a floating-point number
	sym     *symbol
	name    string
	list    []operand
}

// statement is one instruction of a function, with its modifiers.
type statement struct {
	line  int
	guard *operand
	name  string
	mods  []string
	args  []operand
}

type function struct {
	name    string
	line    int
	entry   bool
	params  []*symbol
	returns []*symbol
	body    []statement
	labels  map[string]int // index into body
	tables  map[string][]string
	locals  []*symbol // .local, .shared and call parameters of the body
	regs    int
	threads uint32 // of a block at most, 0: no limit given
	declare bool   // without a body
}

type module struct {
	version int // 10*major + minor
	target  int
	globals []*symbol
	// initial contents
	constants, variables []byte
	order                []string
	funcs                map[string]*function
}

// place gives a variable of the module its address among the constants or the
// globals. Shared variables are placed in each kernel.
func (m *module) place(s *symbol, line int) {
	m.globals = append(m.globals, s)
	data := &m.constants
	switch s.space {
	case shared:
		return
	case global:
		data = &m.variables
	}
	at := (len(*data) + s.align - 1) &^ (s.align - 1)
	if at+s.size > sizeLimits[s.space] {
		fail(line, "variables have more than %d bytes", sizeLimits[s.space])
	}
	*data = append(*data, make([]byte, at+s.size-len(*data))...)
	copy((*data)[at:], s.init)
	s.addr = uint64(at)
}
