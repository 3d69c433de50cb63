package ptxtest

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

var modeNames = map[rounding]string{rn: "rn", rz: "rz", rm: "rm", rp: "rp"}

// floatsOf are triples of patterns: edges, neighbours, and numbers that cancel.
func floatsOf(r *rand.Rand, f format, n int) [][3]uint64 {
	edges := f.interesting()
	one := func() uint64 {
		switch r.IntN(4) {
		case 0:
			return edges[r.IntN(len(edges))]
		case 1: // near 1
			return uint64(1)<<(f.bits-2) - 1<<(f.fraction-2) + r.Uint64()>>(64-f.fraction-1)
		}
		return r.Uint64() & mask(uint32(f.bits))
	}
	list := make([][3]uint64, n)
	for i := range list {
		list[i] = [3]uint64{one(), one(), one()}
		switch r.IntN(4) {
		case 0:
			list[i][1] = list[i][0] ^ 1<<(f.bits-1) ^ r.Uint64()&3
		case 1:
			list[i][2] = list[i][0] ^ 1<<(f.bits-1)
		}
	}
	return list
}

// native widens a pattern; where infinities and NaNs are concerned, what the
// machine does with doubles is what it does with singles.
func native(k kind, p uint64) float64 {
	if k == f32 {
		return float64(math.Float32frombits(uint32(p)))
	}
	return math.Float64frombits(p)
}

// special is the result where an operand is infinite or none is a number, in
// the pattern of k; the sign of NaNs and their payload are put apart.
func special(k kind, x float64) (uint64, bool) {
	f := formats[k]
	switch {
	case x != x:
		return 0, true
	case math.IsInf(x, 1):
		return f.inf(), false
	case math.IsInf(x, -1):
		return f.inf() | 1<<(f.bits-1), false
	case math.Signbit(x):
		return 1 << (f.bits - 1), false
	}
	return 0, false
}

type floatCase struct {
	op     string
	args   int
	native func(a, b, c float64) float64
	exact  func(f format, a, b, c *big.Float, mode rounding) uint64
}

// sum rounds the sum of numbers; a zero is negative if both are, or in rm if one is.
func sum(f format, x, y *big.Float, mode rounding) uint64 {
	v := new(big.Float).SetPrec(9000).Add(x, y)
	if v.Sign() != 0 {
		return f.nearest(v, mode)
	}
	neg := x.Signbit() && y.Signbit() || mode == rm && (x.Signbit() || y.Signbit())
	if neg {
		return 1 << (f.bits - 1)
	}
	return 0
}

func floatCases() []floatCase {
	times := func(a, b *big.Float) *big.Float { return new(big.Float).SetPrec(9000).Mul(a, b) }
	quotient := func(f format, a, b *big.Float, mode rounding) uint64 {
		neg := a.Signbit() != b.Signbit()
		x, y := new(big.Float).Abs(a), new(big.Float).Abs(b)
		if x.Sign() == 0 {
			return map[bool]uint64{true: 1 << (f.bits - 1)}[neg]
		}
		return f.round(neg, func(q *big.Float) int { return times(q, y).Cmp(x) }, mode)
	}
	return []floatCase{
		{"add", 2, func(a, b, _ float64) float64 { return a + b }, func(f format, a, b, _ *big.Float, mode rounding) uint64 { return sum(f, a, b, mode) }},
		{"sub", 2, func(a, b, _ float64) float64 { return a - b }, func(f format, a, b, _ *big.Float, mode rounding) uint64 {
			return sum(f, a, new(big.Float).Neg(b), mode)
		}},
		{"mul", 2, func(a, b, _ float64) float64 { return a * b }, func(f format, a, b, _ *big.Float, mode rounding) uint64 {
			if v := times(a, b); v.Sign() != 0 {
				return f.nearest(v, mode)
			}
			return map[bool]uint64{true: 1 << (f.bits - 1)}[a.Signbit() != b.Signbit()]
		}},
		{"fma", 3, func(a, b, c float64) float64 { return a*b + c }, func(f format, a, b, c *big.Float, mode rounding) uint64 {
			return sum(f, times(a, b), c, mode)
		}},
		{"div", 2, func(a, b, _ float64) float64 { return a / b }, quotientOf(quotient)},
		{"rcp", 1, func(a, _, _ float64) float64 { return 1 / a }, func(f format, a, _, _ *big.Float, mode rounding) uint64 {
			return quotient(f, new(big.Float).SetPrec(9000).SetInt64(1), a, mode)
		}},
		{"sqrt", 1, func(a, _, _ float64) float64 { return math.Sqrt(a) }, func(f format, a, _, _ *big.Float, mode rounding) uint64 {
			return f.round(false, func(q *big.Float) int { return times(q, q).Cmp(a) }, mode)
		}},
	}
}

func quotientOf(q func(f format, a, b *big.Float, mode rounding) uint64) func(f format, a, b, _ *big.Float, mode rounding) uint64 {
	return func(f format, a, b, _ *big.Float, mode rounding) uint64 { return q(f, a, b, mode) }
}

// Arithmetic in every rounding equals exact arithmetic that is rounded once.
func TestFloats(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	for _, k := range []kind{f32, f64} {
		f := formats[k]
		for _, c := range floatCases() {
			for mode, word := range modeNames {
				operands := floatsOf(r, f, 120)
				kinds := []kind{k, k, k, k}[:c.args+1]
				op := c.op + "." + word + "." + k.String()
				got := evaluate(t, Options{}, one(op, kinds...), operands)
				for i, v := range operands {
					x := [3]float64{}
					plain := true // numbers, and the result is one
					for j := range c.args {
						x[j] = native(k, v[j])
						plain = plain && !f.special(v[j])
					}
					if !plain || c.op == "div" && x[1] == 0 || c.op == "rcp" && x[0] == 0 || c.op == "sqrt" && x[0] <= 0 {
						want, nan := special(k, c.native(x[0], x[1], x[2]))
						if plain && c.op == "sqrt" && x[0] == 0 {
							want, nan = v[0], false
						}
						if nan {
							require.True(t, f.nan(got[i]&mask(uint32(f.bits))), "%s of %#x: %#x", op, v, got[i])
							if k == f32 {
								require.Equal(t, uint32(nan32), uint32(got[i]), "%s of %#x", op, v)
							}
							continue
						}
						if c.native(x[0], x[1], x[2]) == 0 || math.IsInf(c.native(x[0], x[1], x[2]), 0) {
							require.Equal(t, want, got[i]&mask(uint32(f.bits)), "%s of %#x", op, v)
						}
						continue
					}
					var a [3]*big.Float
					for j := range a {
						if !f.special(v[j]) {
							a[j] = f.value(v[j])
						}
					}
					want := c.exact(f, a[0], a[1], a[2], mode)
					require.Equal(t, want, got[i]&mask(uint32(f.bits)), "%s of %#x", op, v)
				}
			}
		}
	}
}

// NaNs of doubles: the first operand's, quieted; one of numbers is fixed; and
// with OtherNaNs there is a single one.
func TestDoubleNaNs(t *testing.T) {
	const a, b = 0x7ff0000000000123, 0xfff8000000000456
	one64 := math.Float64bits(1)
	inf := math.Float64bits(math.Inf(1))
	for _, c := range []struct {
		op   string
		args [3]uint64
		want uint64
	}{
		{"add.f64", [3]uint64{a, b}, a | 1<<51},
		{"add.f64", [3]uint64{one64, a}, a | 1<<51},
		{"mul.f64", [3]uint64{b, a}, b},
		{"sub.f64", [3]uint64{inf, inf}, nan64},
		{"mul.f64", [3]uint64{inf, 0}, nan64},
		{"min.f64", [3]uint64{b, a}, b},
		{"max.f64", [3]uint64{b, one64}, one64},
	} {
		src := one(c.op, f64, f64, f64)
		require.Equal(t, c.want, evaluate(t, Options{}, src, [][3]uint64{c.args})[0], "%s %#x", c.op, c.args)
		if c.want != one64 {
			require.Equal(t, uint64(0x7fffffffffffffff), evaluate(t, Options{OtherNaNs: true}, src, [][3]uint64{c.args})[0], c.op)
		}
	}
}

// Where PTX leaves it open which NaN comes out, OtherNaNs chooses differently.
func TestOtherNaNs(t *testing.T) {
	for _, c := range []struct {
		op       string
		to, from kind
		arg      uint64
		want     uint64
		other    uint64
	}{
		{"neg.f32", f32, f32, 0x7fc00123, 0xffc00123, 0x7fffffff},
		{"abs.f32", f32, f32, 0xffc00123, 0x7fc00123, 0x7fffffff},
		{"neg.f64", f64, f64, 0x7ff8000000000123, 0xfff8000000000123, 0x7fffffffffffffff},
		{"abs.f64", f64, f64, math.Float64bits(-2), math.Float64bits(2), math.Float64bits(2)},
		{"cvt.f32.f16", f32, f16, 0xfd01, 0x7fffffff, 0xffe02000},
		{"cvt.rn.f16.f32", f16, f32, 0xffa02001, 0x7fff, 0xff01},
		{"cvt.rn.f16.f64", f16, f64, 0x7ff0000000000001, 0x7fff, 0x7e00},
		{"cvt.f64.f16", f64, f16, 0x7c01, nan64, 0x7ff8040000000000},
	} {
		n := uint32(8 * c.to.bytes())
		src := one(c.op, c.to, c.from)
		got := evaluate(t, Options{}, src, [][3]uint64{{c.arg}})[0] & mask(n)
		require.Equal(t, c.want, got, "%s %#x: %#x", c.op, c.arg, got)
		got = evaluate(t, Options{OtherNaNs: true}, src, [][3]uint64{{c.arg}})[0] & mask(n)
		require.Equal(t, c.other, got, "%s %#x: %#x", c.op, c.arg, got)
	}
}

// min and max: a NaN loses, -0 is below +0, and .NaN keeps NaNs.
func TestExtremes(t *testing.T) {
	for _, k := range []kind{f32, f64} {
		f := formats[k]
		var pairs [][3]uint64
		for _, a := range f.interesting() {
			for _, b := range f.interesting() {
				pairs = append(pairs, [3]uint64{a, b})
			}
		}
		// Patterns in the order of the numbers.
		key := func(p uint64) int64 {
			if f.neg(p) {
				return -int64(f.abs(p)) - 1
			}
			return int64(f.abs(p))
		}
		for _, op := range []string{"min", "max", "min.NaN", "max.NaN"} {
			if k == f64 && len(op) > 3 {
				continue
			}
			got := evaluate(t, Options{}, one(op+"."+k.String(), k, k, k), pairs)
			for i, v := range pairs {
				a, b := v[0], v[1]
				switch n := got[i] & mask(uint32(f.bits)); {
				case f.nan(a) && f.nan(b) || len(op) > 3 && (f.nan(a) || f.nan(b)):
					require.True(t, f.nan(n))
				case f.nan(a):
					require.Equal(t, b, n)
				case f.nan(b) || (key(a) < key(b)) == (op[:3] == "min"):
					require.Equal(t, a, n, "%s %#x %#x", op, a, b)
				default:
					require.Equal(t, b, n, "%s %#x %#x", op, a, b)
				}
			}
		}
	}
}

// Modifiers that change operands and results: .ftz and .sat; signs; approximations.
func TestModifiers(t *testing.T) {
	r := rand.New(rand.NewPCG(51, 52))
	operands := floatsOf(r, formats[f32], 300)
	z := func(p uint64) float32 {
		if p&0x7f800000 == 0 {
			p &= 0x80000000
		}
		return math.Float32frombits(uint32(p))
	}
	flushed := func(x float32) uint32 {
		if x != x {
			return nan32
		}
		return math.Float32bits(z(uint64(math.Float32bits(x))))
	}
	near := func(f func(float64) float64) func(v [3]uint64) uint32 {
		return func(v [3]uint64) uint32 { return flushed(float32(f(float64(z(v[0]))))) }
	}
	raw := func(v [3]uint64) float32 { return math.Float32frombits(uint32(v[0])) }
	for op, want := range map[string]func(v [3]uint64) uint32{
		"add.ftz.f32 $0, $1, $2;":      func(v [3]uint64) uint32 { return flushed(z(v[0]) + z(v[1])) },
		"mul.ftz.f32 $0, $1, $2;":      func(v [3]uint64) uint32 { return flushed(z(v[0]) * z(v[1])) },
		"neg.f32 $0, $1;":              func(v [3]uint64) uint32 { return uint32(v[0]) ^ 1<<31 },
		"abs.f32 $0, $1;":              func(v [3]uint64) uint32 { return uint32(v[0]) &^ (1 << 31) },
		"copysign.f32 $0, $1, $2;":     func(v [3]uint64) uint32 { return uint32(v[1])&^(1<<31) | uint32(v[0])&(1<<31) },
		"ex2.approx.ftz.f32 $0, $1;":   near(math.Exp2),
		"lg2.approx.ftz.f32 $0, $1;":   near(math.Log2),
		"sin.approx.ftz.f32 $0, $1;":   near(math.Sin),
		"cos.approx.ftz.f32 $0, $1;":   near(math.Cos),
		"tanh.approx.f32 $0, $1;":      func(v [3]uint64) uint32 { return uint32(word32(float32(math.Tanh(float64(raw(v)))))) },
		"rsqrt.approx.ftz.f32 $0, $1;": near(func(x float64) float64 { return 1 / math.Sqrt(x) }),
		"sqrt.approx.ftz.f32 $0, $1;":  near(math.Sqrt),
		"rcp.approx.ftz.f32 $0, $1;":   near(func(x float64) float64 { return 1 / x }),
		"div.full.ftz.f32 $0, $1, $2;": func(v [3]uint64) uint32 { return flushed(z(v[0]) / z(v[1])) },
		"cvt.ftz.f32.f32 $0, $1;":      func(v [3]uint64) uint32 { return flushed(z(v[0])) },
		"add.sat.f32 $0, $1, $2;": func(v [3]uint64) uint32 {
			x := raw(v) + math.Float32frombits(uint32(v[1]))
			if !(x > 0) {
				return 0
			}
			return math.Float32bits(min(x, 1))
		},
		"set.ltu.ftz.u32.f32 $0, $1, $2;": func(v [3]uint64) uint32 {
			if z(v[0]) >= z(v[1]) {
				return 0
			}
			return math.MaxUint32
		},
		"testp.subnormal.f32 %p1, $1; selp.b32 $0, 1, 0, %p1;":  func(v [3]uint64) uint32 { return is(v[0]&0x7f800000 == 0 && v[0]&0x7fffffff != 0) },
		"testp.normal.f32 %p1, $1; selp.b32 $0, 1, 0, %p1;":     func(v [3]uint64) uint32 { return is(v[0]&0x7f800000 != 0 && v[0]&0x7f800000 != 0x7f800000) },
		"testp.finite.f32 %p1, $1; selp.b32 $0, 1, 0, %p1;":     func(v [3]uint64) uint32 { return is(v[0]&0x7f800000 != 0x7f800000) },
		"testp.infinite.f32 %p1, $1; selp.b32 $0, 1, 0, %p1;":   func(v [3]uint64) uint32 { return is(v[0]&0x7fffffff == 0x7f800000) },
		"testp.number.f32 %p1, $1; selp.b32 $0, 1, 0, %p1;":     func(v [3]uint64) uint32 { return is(v[0]&0x7fffffff <= 0x7f800000) },
		"testp.notanumber.f32 %p1, $1; selp.b32 $0, 1, 0, %p1;": func(v [3]uint64) uint32 { return is(v[0]&0x7fffffff > 0x7f800000) },
	} {
		got := evaluate(t, Options{}, one(op, f32, f32, f32), operands)
		for i, v := range operands {
			require.Equal(t, want(v), uint32(got[i]), "%s of %#x", op, v)
		}
	}
}

func is(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
