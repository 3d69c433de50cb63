package ptxtest

import "math/big"

// format is a binary floating-point format, for an oracle that knows nothing
// but how its patterns are ordered.
type format struct{ bits, fraction int }

var formats = map[kind]format{f16: {16, 10}, f32: {32, 23}, f64: {64, 52}}

// inf is the pattern of infinity.
func (f format) inf() uint64 {
	return (1<<(f.bits-1) - 1) >> f.fraction << f.fraction
}

// number is the number of a finite pattern without a sign. All arithmetic with
// such numbers is exact.
func (f format) number(p uint64) *big.Float {
	bias := 1<<(f.bits-2-f.fraction) - 1
	e, m := int(p>>f.fraction), p&(1<<f.fraction-1)
	if e == 0 {
		e = 1
	} else {
		m |= 1 << f.fraction
	}
	v := new(big.Float).SetPrec(9000).SetUint64(m)
	return v.SetMantExp(v, e-bias-f.fraction)
}

// special reports a pattern that is infinite or no number.
func (f format) special(p uint64) bool { return f.abs(p) >= f.inf() }

func (f format) abs(p uint64) uint64 { return p & (1<<(f.bits-1) - 1) }
func (f format) neg(p uint64) bool   { return p>>(f.bits-1)&1 == 1 }

// value is the number of a finite pattern.
func (f format) value(p uint64) *big.Float {
	v := f.number(f.abs(p))
	if f.neg(p) {
		v.Neg(v)
	}
	return v
}

// round finds the pattern of a number that is not zero, given as its sign and
// a comparison with its magnitude, by bisection.
func (f format) round(neg bool, cmp func(*big.Float) int, mode rounding) uint64 {
	lo, hi := uint64(0), f.inf() // lo is at most the number, hi is more
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; cmp(f.number(mid)) <= 0 {
			lo = mid
		} else {
			hi = mid
		}
	}
	up := false
	if x := f.number(lo); cmp(x) != 0 {
		switch mode {
		case rp:
			up = !neg
		case rm:
			up = neg
		case rn:
			// Above the largest number the next one would be as far as below it.
			step := new(big.Float).Sub(x, f.number(lo-min(lo, 1)))
			if lo < f.inf()-1 {
				step.Sub(f.number(lo+1), x)
			}
			step.SetMantExp(step, -1)
			c := cmp(step.Add(step, x))
			up = c < 0 || c == 0 && lo&1 == 1
		}
	}
	if up {
		lo++
	}
	if neg {
		lo |= 1 << (f.bits - 1)
	}
	return lo
}

// nearest rounds a number that is not zero.
func (f format) nearest(v *big.Float, mode rounding) uint64 {
	a := new(big.Float).Abs(v)
	return f.round(v.Signbit(), func(x *big.Float) int { return x.Cmp(a) }, mode)
}

// interesting are patterns of a format: edges of everything.
func (f format) interesting() []uint64 {
	one := uint64(1)<<(f.bits-2) - 1
	one = one >> f.fraction << f.fraction
	list := []uint64{
		0, 1, 2, 3, 1<<f.fraction - 1, 1 << f.fraction, 1<<f.fraction + 1,
		one - 1, one, one + 1, one + 1<<(f.fraction-1), one + 1<<f.fraction, one + 3<<(f.fraction-1),
		f.inf() - 1, f.inf() - 2, f.inf(), f.inf() + 1, f.inf() + 1<<(f.fraction-1), 1<<(f.bits-1) - 1,
		one - 1<<(f.fraction+3), one + 5<<f.fraction, one + uint64(f.fraction)<<f.fraction, one + uint64(f.fraction+1)<<f.fraction + 1,
	}
	for _, p := range list {
		list = append(list, p|1<<(f.bits-1))
	}
	return list
}

// nan reports whether a pattern is NaN.
func (f format) nan(p uint64) bool { return f.abs(p) > f.inf() }

// bigOf is the integer in a register of a kind.
func bigOf(k kind, v uint64) *big.Int {
	v = extend(k, v)
	if k.signed() {
		return big.NewInt(int64(v))
	}
	return new(big.Int).SetUint64(v)
}

// low is the last n bits of an integer.
func low(v *big.Int, n int) uint64 {
	m := new(big.Int).Lsh(big.NewInt(1), uint(n))
	return new(big.Int).Mod(v, m).Uint64()
}
