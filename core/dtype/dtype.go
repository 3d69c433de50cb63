// Package dtype names the element types and reduce operations of CCoIP and
// converts the two 16 bit floating point formats.
//
// The numeric values of Type and Op are the numbers on the wire (control
// spec, section 3). The C ABI of PCCL numbers them differently; FromABI and
// ABI are the explicit tables between the two.
package dtype

import "fmt"

// Type is the type of one tensor element. Its value is the number on the wire.
type Type uint8

// Element types, by wire number.
const (
	Uint8    Type = 0
	Int8     Type = 1
	Uint16   Type = 2
	Uint32   Type = 3
	Int16    Type = 4
	Int32    Type = 5
	Uint64   Type = 6
	Int64    Type = 7
	Float16  Type = 8
	BFloat16 Type = 9
	Float32  Type = 10
	Float64  Type = 11

	// NumTypes is the number of element types; every Type is below it.
	NumTypes = 12
)

// Types of less than a byte, which only quantizers write, packed as they define.
// They are the types of no tensor: Valid is false and Size 0. Their numbers travel
// among gopccl peers only.
const (
	Uint4 Type = 64
	Int4  Type = 65
)

var packed = map[Type]string{Uint4: "uint4", Int4: "int4"}

// Packed reports whether t is one of the types of less than a byte.
func (t Type) Packed() bool { return packed[t] != "" }

// Bits returns the bits of one element, 0 if t is neither valid nor packed.
func (t Type) Bits() int {
	if t.Packed() {
		return 4
	}
	return 8 * t.Size()
}

// class is what kind of numbers a type holds.
type class uint8

const (
	unsigned class = iota + 1
	signed
	floating
)

// The tables have the length of their literals, so that a type which one of them
// lacks does not compile.
var (
	typeNames [NumTypes]string = [...]string{
		"uint8", "int8", "uint16", "uint32", "int16", "int32",
		"uint64", "int64", "float16", "bfloat16", "float32", "float64",
	}
	typeSizes   [NumTypes]int   = [...]int{1, 1, 2, 4, 2, 4, 8, 8, 2, 2, 4, 8}
	typeClasses [NumTypes]class = [...]class{
		unsigned, signed, unsigned, unsigned, signed, signed,
		unsigned, signed, floating, floating, floating, floating,
	}
	// typeABI[wire] is the number of the same type in PCCL's public C enum.
	typeABI [NumTypes]uint8 = [...]uint8{0, 1, 3, 4, 2, 5, 6, 7, 8, 9, 10, 11}
)

// Valid reports whether t is one of the twelve element types.
func (t Type) Valid() bool { return t < NumTypes }

// Size returns the bytes of one element, 0 if t is not valid.
func (t Type) Size() int {
	if !t.Valid() {
		return 0
	}
	return typeSizes[t]
}

// String returns the field's name of the type, such as "float32".
func (t Type) String() string {
	if name := packed[t]; name != "" {
		return name
	}
	if !t.Valid() {
		return fmt.Sprintf("dtype(%d)", uint8(t))
	}
	return typeNames[t]
}

// IsFloat reports whether t is one of the four floating point types.
func (t Type) IsFloat() bool { return t.Valid() && typeClasses[t] == floating }

// IsSigned reports whether t is a signed integer type.
func (t Type) IsSigned() bool { return t.Valid() && typeClasses[t] == signed }

// ABI returns the number of t in the public C enum of PCCL 1.0.0.
func (t Type) ABI() uint8 { return typeABI[t] }

// TypeFromABI returns the type that PCCL's public C enum numbers n.
func TypeFromABI(n uint8) (Type, bool) {
	for t, a := range typeABI {
		if a == n {
			return Type(t), true
		}
	}
	return 0, false
}

// ParseWireType returns the type called name, those of less than a byte included.
func ParseWireType(name string) (Type, error) {
	for t, n := range packed {
		if n == name {
			return t, nil
		}
	}
	return ParseType(name)
}

// ParseType returns the type called name ("float32", "bfloat16", ...).
func ParseType(name string) (Type, error) {
	for t, n := range typeNames {
		if n == name {
			return Type(t), nil
		}
	}
	return 0, fmt.Errorf("unknown element type %q (known: %v)", name, typeNames)
}

// Op is a reduce operation. Its value is the number on the wire.
type Op uint8

// Reduce operations, by wire number. Set is internal (all-gather): dst := received.
const (
	Set  Op = 0
	Sum  Op = 1
	Avg  Op = 2
	Prod Op = 3
	Max  Op = 4
	Min  Op = 5

	// NumOps is the number of operations; every Op is below it.
	NumOps = 6
)

var opNames [NumOps]string = [...]string{"set", "sum", "avg", "prod", "max", "min"}

// Valid reports whether o is an operation that a user may ask for.
func (o Op) Valid() bool { return o >= Sum && o < NumOps }

// String returns the lower case name of the operation.
func (o Op) String() string {
	if o >= NumOps {
		return fmt.Sprintf("op(%d)", uint8(o))
	}
	return opNames[o]
}

// ABI returns the number of o in the public C enum of PCCL 1.0.0. Set has none.
func (o Op) ABI() (uint8, bool) {
	if !o.Valid() {
		return 0, false
	}
	return uint8(o) - 1, true
}

// OpFromABI returns the operation that PCCL's public C enum numbers n.
func OpFromABI(n uint8) (Op, bool) {
	o := Op(n + 1)
	return o, n < NumOps-1 && o.Valid()
}

// ParseOp returns the operation called name ("sum", "avg", ...).
func ParseOp(name string) (Op, error) {
	for o, n := range opNames {
		if n == name && Op(o).Valid() {
			return Op(o), nil
		}
	}
	return 0, fmt.Errorf("unknown reduce operation %q (known: %v)", name, opNames[1:])
}

// Unhandled panics: a kernel or table was asked for a type or an operation that
// it does not know. Where every type or operation has a case it is the default
// one, so that a forgotten case is heard of and no input is taken for a result.
func Unhandled(who string, t fmt.Stringer) { panic(who + ": nothing is there for " + t.String()) }
