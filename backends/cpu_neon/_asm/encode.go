package main

import "fmt"

// reg is one of the general registers R0 to R15, vec one of V0 to V31.
type (
	reg int
	vec int
)

func (r reg) String() string { return fmt.Sprintf("R%d", int(r)) }
func (v vec) String() string { return fmt.Sprintf("V%d", int(v)) }

// scratch is for constants on their way to a vector.
const scratch = reg(15)

// shape is an arrangement of lanes: how many bits each has, and whether all
// 128 bits of a register take part.
type shape struct {
	bits  int
	whole bool
}

var (
	b16 = shape{8, true}
	h8  = shape{16, true}
	s4  = shape{32, true}
	d2  = shape{64, true}
)

// half is the shape of lanes of half the size in the lower half of a register,
// or, whole being true, in all of it.
func (s shape) half(whole bool) shape { return shape{s.bits / 2, whole} }

func (s shape) lanes() int {
	if s.whole {
		return 128 / s.bits
	}
	return 64 / s.bits
}

func (s shape) letter() byte { return "bhsd"[s.log()] }

// log is the two bits that mean the size of lanes in most encodings.
func (s shape) log() int { return map[int]int{8: 0, 16: 1, 32: 2, 64: 3}[s.bits] }

// arm and plan9 are v with the shape as the two assemblers write it.
func (v vec) arm(s shape) string { return fmt.Sprintf("v%d.%d%c", int(v), s.lanes(), s.letter()) }

func (v vec) plan9(s shape) string {
	return fmt.Sprintf("V%d.%c%d", int(v), s.letter()-'a'+'A', s.lanes())
}

// kind says what the two bits at 22 mean.
type kind int

const (
	integer kind = iota // the size of a lane
	float               // the lower one: lanes of 64 bits; the upper one belongs to the opcode
	logical             // part of the opcode
)

// opcode is an instruction of a group: bit 29, the two bits at 22 as far as
// they belong to the opcode, the opcode's field, and the name in Go's
// assembler if it has it.
type opcode struct {
	kind  kind
	u, at uint32
	op    uint32
	plan9 string
}

// Instructions with two sources of equal shape (Arm Architecture Reference
// Manual, C4.1, "Advanced SIMD three same").
var threeSame = map[string]opcode{
	"add":   {integer, 0, 0, 0b10000, "VADD"},
	"sub":   {integer, 1, 0, 0b10000, "VSUB"},
	"mul":   {integer, 0, 0, 0b10011, ""},
	"smax":  {integer, 0, 0, 0b01100, ""},
	"smin":  {integer, 0, 0, 0b01101, ""},
	"umax":  {integer, 1, 0, 0b01100, "VUMAX"},
	"umin":  {integer, 1, 0, 0b01101, "VUMIN"},
	"cmgt":  {integer, 0, 0, 0b00110, ""},
	"cmhi":  {integer, 1, 0, 0b00110, ""},
	"cmtst": {integer, 0, 0, 0b10001, "VCMTST"},

	"and": {logical, 0, 0, 0b00011, "VAND"},
	"orr": {logical, 0, 2, 0b00011, "VORR"},
	"orn": {logical, 0, 3, 0b00011, ""},
	"eor": {logical, 1, 0, 0b00011, "VEOR"},
	"bsl": {logical, 1, 1, 0b00011, "VBSL"},
	"bit": {logical, 1, 2, 0b00011, "VBIT"},
	"bif": {logical, 1, 3, 0b00011, "VBIF"},

	"fadd":   {float, 0, 0, 0b11010, ""},
	"fsub":   {float, 0, 2, 0b11010, ""},
	"fmul":   {float, 1, 0, 0b11011, ""},
	"fdiv":   {float, 1, 0, 0b11111, ""},
	"fmla":   {float, 0, 0, 0b11001, "VFMLA"},
	"fmax":   {float, 0, 0, 0b11110, ""},
	"fmaxnm": {float, 0, 0, 0b11000, ""},
	"fminnm": {float, 0, 2, 0b11000, ""},
	"fcmgt":  {float, 1, 2, 0b11100, ""},
	"fcmeq":  {float, 0, 0, 0b11100, ""},
}

// Instructions with one source ("two-register miscellaneous"). Narrowing and
// widening ones are named after the narrow shape; with a 2 behind the name it
// is the upper half of the narrow register.
var twoSame = map[string]opcode{
	"scvtf":  {float, 0, 0, 0b11101, ""},
	"ucvtf":  {float, 1, 0, 0b11101, ""},
	"fcvtzs": {float, 0, 2, 0b11011, ""},
}

var narrowing = map[string]opcode{
	"sqxtn":  {integer, 0, 0, 0b10100, ""},
	"sqxtun": {integer, 1, 0, 0b10010, ""},
	"fcvtn":  {float, 0, 0, 0b10110, ""},
}

var widening = map[string]opcode{
	"fcvtl": {float, 0, 0, 0b10111, ""},
	"shll":  {integer, 1, 0, 0b10011, ""}, // by the size of the narrow lanes
}

// Instructions that take all lanes to one ("across lanes").
var across = map[string]opcode{
	"umaxv":   {integer, 1, 0, 0b01010, ""},
	"uminv":   {integer, 1, 0, 0b11010, ""},
	"fmaxnmv": {float, 1, 0, 0b01100, ""},
	"fminnmv": {float, 1, 2, 0b01100, ""},
}

// Instructions that take lanes of two sources in turn ("permute").
var permute = map[string]opcode{
	"uzp1": {integer, 0, 0, 0b001, "VUZP1"},
	"uzp2": {integer, 0, 0, 0b101, "VUZP2"},
}

// Shifts by a constant ("shift by immediate").
var shifts = map[string]opcode{
	"shl":  {integer, 0, 0, 0b01010, "VSHL"},
	"ushr": {integer, 1, 0, 0b00000, "VUSHR"},
	"sri":  {integer, 1, 0, 0b01000, "VSRI"},
}

func lookup(group map[string]opcode, name string) opcode {
	o, known := group[name]
	if !known {
		panic("no instruction " + name)
	}
	return o
}

// field is the two bits at 22 for lanes of shape s.
func (o opcode) field(s shape) uint32 {
	switch o.kind {
	case integer:
		return uint32(s.log())
	case float:
		return o.at | uint32(s.log()&1)
	}
	return o.at
}

func flag30(whole bool) uint32 {
	if whole {
		return 1 << 30
	}
	return 0
}

// word writes an instruction that Go's assembler lacks.
func (k *kernel) word(w uint32, mnemonic string) { k.ins("WORD $0x%08x // %s", w, mnemonic) }

// op is d := n op m for lanes of shape s; fmla adds to d, and bsl, bit and bif
// choose between bits of d, n and m.
func (k *kernel) op(name string, s shape, d, n, m vec) {
	o := lookup(threeSame, name)
	if o.kind == logical {
		s = b16
	}
	if o.plan9 != "" {
		k.ins("%s %s, %s, %s", o.plan9, m.plan9(s), n.plan9(s), d.plan9(s))
		return
	}
	w := 0x0e200400 | flag30(s.whole) | o.u<<29 | o.field(s)<<22 | uint32(m)<<16 | o.op<<11 | uint32(n)<<5 | uint32(d)
	k.word(w, fmt.Sprintf("%s %s, %s, %s", name, d.arm(s), n.arm(s), m.arm(s)))
}

// move copies a vector.
func (k *kernel) move(d, n vec) { k.ins("VMOV %s, %s", n.plan9(b16), d.plan9(b16)) }

func misc(o opcode, field uint32, whole bool, d, n vec) uint32 {
	return 0x0e200800 | flag30(whole) | o.u<<29 | field<<22 | o.op<<12 | uint32(n)<<5 | uint32(d)
}

// convert is d := op(n), all lanes of shape s.
func (k *kernel) convert(name string, s shape, d, n vec) {
	o := lookup(twoSame, name)
	k.word(misc(o, o.field(s), true, d, n), fmt.Sprintf("%s %s, %s", name, d.arm(s), n.arm(s)))
}

// narrow puts the lanes of n, of shape wide, into the lower half of d, or,
// upper, into its upper half.
func (k *kernel) narrow(name string, wide shape, d, n vec, upper bool) {
	o, s := lookup(narrowing, name), wide.half(upper)
	if upper {
		name += "2"
	}
	k.word(misc(o, halfField(o, s), upper, d, n), fmt.Sprintf("%s %s, %s", name, d.arm(s), n.arm(wide)))
}

// widen puts the lower half of the lanes of n, or, upper, the upper half, into
// d with lanes of shape wide.
func (k *kernel) widen(name string, wide shape, d, n vec, upper bool) {
	o, s := lookup(widening, name), wide.half(upper)
	mnemonic := name
	if upper {
		mnemonic += "2"
	}
	mnemonic += fmt.Sprintf(" %s, %s", d.arm(wide), n.arm(s))
	if name == "shll" {
		mnemonic += fmt.Sprintf(", #%d", s.bits)
	}
	k.word(misc(o, halfField(o, s), upper, d, n), mnemonic)
}

// halfField is the field for conversions between sizes: floats of 16 and 32
// bits are 0, of 32 and 64 bits 1.
func halfField(o opcode, narrow shape) uint32 {
	if o.kind == float {
		return uint32(narrow.log() - 1)
	}
	return o.field(narrow)
}

// extend makes unsigned integers of twice the size of half the lanes of n.
func (k *kernel) extend(wide shape, d, n vec, upper bool) {
	name := "VUXTL"
	if upper {
		name += "2"
	}
	k.ins("%s %s, %s", name, n.plan9(wide.half(upper)), d.plan9(wide))
}

// reduceLanes puts one value made of all four lanes of n into the lowest of d.
func (k *kernel) reduceLanes(name string, d, n vec) {
	o := lookup(across, name)
	field := o.at
	if o.kind == integer {
		field = o.field(s4)
	}
	w := 0x0e300800 | 1<<30 | o.u<<29 | field<<22 | o.op<<12 | uint32(n)<<5 | uint32(d)
	k.word(w, fmt.Sprintf("%s s%d, %s", name, int(d), n.arm(s4)))
}

// zip is one of the permutations.
func (k *kernel) zip(name string, s shape, d, n, m vec) {
	k.ins("%s %s, %s, %s", lookup(permute, name).plan9, m.plan9(s), n.plan9(s), d.plan9(s))
}

// shift is d := n shifted by bits; sri keeps the upper bits of d.
func (k *kernel) shift(name string, s shape, d, n vec, bits int) {
	k.ins("%s $%d, %s, %s", lookup(shifts, name).plan9, bits, n.plan9(s), d.plan9(s))
}

// loadPair and storePair move 32 bytes at p+offset; loadOne and storeOne move
// 16 bytes at p and advance p.
func (k *kernel) loadPair(p reg, offset int, v, w vec) {
	k.ins("FLDPQ %d(%v), (F%d, F%d)", offset, p, int(v), int(w))
}

func (k *kernel) storePair(p reg, offset int, v, w vec) {
	k.ins("FSTPQ (F%d, F%d), %d(%v)", int(v), int(w), offset, p)
}

func (k *kernel) loadOne(p reg, v vec)  { k.ins("FMOVQ.P 16(%v), F%d", p, int(v)) }
func (k *kernel) storeOne(p reg, v vec) { k.ins("FMOVQ.P F%d, 16(%v)", int(v), p) }

// advance adds n bytes to pointers.
func (k *kernel) advance(n int, ps ...reg) {
	for _, p := range ps {
		k.ins("ADD $%d, %v, %v", n, p, p)
	}
}

// loadFour deals out 64 bytes at p in words of 32 bits, word i of every 16
// bytes to v[i], and advances p.
func (k *kernel) loadFour(p reg, v []vec) {
	k.ins("VLD4.P 64(%v), [%s, %s, %s, %s]", p, v[0].plan9(s4), v[1].plan9(s4), v[2].plan9(s4), v[3].plan9(s4))
}
