package ptxtest

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const header = ".version 6.0\n.target sm_52\n.address_size 64\n"

// registerName is a register of a size.
func registerName(k kind, n string) string {
	return map[int]string{1: "%h", 2: "%h", 4: "%r", 8: "%d"}[k.bytes()] + n
}

// one is a kernel with one instruction, `op result, a, b, c`: the first kind is
// the result's. Operands and results are 64 bits each in memory. Names are of
// the form %r1, %d2; the last of them is the result, 0.
func one(op string, kinds ...kind) string {
	var b strings.Builder
	b.WriteString(header + `.visible .entry k(.param .u64 out, .param .u64 in, .param .u32 n) {
	.reg .pred %p<9>; .reg .b16 %h<5>; .reg .b32 %r<5>; .reg .b64 %d<5>;
	.reg .b32 %i, %n; .reg .b64 %at, %to, %v;
	mov.u32 %i, %tid.x; mad.lo.s32 %i, %ctaid.x, %ntid.x, %i;
	ld.param.u32 %n, [n]; setp.ge.u32 %p0, %i, %n; @%p0 bra END;
	ld.param.u64 %at, [in]; ld.param.u64 %to, [out];
	mul.wide.u32 %v, %i, 24; add.s64 %at, %at, %v; mul.wide.u32 %v, %i, 8; add.s64 %to, %to, %v;
	mov.u64 %d0, -1; mov.u32 %r0, -1; mov.u16 %h0, -1;
`)
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = registerName(k, fmt.Sprint(i))
		if i > 0 {
			fmt.Fprintf(&b, "\tld.global.u%d %s, [%%at+%d];\n", max(16, 8*k.bytes()), names[i], 8*(i-1))
		}
	}
	if strings.Contains(op, "$") {
		b.WriteString(strings.NewReplacer("$0", names[0], "$1", names[1], "$2", names[min(2, len(names)-1)], "$3", names[len(names)-1]).Replace(op))
	} else {
		fmt.Fprintf(&b, "\t%s %s;\n", op, strings.Join(names, ", "))
	}
	fmt.Fprintf(&b, "\n\tst.global.u%d [%%to], %s;\nEND: ret;\n}\n", max(16, 8*kinds[0].bytes()), names[0])
	return b.String()
}

// evaluate runs one for each triple of operands.
func evaluate(t *testing.T, o Options, src string, operands [][3]uint64) []uint64 {
	m := start(t, o, []byte(src))
	flat := make([]uint64, 0, 3*len(operands))
	for _, v := range operands {
		flat = append(flat, v[:]...)
	}
	out := m.give(make([]uint64, len(operands)))
	require.NoError(t, m.launch("k", uint32(len(operands)+127)/128, 128, 0, out, m.give(flat), uint32(len(operands))))
	got := make([]uint64, len(operands))
	m.take(out, got)
	return got
}

// integersOf are numbers whose bits have edges everywhere.
func integersOf(r *rand.Rand, n int) [][3]uint64 {
	list := make([][3]uint64, n)
	for i := range list {
		for j := range 3 {
			v := r.Uint64()
			switch r.IntN(6) {
			case 0:
				v = []uint64{0, 1, ^uint64(0), 1 << 63, 1<<63 - 1, 1 << 31, 1<<31 - 1, 1 << 15, 0x80008000_80008000, 0xffffffff}[r.IntN(10)]
			case 1:
				v >>= r.IntN(64)
			case 2:
				v = uint64(int64(v) >> r.IntN(64))
			case 3:
				v &= 0x1f
			}
			list[i][j] = v
		}
	}
	return list
}

type integerCase struct {
	op   string
	want func(k kind, a, b, c *big.Int, raw [3]uint64) *big.Int
	args int
	// kinds of the result and of the operands if they are not the type's
	result, second, third func(k kind) kind
}

func shifted(k kind) kind { return u32 }

func twice(k kind) kind {
	return map[kind]kind{u16: u32, s16: s32, u32: u64, s32: s64}[k]
}

var zero = big.NewInt(0)

// integerCases are the integer operations and what they are, in numbers
// without a size.
func integerCases() []integerCase { return slices.Concat(arithmeticCases(), bitCases()) }

func arithmeticCases() []integerCase {
	op := func(f func(z, a, b *big.Int) *big.Int) func(kind, *big.Int, *big.Int, *big.Int, [3]uint64) *big.Int {
		return func(_ kind, a, b, _ *big.Int, _ [3]uint64) *big.Int { return f(new(big.Int), a, b) }
	}
	product := func(a, b *big.Int) *big.Int { return new(big.Int).Mul(a, b) }
	upper := func(k kind, a, b *big.Int) *big.Int { return new(big.Int).Rsh(product(a, b), uint(8*k.bytes())) }
	return []integerCase{
		{op: "add.T", args: 2, want: op((*big.Int).Add)},
		{op: "sub.T", args: 2, want: op((*big.Int).Sub)},
		{op: "mul.lo.T", args: 2, want: op((*big.Int).Mul)},
		{op: "mul.hi.T", args: 2, want: func(k kind, a, b, _ *big.Int, _ [3]uint64) *big.Int { return upper(k, a, b) }},
		{op: "mul.wide.T", args: 2, want: op((*big.Int).Mul), result: twice},
		{op: "mad.lo.T", args: 3, want: func(_ kind, a, b, c *big.Int, _ [3]uint64) *big.Int {
			return new(big.Int).Add(product(a, b), c)
		}},
		{op: "mad.hi.T", args: 3, want: func(k kind, a, b, c *big.Int, _ [3]uint64) *big.Int {
			return new(big.Int).Add(upper(k, a, b), c)
		}},
		{op: "mad.wide.T", args: 3, want: func(k kind, a, b, c *big.Int, raw [3]uint64) *big.Int {
			return new(big.Int).Add(product(a, b), bigOf(twice(k), raw[2]))
		}, result: twice, third: twice},
		{op: "div.T", args: 2, want: func(k kind, a, b, _ *big.Int, _ [3]uint64) *big.Int {
			if b.Sign() == 0 {
				return big.NewInt(-1)
			}
			return new(big.Int).Quo(a, b)
		}},
		{op: "rem.T", args: 2, want: func(k kind, a, b, _ *big.Int, _ [3]uint64) *big.Int {
			if b.Sign() == 0 {
				return a
			}
			return new(big.Int).Rem(a, b)
		}},
		{op: "min.T", args: 2, want: func(_ kind, a, b, _ *big.Int, _ [3]uint64) *big.Int {
			if a.Cmp(b) < 0 {
				return a
			}
			return b
		}},
		{op: "max.T", args: 2, want: func(_ kind, a, b, _ *big.Int, _ [3]uint64) *big.Int {
			if a.Cmp(b) > 0 {
				return a
			}
			return b
		}},
		{op: "sad.T", args: 3, want: func(_ kind, a, b, c *big.Int, _ [3]uint64) *big.Int {
			d := new(big.Int).Sub(a, b)
			return d.Add(d.Abs(d), c)
		}},
		{op: "neg.S", args: 1, want: func(_ kind, a, _, _ *big.Int, _ [3]uint64) *big.Int { return new(big.Int).Neg(a) }},
		{op: "abs.S", args: 1, want: func(_ kind, a, _, _ *big.Int, _ [3]uint64) *big.Int { return new(big.Int).Abs(a) }},
	}
}

func bitCases() []integerCase {
	op := func(f func(z, a, b *big.Int) *big.Int) func(kind, *big.Int, *big.Int, *big.Int, [3]uint64) *big.Int {
		return func(_ kind, a, b, _ *big.Int, _ [3]uint64) *big.Int { return f(new(big.Int), a, b) }
	}
	return []integerCase{
		{op: "and.B", args: 2, want: op((*big.Int).And)},
		{op: "or.B", args: 2, want: op((*big.Int).Or)},
		{op: "xor.B", args: 2, want: op((*big.Int).Xor)},
		{op: "not.B", args: 1, want: func(_ kind, a, _, _ *big.Int, _ [3]uint64) *big.Int { return new(big.Int).Not(a) }},
		{op: "cnot.B", args: 1, want: func(_ kind, a, _, _ *big.Int, _ [3]uint64) *big.Int {
			if a.Sign() == 0 {
				return big.NewInt(1)
			}
			return zero
		}},
		{op: "shl.B", args: 2, second: shifted, want: func(_ kind, a, _, _ *big.Int, raw [3]uint64) *big.Int {
			return new(big.Int).Lsh(a, uint(min(uint32(raw[1]), 64)))
		}},
		{op: "shr.T", args: 2, second: shifted, want: func(_ kind, a, _, _ *big.Int, raw [3]uint64) *big.Int {
			return new(big.Int).Rsh(a, uint(min(uint32(raw[1]), 64)))
		}},
		{op: "popc.L", args: 1, result: shifted, want: func(k kind, a, _, _ *big.Int, _ [3]uint64) *big.Int {
			n := int64(0)
			for i := range 8 * k.bytes() {
				n += int64(a.Bit(i))
			}
			return big.NewInt(n)
		}},
		{op: "clz.L", args: 1, result: shifted, want: func(k kind, a, _, _ *big.Int, _ [3]uint64) *big.Int {
			n := 0
			for n < 8*k.bytes() && a.Bit(8*k.bytes()-1-n) == 0 {
				n++
			}
			return big.NewInt(int64(n))
		}},
		{op: "brev.L", args: 1, want: func(k kind, a, _, _ *big.Int, _ [3]uint64) *big.Int {
			d := new(big.Int)
			for i := range 8 * k.bytes() {
				d.SetBit(d, 8*k.bytes()-1-i, a.Bit(i))
			}
			return d
		}},
		{op: "bfind.W", args: 1, result: shifted, want: func(k kind, a, _, _ *big.Int, _ [3]uint64) *big.Int {
			return big.NewInt(int64(findHighest(k, a)))
		}},
		{op: "bfind.shiftamt.W", args: 1, result: shifted, want: func(k kind, a, _, _ *big.Int, _ [3]uint64) *big.Int {
			if h := findHighest(k, a); h >= 0 {
				return big.NewInt(int64(8*k.bytes() - 1 - h))
			}
			return big.NewInt(-1)
		}},
		{op: "bfe.W", args: 3, second: shifted, third: shifted, want: func(k kind, a, _, _ *big.Int, raw [3]uint64) *big.Int {
			// As the manual has it: bit by bit, the sign from the last one there is.
			n := 8 * k.bytes()
			pos, length := int(raw[1]&0xff), int(raw[2]&0xff)
			sign := uint(0)
			if k.signed() && length > 0 {
				sign = a.Bit(min(pos+length-1, n-1))
			}
			d := new(big.Int)
			for i := range n {
				v := sign
				if i < length && pos+i < n {
					v = a.Bit(pos + i)
				}
				d.SetBit(d, i, v)
			}
			return d
		}},
	}
}

func findHighest(k kind, a *big.Int) int {
	sign := uint(0)
	if k.signed() {
		sign = a.Bit(8*k.bytes() - 1)
	}
	for i := 8*k.bytes() - 1; i >= 0; i-- {
		if a.Bit(i) != sign {
			return i
		}
	}
	return -1
}

func same(k kind) kind { return k }

// Every integer instruction equals arithmetic in numbers without a size.
func TestIntegers(t *testing.T) {
	types := map[string][]kind{
		"T": {u16, u32, u64, s16, s32, s64}, "S": {s16, s32, s64}, "B": {b16, b32, b64}, "L": {b32, b64},
		"W": {u32, u64, s32, s64},
	}
	r := rand.New(rand.NewPCG(11, 12))
	for _, c := range integerCases() {
		stem, set := c.op[:len(c.op)-1], c.op[len(c.op)-1:]
		for _, k := range types[set] {
			if strings.Contains(stem, "wide") && k.bytes() == 8 {
				continue
			}
			name := stem + k.String()
			t.Run(name, func(t *testing.T) {
				result, second, third := same, same, same
				if c.result != nil {
					result = c.result
				}
				if c.second != nil {
					second = c.second
				}
				if c.third != nil {
					third = c.third
				}
				operands := integersOf(r, 150)
				got := evaluate(t, Options{}, one(name, []kind{result(k), k, second(k), third(k)}[:c.args+1]...), operands)
				n := 8 * result(k).bytes()
				for i, v := range operands {
					want := c.want(k, bigOf(k, v[0]), bigOf(k, v[1]), bigOf(k, v[2]), v)
					require.Equal(t, low(want, n), got[i]&mask(uint32(n)), "%s %#x %#x %#x", name, v[0], v[1], v[2])
				}
			})
		}
	}
}

// permutations are the word instructions that put bytes and words together.
func permutations() map[string]func(a, b, c uint64) uint64 {
	nibble := func(v, sel uint64) uint64 {
		b := v >> (8 * (sel & 7)) & 0xff
		if sel&8 != 0 {
			return -(b >> 7) & 0xff
		}
		return b
	}
	permute := func(a, b, sel uint64) uint64 {
		v := a&0xffffffff | b<<32
		return nibble(v, sel) | nibble(v, sel>>4)<<8 | nibble(v, sel>>8)<<16 | nibble(v, sel>>12)<<24
	}
	rows := func(s ...uint64) func(a, b, c uint64) uint64 {
		return func(a, b, c uint64) uint64 { return permute(a, b, s[c&3]) }
	}
	funnel := func(left bool, shift func(uint64) uint64) func(a, b, c uint64) uint64 {
		return func(a, b, c uint64) uint64 {
			v := new(big.Int).SetUint64(b<<32 | a&0xffffffff)
			if left {
				return new(big.Int).Rsh(v.Lsh(v, uint(shift(c&0xffffffff))), 32).Uint64()
			}
			return v.Rsh(v, uint(shift(c&0xffffffff))).Uint64()
		}
	}
	wrap := func(c uint64) uint64 { return c % 32 }
	clamp := func(c uint64) uint64 { return min(c, 32) }
	dot := func(ak, bk kind) func(a, b, c uint64) uint64 {
		return func(a, b, c uint64) uint64 {
			for i := range 4 {
				c += extend(ak, a>>(8*i)) * extend(bk, b>>(8*i))
			}
			return c
		}
	}
	return map[string]func(a, b, c uint64) uint64{
		"prmt.b32":        permute,
		"prmt.b32.f4e":    rows(0x3210, 0x4321, 0x5432, 0x6543),
		"prmt.b32.b4e":    rows(0x5670, 0x6701, 0x7012, 0x0123),
		"prmt.b32.rc8":    rows(0x0000, 0x1111, 0x2222, 0x3333),
		"prmt.b32.ecl":    rows(0x3210, 0x3211, 0x3222, 0x3333),
		"prmt.b32.ecr":    rows(0x0000, 0x1110, 0x2210, 0x3210),
		"prmt.b32.rc16":   rows(0x1010, 0x3232, 0x1010, 0x3232),
		"shf.l.wrap.b32":  funnel(true, wrap),
		"shf.l.clamp.b32": funnel(true, clamp),
		"shf.r.wrap.b32":  funnel(false, wrap),
		"shf.r.clamp.b32": funnel(false, clamp),
		"dp4a.u32.u32":    dot(u8, u8),
		"dp4a.s32.u32":    dot(s8, u8),
		"dp4a.u32.s32":    dot(u8, s8),
		"dp4a.s32.s32":    dot(s8, s8),
	}
}

// wordArithmetic is what saturates, takes 24 bits, or carries.
func wordArithmetic() map[string]func(a, b, c uint64) uint64 {
	saturated := func(v int64) uint64 { return uint64(max(min(v, math.MaxInt32), math.MinInt32)) }
	return map[string]func(a, b, c uint64) uint64{
		"add.sat.s32 $0, $1, $2;": func(a, b, _ uint64) uint64 {
			return saturated(int64(int32(a)) + int64(int32(b)))
		},
		"sub.sat.s32 $0, $1, $2;": func(a, b, _ uint64) uint64 {
			return saturated(int64(int32(a)) - int64(int32(b)))
		},
		"mul24.lo.u32 $0, $1, $2;": func(a, b, _ uint64) uint64 { return a & 0xffffff * (b & 0xffffff) },
		"mul24.hi.u32 $0, $1, $2;": func(a, b, _ uint64) uint64 { return a & 0xffffff * (b & 0xffffff) >> 16 },
		"mul24.lo.s32 $0, $1, $2;": func(a, b, _ uint64) uint64 {
			return uint64(int64(a<<40) >> 40 * (int64(b<<40) >> 40))
		},
		"mad24.lo.s32": func(a, b, c uint64) uint64 { return uint64(int64(a<<40)>>40*(int64(b<<40)>>40)) + c },
		"add.cc.u32 $0, $1, $2; addc.u32 $0, $3, 0;": func(a, b, c uint64) uint64 {
			return c + (a&0xffffffff+b&0xffffffff)>>32
		},
		"sub.cc.u32 $0, $1, $2; subc.u32 $0, $3, 0;": func(a, b, c uint64) uint64 {
			if uint32(a) < uint32(b) {
				c--
			}
			return c
		},
		"mad.lo.cc.u32 $0, $1, $2, $3; madc.hi.u32 $0, $1, $2, 0;": func(a, b, c uint64) uint64 {
			return (a&0xffffffff*(b&0xffffffff) + c&0xffffffff) >> 32
		},
	}
}

// wordLogic selects, compares and moves bits.
func wordLogic() map[string]func(a, b, c uint64) uint64 {
	return map[string]func(a, b, c uint64) uint64{
		"lop3.b32 $0, $1, $2, $3, 0x96;": func(a, b, c uint64) uint64 { return a ^ b ^ c },
		"lop3.b32 $0, $1, $2, $3, 0xe8;": func(a, b, c uint64) uint64 { return a&b | a&c | b&c },
		"lop3.b32 $0, $1, $2, $3, 0xca;": func(a, b, c uint64) uint64 { return a&b | ^a&c },
		"selp.b32 $0, $1, $2, %p0;":      func(_, b, _ uint64) uint64 { return b },
		"selp.b32 $0, $1, $2, !%p0;":     func(a, _, _ uint64) uint64 { return a },
		"slct.b32.s32": func(a, b, c uint64) uint64 {
			if int32(c) >= 0 {
				return a
			}
			return b
		},
		"set.lt.u32.s32 $0, $1, $2;": func(a, b, _ uint64) uint64 {
			if int32(a) < int32(b) {
				return 0xffffffff
			}
			return 0
		},
		"set.ge.f32.u32 $0, $1, $2;": func(a, b, _ uint64) uint64 {
			if uint32(a) >= uint32(b) {
				return 0x3f800000
			}
			return 0
		},
		"bfi.b32 $0, $1, $2, $3, 7;": func(a, b, c uint64) uint64 {
			for i := range uint64(7) {
				if at := c&0xff + i; at < 32 {
					b = b&^(1<<at) | a>>i&1<<at
				}
			}
			return b
		},
		"bfi.b32 $0, $1, $2, 5, $3;": func(a, b, c uint64) uint64 {
			for i := range c & 0xff {
				if at := 5 + i; at < 32 {
					b = b&^(1<<at) | a>>i&1<<at
				}
			}
			return b
		},
		"mov.b32 {%h1, %h2}, $1; mov.b32 $0, {%h2, %h1};":                                func(a, _, _ uint64) uint64 { return uint64(bits.RotateLeft32(uint32(a), 16)) },
		"{ .reg .b64 %w; mov.b64 %w, {$1, $2}; shr.u64 %w, %w, 8; cvt.u32.u64 $0, %w; }": func(a, b, _ uint64) uint64 { return (b<<32 | a&0xffffffff) >> 8 },
	}
}

// Instructions of 32 bits that have a definition of their own.
func TestWords(t *testing.T) {
	cases := permutations()
	maps.Copy(cases, wordArithmetic())
	maps.Copy(cases, wordLogic())
	for op, want := range cases {

		r := rand.New(rand.NewPCG(21, 22))
		operands := integersOf(r, 200)
		got := evaluate(t, Options{}, one(op, u32, u32, u32, u32), operands)
		for i, v := range operands {
			require.Equal(t, uint32(want(v[0], v[1], v[2])), uint32(got[i]), "%s of %#x", op, v)
		}
	}
}

// All comparisons, with their two results and the ways to combine them.
func TestComparisons(t *testing.T) {
	order := map[string]func(c int) bool{
		"eq": func(c int) bool { return c == 0 }, "ne": func(c int) bool { return c != 0 },
		"lt": func(c int) bool { return c < 0 }, "le": func(c int) bool { return c <= 0 },
		"gt": func(c int) bool { return c > 0 }, "ge": func(c int) bool { return c >= 0 },
	}
	combine := map[string]func(x, y bool) bool{
		"and": func(x, y bool) bool { return x && y }, "or": func(x, y bool) bool { return x || y },
		"xor": func(x, y bool) bool { return x != y },
	}
	b2 := func(x, y bool) uint64 {
		v := uint64(0)
		if x {
			v = 1
		}
		if y {
			v |= 2
		}
		return v
	}
	const read = " selp.b32 %r0, 1, 0, %p1; @%p2 or.b32 %r0, %r0, 2;"
	check := func(t *testing.T, name string, k kind, operands [][3]uint64, truth func(a, b uint64) bool) {
		got := evaluate(t, Options{}, one("setp."+name+" %p1|%p2, $1, $2;"+read, u32, k, k, u32), operands)
		for i, v := range operands {
			yes := truth(v[0], v[1])
			require.Equal(t, b2(yes, !yes), got[i]&3, "setp.%s %#x %#x", name, v[0], v[1])
		}
		word, kd, _ := strings.Cut(name, ".")
		for cn, f := range combine {
			src := one("setp.gt.u32 %p3, $3, 15; setp."+word+"."+cn+"."+kd+" %p1|%p2, $1, $2, !%p3;"+read, u32, k, k, u32)
			got := evaluate(t, Options{}, src, operands[:40])
			for i, v := range operands[:40] {
				yes, c := truth(v[0], v[1]), uint32(v[2]) <= 15
				require.Equal(t, b2(f(yes, c), f(!yes, c)), got[i]&3, "setp.%s.%s %#x", name, cn, v)
			}
		}
	}
	r := rand.New(rand.NewPCG(31, 32))
	operands := integersOf(r, 120)
	for i := range operands[:30] {
		operands[i][1] = operands[i][0]
	}
	for _, k := range []kind{u16, u32, u64, s16, s32, s64, b32} {
		for name, f := range order {
			if k == b32 && name != "eq" && name != "ne" {
				continue
			}
			truth := func(a, b uint64) bool { return f(bigOf(k, a).Cmp(bigOf(k, b))) }
			check(t, name+"."+k.String(), k, operands, truth)
			if other := map[string]string{"lt": "lo", "le": "ls", "gt": "hi", "ge": "hs"}[name]; other != "" && !k.signed() {
				check(t, other+"."+k.String(), k, operands, truth)
			}
		}
	}
	for _, k := range []kind{f32, f64} {
		var pairs [][3]uint64
		for _, a := range formats[k].interesting() {
			pairs = append(pairs, [3]uint64{a, a, r.Uint64() & 31})
			for range 3 {
				list := formats[k].interesting()
				pairs = append(pairs, [3]uint64{a, list[r.IntN(len(list))], r.Uint64() & 31})
			}
		}
		f := formats[k]
		compare := func(a, b uint64) (int, bool) {
			if f.nan(a) || f.nan(b) {
				return 0, false
			}
			key := func(p uint64) int64 {
				if f.neg(p) {
					return -int64(f.abs(p))
				}
				return int64(f.abs(p))
			}
			return big.NewInt(key(a)).Cmp(big.NewInt(key(b))), true
		}
		for name, o := range order {
			check(t, name+"."+k.String(), k, pairs, func(a, b uint64) bool { c, ok := compare(a, b); return ok && o(c) })
			check(t, name+"u."+k.String(), k, pairs, func(a, b uint64) bool { c, ok := compare(a, b); return !ok || o(c) })
		}
		check(t, "num."+k.String(), k, pairs, func(a, b uint64) bool { _, ok := compare(a, b); return ok })
		check(t, "nan."+k.String(), k, pairs, func(a, b uint64) bool { _, ok := compare(a, b); return !ok })
	}
}
