package ptxtest

import "math/bits"

// scalar is what an instruction does in one lane. Operands and results are
// registers of 64 bits of which only those of the instruction's type count:
// readers truncate, so the bits above may hold anything.
type scalar func(a, b, c uint64) uint64

type integer interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int8 | ~int16 | ~int32 | ~int64
}

// integerOp returns the operation of integers of kind k with its count of
// operands; nil if there is none of that name. Names of several words are
// joined by a dot: "mul.hi".
func integerOp(name string, k kind) (scalar, int) {
	switch k {
	case u16:
		return integers[uint16](name)
	case u32:
		return integers[uint32](name)
	case u64:
		return integers[uint64](name)
	case s16:
		return integers[int16](name)
	case s32:
		return integers[int32](name)
	case s64:
		return integers[int64](name)
	}
	return nil, 0
}

func integers[T integer](name string) (scalar, int) {
	wide := bitsOf[T]()
	switch name {
	case "add":
		return func(a, b, _ uint64) uint64 { return a + b }, 2
	case "sub":
		return func(a, b, _ uint64) uint64 { return a - b }, 2
	case "mul.lo":
		return func(a, b, _ uint64) uint64 { return a * b }, 2
	case "mad.lo":
		return func(a, b, c uint64) uint64 { return a*b + c }, 3
	case "mul.hi":
		return func(a, b, _ uint64) uint64 { return high(T(a), T(b)) }, 2
	case "mad.hi":
		return func(a, b, c uint64) uint64 { return high(T(a), T(b)) + c }, 3
	case "mul.wide":
		return func(a, b, _ uint64) uint64 { return uint64(T(a)) * uint64(T(b)) }, 2
	case "mad.wide":
		return func(a, b, c uint64) uint64 { return uint64(T(a))*uint64(T(b)) + c }, 3
	case "div":
		return func(a, b, _ uint64) uint64 {
			if T(b) == 0 {
				return ^uint64(0) // PTX leaves it open
			}
			return uint64(T(a) / T(b))
		}, 2
	case "rem":
		return func(a, b, _ uint64) uint64 {
			if T(b) == 0 {
				return a
			}
			return uint64(T(a) % T(b))
		}, 2
	case "neg":
		return func(a, _, _ uint64) uint64 { return -a }, 1
	case "abs":
		return func(a, _, _ uint64) uint64 {
			if T(a) < 0 {
				return -a
			}
			return a
		}, 1
	case "min":
		return func(a, b, _ uint64) uint64 { return uint64(min(T(a), T(b))) }, 2
	case "max":
		return func(a, b, _ uint64) uint64 { return uint64(max(T(a), T(b))) }, 2
	case "sad":
		return func(a, b, c uint64) uint64 {
			if T(a) < T(b) {
				return c + b - a
			}
			return c + a - b
		}, 3
	case "and":
		return func(a, b, _ uint64) uint64 { return a & b }, 2
	case "or":
		return func(a, b, _ uint64) uint64 { return a | b }, 2
	case "xor":
		return func(a, b, _ uint64) uint64 { return a ^ b }, 2
	case "not":
		return func(a, _, _ uint64) uint64 { return ^a }, 1
	case "cnot":
		return func(a, _, _ uint64) uint64 {
			if T(a) == 0 {
				return 1
			}
			return 0
		}, 1
	case "shl":
		return func(a, b, _ uint64) uint64 { return a << min(uint32(b), wide) & mask(wide) }, 2
	case "shr":
		return func(a, b, _ uint64) uint64 { return uint64(T(a) >> min(uint32(b), wide)) }, 2
	case "popc":
		return func(a, _, _ uint64) uint64 { return uint64(bits.OnesCount64(a & mask(wide))) }, 1
	case "clz":
		return func(a, _, _ uint64) uint64 { return uint64(bits.LeadingZeros64(a&mask(wide))) - 64 + uint64(wide) }, 1
	case "brev":
		return func(a, _, _ uint64) uint64 { return bits.Reverse64(a) >> (64 - wide) }, 1
	case "bfind":
		return func(a, _, _ uint64) uint64 { return uint64(uint32(highest(T(a)))) }, 1
	case "bfind.shiftamt":
		return func(a, _, _ uint64) uint64 {
			h := highest(T(a))
			if h < 0 {
				return 0xffffffff
			}
			return uint64(wide) - 1 - uint64(h)
		}, 1
	case "bfe":
		return func(a, b, c uint64) uint64 { return extract(T(a), b, c, wide) }, 3
	}
	if wide == 32 {
		return words[T](name)
	}
	return nil, 0
}

// words are the operations that exist for 32 bits only.
func words[T integer](name string) (scalar, int) {
	switch name {
	case "add.sat":
		return func(a, b, _ uint64) uint64 { return clampWord(int64(int32(a)) + int64(int32(b))) }, 2
	case "sub.sat":
		return func(a, b, _ uint64) uint64 { return clampWord(int64(int32(a)) - int64(int32(b))) }, 2
	case "mul24.lo":
		return func(a, b, _ uint64) uint64 { return uint64(low24(T(a)) * low24(T(b))) }, 2
	case "mul24.hi":
		return func(a, b, _ uint64) uint64 { return uint64(low24(T(a)) * low24(T(b)) >> 16) }, 2
	case "mad24.lo":
		return func(a, b, c uint64) uint64 { return uint64(low24(T(a))*low24(T(b))) + c }, 3
	case "mad24.hi":
		return func(a, b, c uint64) uint64 { return uint64(low24(T(a))*low24(T(b))>>16) + c }, 3
	case "shf.l.clamp":
		return func(a, b, c uint64) uint64 {
			return (b<<32 | a&0xffffffff) << min(uint32(c), 32) >> 32
		}, 3
	case "shf.l.wrap":
		return func(a, b, c uint64) uint64 { return (b<<32 | a&0xffffffff) << (c & 31) >> 32 }, 3
	case "shf.r.clamp":
		return func(a, b, c uint64) uint64 { return (b<<32 | a&0xffffffff) >> min(uint32(c), 32) }, 3
	case "shf.r.wrap":
		return func(a, b, c uint64) uint64 { return (b<<32 | a&0xffffffff) >> (c & 31) }, 3
	case "prmt", "prmt.f4e", "prmt.b4e", "prmt.rc8", "prmt.ecl", "prmt.ecr", "prmt.rc16":
		return permutation(name[4:]), 3
	}
	return nil, 0
}

func bitsOf[T integer]() uint32 {
	n := uint32(0)
	for v := T(1); v != 0; v <<= 1 {
		n++
	}
	return n
}

// mask is n ones.
func mask(n uint32) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// high is the upper half of the product.
func high[T integer](a, b T) uint64 {
	if n := bitsOf[T](); n < 64 {
		return uint64(a) * uint64(b) >> n
	}
	h, _ := bits.Mul64(uint64(a), uint64(b))
	if a < 0 {
		h -= uint64(b)
	}
	if b < 0 {
		h -= uint64(a)
	}
	return h
}

// highest is the position of the highest bit that differs from the sign, -1 if none does.
func highest[T integer](a T) int {
	v := uint64(a)
	if a < 0 {
		v = ^v
	}
	return bits.Len64(v) - 1
}

// extract is bfe: c bits of a from bit b on, signed if T is.
func extract[T integer](a T, b, c uint64, wide uint32) uint64 {
	pos, n := uint32(b&0xff), uint32(c&0xff)
	v := uint64(a) & mask(wide)
	sign := uint64(0)
	if T(0)-1 < 0 && n > 0 {
		sign = v >> min(pos+n-1, wide-1) & 1
	}
	var d uint64
	if pos < wide {
		d = v >> pos
	}
	if n >= wide { // nothing above to clear, but what was shifted in
		n = wide
	}
	d &= mask(n)
	if sign != 0 {
		have := n
		if pos >= wide {
			have = 0
		} else if pos+n > wide {
			have = wide - pos
		}
		d |= ^mask(have)
	}
	return d
}

// insert is bfi: n bits of a at bit pos of b.
func insert(a, b uint64, pos, n, wide uint32) uint64 {
	pos, n = pos&0xff, n&0xff
	if pos >= wide {
		return b
	}
	m := mask(min(n, wide-pos)) << pos
	return b&^m | a<<pos&m
}

func clampWord(v int64) uint64 { return uint64(uint32(max(min(v, 1<<31-1), -1<<31))) }

// low24 is the low 24 bits, with their sign if T has one.
func low24[T integer](a T) int64 {
	if T(0)-1 < 0 {
		return int64(a) << 40 >> 40
	}
	return int64(a) & 0xffffff
}

// permutation is prmt of a mode, "" or ".f4e".
func permutation(mode string) scalar {
	return func(a, b, c uint64) uint64 {
		bytes := a&0xffffffff | b<<32
		i := c & 3
		if mode != "" {
			var at [4]uint64
			for k := range uint64(4) {
				switch mode {
				case ".f4e":
					at[k] = i + k
				case ".b4e":
					at[k] = (i - k) & 7
				case ".rc8":
					at[k] = i
				case ".ecl":
					at[k] = max(i, k)
				case ".ecr":
					at[k] = min(i, k)
				default: // .rc16
					at[k] = i&1*2 + k&1
				}
			}
			c = at[0] | at[1]<<4 | at[2]<<8 | at[3]<<12
		}
		var d uint64
		for k := range 4 {
			s := c >> (4 * k)
			v := bytes >> (s & 7 * 8) & 0xff
			if s&8 != 0 { // its sign in all bits
				v = uint64(int64(int8(v))>>7) & 0xff
			}
			d |= v << (8 * k)
		}
		return d
	}
}

// logic is lop3: bit for bit the table's answer to three bits.
func logic(table uint64) scalar {
	return func(a, b, c uint64) uint64 {
		var d uint64
		for i := range uint64(8) {
			if table>>i&1 == 0 {
				continue
			}
			x, y, z := ^a, ^b, ^c
			if i&4 != 0 {
				x = a
			}
			if i&2 != 0 {
				y = b
			}
			if i&1 != 0 {
				z = c
			}
			d |= x & y & z
		}
		return d
	}
}

// integerCompare returns the comparison of integers of kind k, nil if there
// is none of that name.
func integerCompare(name string, k kind) func(a, b uint64) bool {
	switch k {
	case u16:
		return comparison[uint16](name)
	case u32:
		return comparison[uint32](name)
	case u64:
		return comparison[uint64](name)
	case s16:
		return comparison[int16](name)
	case s32:
		return comparison[int32](name)
	case s64:
		return comparison[int64](name)
	}
	return nil
}

func comparison[T integer](name string) func(a, b uint64) bool {
	switch name {
	case "eq":
		return func(a, b uint64) bool { return T(a) == T(b) }
	case "ne":
		return func(a, b uint64) bool { return T(a) != T(b) }
	case "lt", "lo":
		return func(a, b uint64) bool { return T(a) < T(b) }
	case "le", "ls":
		return func(a, b uint64) bool { return T(a) <= T(b) }
	case "gt", "hi":
		return func(a, b uint64) bool { return T(a) > T(b) }
	case "ge", "hs":
		return func(a, b uint64) bool { return T(a) >= T(b) }
	}
	return nil
}
