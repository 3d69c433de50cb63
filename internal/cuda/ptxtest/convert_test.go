package ptxtest

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

var integerKinds = []kind{u8, u16, u32, u64, s8, s16, s32, s64}

// limited is v within the numbers of k.
func limited(k kind, v *big.Int) *big.Int {
	n := uint(8 * k.bytes())
	lo, hi := new(big.Int), new(big.Int).Lsh(big.NewInt(1), n)
	if k.signed() {
		hi.Rsh(hi, 1)
		lo.Neg(hi)
	}
	hi.Sub(hi, big.NewInt(1))
	switch {
	case v.Cmp(lo) < 0:
		return lo
	case v.Cmp(hi) > 0:
		return hi
	}
	return v
}

func TestConversionsOfIntegers(t *testing.T) {
	r := rand.New(rand.NewPCG(61, 62))
	for _, from := range integerKinds {
		for _, to := range integerKinds {
			operands := integersOf(r, 60)
			for _, sat := range []string{"", ".sat"} {
				op := "cvt" + sat + "." + to.String() + "." + from.String()
				got := evaluate(t, Options{}, one(op, to, from), operands)
				for i, v := range operands {
					x := bigOf(from, v[0])
					if sat != "" {
						x = limited(to, x)
					}
					n := 8 * to.bytes()
					require.Equal(t, low(x, n), got[i]&mask(uint32(n)), "%s %#x", op, v[0])
				}
			}
		}
	}
}

func TestConversionsToFloats(t *testing.T) {
	r := rand.New(rand.NewPCG(63, 64))
	for _, to := range []kind{f16, f32, f64} {
		f := formats[to]
		for _, from := range integerKinds {
			for mode, word := range modeNames {
				operands := integersOf(r, 30)
				op := "cvt." + word + "." + to.String() + "." + from.String()
				got := evaluate(t, Options{}, one(op, to, from), operands)
				for i, v := range operands {
					want := uint64(0)
					if x := bigOf(from, v[0]); x.Sign() != 0 {
						want = f.nearest(new(big.Float).SetPrec(9000).SetInt(x), mode)
					}
					require.Equal(t, want, got[i]&mask(uint32(f.bits)), "%s %#x", op, v[0])
				}
			}
		}
	}
}

// integral is a number without what is behind its point.
func integral(v *big.Float, mode rounding) *big.Int {
	whole, _ := v.Int(nil) // to zero
	rest := new(big.Float).SetPrec(9000).Sub(v, new(big.Float).SetPrec(9000).SetInt(whole))
	away := false
	switch c := new(big.Float).Abs(rest).Cmp(big.NewFloat(0.5)); mode {
	case rn:
		away = c > 0 || c == 0 && whole.Bit(0) == 1
	case rm:
		away = rest.Sign() < 0
	case rp:
		away = rest.Sign() > 0
	}
	if !away {
		return whole
	}
	return whole.Add(whole, big.NewInt(int64(v.Sign())))
}

func TestConversionsOfFloats(t *testing.T) {
	r := rand.New(rand.NewPCG(65, 66))
	for _, from := range []kind{f16, f32, f64} {
		f := formats[from]
		operands := floatsOf(r, f, 40)
		for i := range 30 { // numbers with a fraction
			v := f.nearest(new(big.Float).Quo(big.NewFloat(float64(r.IntN(2000)-1000)+0.5), big.NewFloat(float64(1+i%4))), rn)
			operands = append(operands, [3]uint64{v})
		}
		for mode, word := range modeNames {
			for _, to := range integerKinds {
				op := "cvt." + word + "i." + to.String() + "." + from.String()
				got := evaluate(t, Options{}, one(op, to, from), operands)
				n := 8 * to.bytes()
				for i, v := range operands {
					want := uint64(0)
					p := v[0]
					switch {
					case f.nan(p) && (n == 64 || from == f64):
						want = 1 << (n - 1)
					case f.nan(p):
					case f.special(p):
						huge := new(big.Int).Lsh(big.NewInt(1), 70)
						if f.neg(p) {
							huge.Neg(huge)
						}
						want = low(limited(to, huge), n)
					default:
						want = low(limited(to, integral(f.value(p), mode)), n)
					}
					require.Equal(t, want, got[i]&mask(uint32(n)), "%s %#x", op, p)
				}
			}
			for _, to := range []kind{f16, f32, f64} {
				g := formats[to]
				for _, whole := range []string{"", "i"} {
					if whole == "" && to.bytes() >= from.bytes() || whole == "i" && to != from {
						continue
					}
					op := "cvt." + word + whole + "." + to.String() + "." + from.String()
					got := evaluate(t, Options{}, one(op, to, from), operands)
					for i, v := range operands {
						p := v[0]
						n := got[i] & mask(uint32(g.bits))
						switch {
						case f.nan(p):
							require.True(t, g.nan(n), "%s %#x: %#x", op, p, n)
							continue
						case f.special(p):
							require.Equal(t, g.inf(), g.abs(n))
							require.Equal(t, f.neg(p), g.neg(n))
							continue
						}
						x := f.value(p)
						if whole == "i" {
							x = new(big.Float).SetPrec(9000).SetInt(integral(x, mode))
						}
						want := uint64(0)
						if x.Sign() != 0 {
							want = g.nearest(x, mode)
						} else if f.neg(p) {
							want = 1 << (g.bits - 1)
						}
						require.Equal(t, want, n, "%s %#x", op, p)
					}
				}
			}
		}
		// To a wider type nothing is rounded.
		for _, to := range []kind{f32, f64} {
			if to.bytes() <= from.bytes() {
				continue
			}
			g := formats[to]
			got := evaluate(t, Options{}, one("cvt."+to.String()+"."+from.String(), to, from), operands)
			for i, v := range operands {
				n := got[i] & mask(uint32(g.bits))
				if f.special(v[0]) {
					require.Equal(t, f.nan(v[0]), g.nan(n))
					require.GreaterOrEqual(t, g.abs(n), g.inf())
					continue
				}
				require.Zero(t, f.value(v[0]).Cmp(g.value(n)), "%#x %#x", v[0], n)
				require.Equal(t, f.neg(v[0]), g.neg(n))
			}
		}
	}
	got := evaluate(t, Options{}, one("cvt.sat.f32.f32", f32, f32), [][3]uint64{{0x7fc00000}, {0x3f000000}, {0x40000000}, {0xbf800000}, {0x7f800000}})
	for i, want := range []uint64{0, 0x3f000000, 0x3f800000, 0, 0x3f800000} {
		require.Equal(t, want, got[i]&0xffffffff)
	}
	got = evaluate(t, Options{}, one("cvt.rn.sat.f16.f32", f16, f32), [][3]uint64{{0x7fc00000}, {0x3f000000}, {0x40000000}, {0xbf800000}})
	for i, want := range []uint64{0, 0x3800, 0x3c00, 0} {
		require.Equal(t, want, got[i]&0xffff)
	}
}
