package ptxtest

import (
	"math"
	"math/big"
)

// rounding is to nearest (ties to even), to zero, down or up.
type rounding uint8

const (
	rn rounding = iota
	rz
	rm
	rp
)

var roundings = map[string]rounding{"rn": rn, "rz": rz, "rm": rm, "rp": rp, "rni": rn, "rzi": rz, "rmi": rm, "rpi": rp}

const (
	nan32 = 0x7fffffff         // every NaN that .f32 arithmetic makes
	nan16 = 0x7fff             // every NaN that a conversion to .f16 makes
	nan64 = 0xfff8000000000000 // a NaN that .f64 arithmetic makes of numbers
)

// word32 is the register of a result, with the one NaN of .f32.
func word32(x float32) uint64 {
	if x != x {
		return nan32
	}
	return uint64(math.Float32bits(x))
}

func get32(a uint64) float32 { return math.Float32frombits(uint32(a)) }
func get64(a uint64) float64 { return math.Float64frombits(a) }

// nans says which of the NaNs that PTX leaves open are made: by .f64 arithmetic
// the first operand's, quieted, as processors do; by neg and abs the operand's
// with its sign changed; by conversions of .f16 and to .f16 the canonical one.
// With other, arithmetic, neg and abs make a fixed one, and those conversions
// keep the payload. A kernel whose results differ between the two relies on
// what nobody promises.
type nans bool

func (other nans) word64(x float64, args ...uint64) uint64 {
	if x == x {
		return math.Float64bits(x)
	}
	if other {
		return 0x7fffffffffffffff
	}
	for _, a := range args {
		if get64(a) != get64(a) {
			return a | 1<<51
		}
	}
	return nan64
}

// changedSign is neg and abs with a NaN that is not the operand's.
func (other nans) changedSign(name string, k kind) (scalar, int) {
	f, n := floatOp(name, k, rn, false)
	if f == nil {
		return nil, 0
	}
	nan := uint64(nan32)
	if k == f64 {
		nan = 0x7fffffffffffffff
	}
	return func(a, b, c uint64) uint64 {
		if x := value(k, a); x != x {
			return nan
		}
		return f(a, b, c)
	}, n
}

// odd moves s, which is exact + err rounded to nearest, to the neighbour in
// the direction of err if its last bit is 0, so that a second rounding to a
// narrower type finds what it needs to know (rounding to odd).
func odd(s, err float64) float64 {
	if err == 0 || err != err || math.IsInf(s, 0) || math.Float64bits(s)&1 == 1 {
		return s
	}
	return math.Nextafter(s, math.Inf(sign(err)))
}

func sign(x float64) int {
	if math.Signbit(x) {
		return -1
	}
	return 1
}

// sumOdd is x+y rounded to odd. A zero has the sign that mode gives it.
func sumOdd(x, y float64, mode rounding) float64 {
	s := x + y
	if s == 0 && mode == rm && (math.Signbit(x) || math.Signbit(y)) {
		return math.Copysign(0, -1)
	}
	if math.IsInf(s, 0) || s != s {
		return s
	}
	t := s - x
	return odd(s, (x-(s-t))+(y-t))
}

// to32 rounds x, which is exact or rounded to odd.
func to32(x float64, mode rounding) float32 {
	r := float32(x)
	back := float64(r)
	switch {
	case mode == rz && math.Abs(back) > math.Abs(x):
		return math.Nextafter32(r, 0)
	case mode == rm && back > x:
		return math.Nextafter32(r, float32(math.Inf(-1)))
	case mode == rp && back < x:
		return math.Nextafter32(r, float32(math.Inf(1)))
	}
	return r
}

// floatOp returns the operation of kind k (f32 or f64), nil if there is none.
func floatOp(name string, k kind, mode rounding, other nans) (scalar, int) {
	if other && (name == "neg" || name == "abs") {
		return other.changedSign(name, k)
	}
	if k == f32 {
		return singles(name, mode)
	}
	if k == f64 {
		return doubles(name, mode, other)
	}
	return nil, 0
}

func singles(name string, mode rounding) (scalar, int) {
	switch name {
	case "add", "sub":
		flip := uint64(0)
		if name == "sub" {
			flip = 1 << 31
		}
		if mode == rn {
			return func(a, b, _ uint64) uint64 { return word32(get32(a) + get32(b^flip)) }, 2
		}
		return func(a, b, _ uint64) uint64 {
			return word32(to32(sumOdd(float64(get32(a)), float64(get32(b^flip)), mode), mode))
		}, 2
	case "mul":
		if mode == rn {
			return func(a, b, _ uint64) uint64 { return word32(get32(a) * get32(b)) }, 2
		}
		return func(a, b, _ uint64) uint64 { return word32(to32(float64(get32(a))*float64(get32(b)), mode)) }, 2
	case "fma", "mad":
		return func(a, b, c uint64) uint64 {
			p := float64(get32(a)) * float64(get32(b)) // exact
			return word32(to32(sumOdd(p, float64(get32(c)), mode), mode))
		}, 3
	case "div":
		if mode == rn {
			return func(a, b, _ uint64) uint64 { return word32(get32(a) / get32(b)) }, 2
		}
		return func(a, b, _ uint64) uint64 { return word32(quotient32(get32(a), get32(b), mode)) }, 2
	case "rcp":
		return func(a, _, _ uint64) uint64 { return word32(quotient32(1, get32(a), mode)) }, 1
	case "sqrt":
		return func(a, _, _ uint64) uint64 {
			x := float64(get32(a))
			s := math.Sqrt(x)
			return word32(to32(odd(s, math.FMA(-s, s, x)), mode))
		}, 1
	case "min":
		return func(a, b, _ uint64) uint64 { return extreme32(a, b, -1, false) }, 2
	case "max":
		return func(a, b, _ uint64) uint64 { return extreme32(a, b, 1, false) }, 2
	case "min.NaN":
		return func(a, b, _ uint64) uint64 { return extreme32(a, b, -1, true) }, 2
	case "max.NaN":
		return func(a, b, _ uint64) uint64 { return extreme32(a, b, 1, true) }, 2
	case "neg":
		return func(a, _, _ uint64) uint64 { return a ^ 1<<31 }, 1
	case "abs":
		return func(a, _, _ uint64) uint64 { return a &^ (1 << 31) }, 1
	case "copysign":
		return func(a, b, _ uint64) uint64 { return b&^(1<<31) | a&(1<<31) }, 2
	case "ex2":
		return approximation(math.Exp2), 1
	case "lg2":
		return approximation(math.Log2), 1
	case "sin":
		return approximation(math.Sin), 1
	case "cos":
		return approximation(math.Cos), 1
	case "tanh":
		return approximation(math.Tanh), 1
	case "rsqrt":
		return approximation(func(x float64) float64 { return 1 / math.Sqrt(x) }), 1
	}
	return nil, 0
}

// approximation stands for the functions that a GPU computes to some 22 bits
// from tables of its own: here they are right to the last bit or nearly so,
// and the bits of no GPU.
func approximation(f func(float64) float64) scalar {
	return func(a, _, _ uint64) uint64 { return word32(float32(f(float64(get32(a))))) }
}

func quotient32(a, b float32, mode rounding) float32 {
	x, y := float64(a), float64(b)
	q := x / y
	if math.IsInf(q, 0) || q != q || y == 0 || math.IsInf(y, 0) {
		return float32(q)
	}
	r := math.FMA(-q, y, x)
	if y < 0 {
		r = -r
	}
	return to32(odd(q, r), mode)
}

// extreme32 is the smaller (dir -1) or larger operand. -0 is less than +0, and
// a NaN is the result if both are, or keep says so.
func extreme32(a, b uint64, dir float32, keep bool) uint64 {
	x, y := get32(a), get32(b)
	switch {
	case x != x && y != y || keep && (x != x || y != y):
		return nan32
	case x != x:
		return b
	case y != y:
		return a
	case x == y: // zeros may differ
		if (a>>31&1 == 1) == (dir < 0) {
			return a
		}
		return b
	case (x < y) == (dir < 0):
		return a
	}
	return b
}

func doubles(name string, mode rounding, other nans) (scalar, int) {
	switch name {
	case "add":
		return func(a, b, _ uint64) uint64 { return other.word64(add64(get64(a), get64(b), mode), a, b) }, 2
	case "sub":
		return func(a, b, _ uint64) uint64 { return other.word64(add64(get64(a), -get64(b), mode), a, b) }, 2
	case "mul":
		return func(a, b, _ uint64) uint64 { return other.word64(mul64(get64(a), get64(b), mode), a, b) }, 2
	case "fma", "mad":
		return func(a, b, c uint64) uint64 {
			return other.word64(fma64(get64(a), get64(b), get64(c), mode), a, b, c)
		}, 3
	case "div":
		return func(a, b, _ uint64) uint64 { return other.word64(div64(get64(a), get64(b), mode), a, b) }, 2
	case "rcp":
		return func(a, _, _ uint64) uint64 { return other.word64(div64(1, get64(a), mode), a) }, 1
	case "sqrt":
		return func(a, _, _ uint64) uint64 { return other.word64(sqrt64(get64(a), mode), a) }, 1
	case "min":
		return func(a, b, _ uint64) uint64 { return other.extreme64(a, b, -1) }, 2
	case "max":
		return func(a, b, _ uint64) uint64 { return other.extreme64(a, b, 1) }, 2
	case "neg":
		return func(a, _, _ uint64) uint64 { return a ^ 1<<63 }, 1
	case "abs":
		return func(a, _, _ uint64) uint64 { return a &^ (1 << 63) }, 1
	case "copysign":
		return func(a, b, _ uint64) uint64 { return b&^(1<<63) | a&(1<<63) }, 2
	}
	return nil, 0
}

func (other nans) extreme64(a, b uint64, dir float64) uint64 {
	x, y := get64(a), get64(b)
	switch {
	case x != x && y != y:
		return other.word64(x, a)
	case x != x:
		return b
	case y != y:
		return a
	case x == y:
		if (a>>63 == 1) == (dir < 0) {
			return a
		}
		return b
	case (x < y) == (dir < 0):
		return a
	}
	return b
}

func finite(xs ...float64) bool {
	for _, x := range xs {
		if math.IsInf(x, 0) || x != x {
			return false
		}
	}
	return true
}

// exact is a big number whose sums and products of doubles are not rounded.
func exact(x float64) *big.Float { return new(big.Float).SetPrec(4400).SetFloat64(x) }

// directed rounds v, which is not zero, to a double in a direction.
func directed(v *big.Float, mode rounding) float64 {
	x, acc := v.Float64() // nearest
	if mode == rz {
		mode = rm
		if v.Signbit() {
			mode = rp
		}
	}
	switch {
	case mode == rm && acc == big.Above:
		return math.Nextafter(x, math.Inf(-1))
	case mode == rp && acc == big.Below:
		return math.Nextafter(x, math.Inf(1))
	}
	return x
}

func add64(x, y float64, mode rounding) float64 {
	if mode == rn || !finite(x, y) {
		return x + y
	}
	v := new(big.Float).Add(exact(x), exact(y))
	if v.Sign() == 0 {
		return sumOdd(x, y, mode)
	}
	return directed(v, mode)
}

func mul64(x, y float64, mode rounding) float64 {
	if mode == rn || !finite(x, y) || x == 0 || y == 0 {
		return x * y
	}
	return directed(new(big.Float).Mul(exact(x), exact(y)), mode)
}

func fma64(x, y, z float64, mode rounding) float64 {
	if mode == rn || !finite(x, y, z) || x == 0 || y == 0 {
		if mode != rn && finite(x, y, z) {
			return add64(x*y, z, mode)
		}
		return math.FMA(x, y, z)
	}
	p := new(big.Float).Mul(exact(x), exact(y))
	v := new(big.Float).Add(p, exact(z))
	if v.Sign() == 0 { // the product is z's opposite, so the sum of signs counts
		return sumOdd(-z, z, mode)
	}
	return directed(v, mode)
}

func div64(x, y float64, mode rounding) float64 {
	q := x / y
	if mode == rn || !finite(x, y) || x == 0 || y == 0 {
		return q
	}
	// The quotient does not have finitely many digits: enough of them, and the last
	// one odd if there are more.
	v := exact(x).Quo(exact(x), exact(y))
	return directed(v, mode)
}

func sqrt64(x float64, mode rounding) float64 {
	if mode == rn || !finite(x) || x <= 0 {
		return math.Sqrt(x)
	}
	return directed(new(big.Float).SetPrec(300).Sqrt(exact(x)), mode)
}

// flush is the scalar with subnormal .f32 operands and results as zeros.
func flush(f scalar) scalar {
	z := func(a uint64) uint64 {
		if a&0x7f800000 == 0 {
			return a & 0x80000000
		}
		return a
	}
	return func(a, b, c uint64) uint64 { return z(f(z(a), z(b), z(c))) }
}

// saturate is the scalar with its results in 0..1, NaN as 0.
func saturate(f scalar, k kind) scalar {
	if k == f32 {
		return func(a, b, c uint64) uint64 {
			x := get32(f(a, b, c))
			return uint64(math.Float32bits(float32(unit(float64(x)))))
		}
	}
	return func(a, b, c uint64) uint64 { return math.Float64bits(unit(get64(f(a, b, c)))) }
}

func unit(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(x, 1)
}

// floatCompare returns the comparison of kind k; names that end in u are true
// if an operand is a NaN.
func floatCompare(name string, k kind) func(a, b uint64) bool {
	f := compareFloats(name)
	if f == nil || k != f32 && k != f64 {
		return nil
	}
	if k == f32 {
		return func(a, b uint64) bool { return f(float64(get32(a)), float64(get32(b))) }
	}
	return func(a, b uint64) bool { return f(get64(a), get64(b)) }
}

func compareFloats(name string) func(x, y float64) bool {
	switch name {
	case "eq":
		return func(x, y float64) bool { return x == y }
	case "ne":
		return func(x, y float64) bool { return x < y || x > y }
	case "lt":
		return func(x, y float64) bool { return x < y }
	case "le":
		return func(x, y float64) bool { return x <= y }
	case "gt":
		return func(x, y float64) bool { return x > y }
	case "ge":
		return func(x, y float64) bool { return x >= y }
	case "equ":
		return func(x, y float64) bool { return !(x < y || x > y) }
	case "neu":
		return func(x, y float64) bool { return x != y }
	case "ltu":
		return func(x, y float64) bool { return !(x >= y) }
	case "leu":
		return func(x, y float64) bool { return !(x > y) }
	case "gtu":
		return func(x, y float64) bool { return !(x <= y) }
	case "geu":
		return func(x, y float64) bool { return !(x < y) }
	case "num":
		return func(x, y float64) bool { return x == x && y == y }
	case "nan":
		return func(x, y float64) bool { return x != x || y != y }
	}
	return nil
}
