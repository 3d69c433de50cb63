package dtype

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// format describes a 16 bit floating point format for the oracle.
type format struct {
	name     string
	fraction int // explicit fraction bits
	bias     int
	widen    func(uint16) float32
	narrow   func(float32) uint16
}

var formats = []format{
	{"float16", 10, 15, Float16ToFloat32, Float16FromFloat32},
	{"bfloat16", 7, 127, BFloat16ToFloat32, BFloat16FromFloat32},
}

func (f format) inf() uint16 { return 0x7fff >> f.fraction << f.fraction }

// value is the value of a finite pattern by the definition of the format.
func (f format) value(h uint16) float64 {
	exp := int(h&0x7fff) >> f.fraction
	frac := float64(int(h) & (1<<f.fraction - 1))
	v := math.Ldexp(frac, 1-f.bias-f.fraction)
	if exp > 0 {
		v = math.Ldexp(float64(int(1)<<f.fraction)+frac, exp-f.bias-f.fraction)
	}
	return math.Copysign(v, 1-2*float64(h>>15))
}

// nearest is the pattern next to x by search, ties to the even pattern.
func (f format) nearest(x float64) uint16 {
	sign := uint16(0)
	if math.Signbit(x) {
		sign, x = 0x8000, -x
	}
	lo, hi := uint16(0), f.inf()
	for hi-lo > 1 {
		if mid := lo + (hi-lo)/2; f.value(mid) <= x {
			lo = mid
		} else {
			hi = mid
		}
	}
	// The infinite pattern stands for the next power of two, so that the
	// border of overflow is half way to it.
	low, high := x-f.value(lo), f.value(hi)-x
	if high < low || high == low && hi%2 == 0 {
		lo = hi
	}
	return sign | lo
}

func TestWideningIsExactForEveryPattern(t *testing.T) {
	for _, f := range formats {
		for i := range 1 << 16 {
			h := uint16(i)
			got := f.widen(h)
			switch {
			case h&0x7fff < f.inf():
				require.Equal(t, math.Float64bits(f.value(h)), math.Float64bits(float64(got)), "%s %#04x", f.name, h)
			case h&0x7fff == f.inf():
				require.True(t, math.IsInf(float64(got), 1-2*int(h>>15)), "%s %#04x", f.name, h)
			default:
				require.True(t, got != got, "%s %#04x", f.name, h)
			}
		}
	}
}

func TestEveryPatternSurvivesTheRoundTrip(t *testing.T) {
	for _, f := range formats {
		quiet := uint16(1) << (f.fraction - 1)
		for i := range 1 << 16 {
			h, want := uint16(i), uint16(i)
			if h&0x7fff > f.inf() {
				want |= quiet
			}
			require.Equal(t, want, f.narrow(f.widen(h)), "%s %#04x", f.name, h)
		}
	}
}

// Every border between two neighbouring patterns: the exact middle goes to the
// even one, one float32 step beside it to the nearer one.
func TestNarrowingRoundsToNearestEvenAtEveryBorder(t *testing.T) {
	for _, f := range formats {
		for h := uint16(0); h < f.inf(); h++ {
			mid := float32((f.value(h) + f.value(h+1)) / 2)
			even := h + h&1
			below, above := math.Nextafter32(mid, 0), math.Nextafter32(mid, math.MaxFloat32)
			for _, sign := range []uint16{0, 0x8000} {
				s := float32(1 - 2*int(sign>>15))
				require.Equal(t, sign|even, f.narrow(s*mid), "%s middle above %#04x", f.name, h)
				require.Equal(t, sign|h, f.narrow(s*below), "%s below the middle above %#04x", f.name, h)
				if above > mid { // false where the middle is the largest float32
					require.Equal(t, sign|(h+1), f.narrow(s*above), "%s above the middle above %#04x", f.name, h)
				}
			}
		}
	}
}

func TestNarrowingAgreesWithTheSearchOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range formats {
		for range 200000 {
			b := rng.Uint32()
			x := math.Float32frombits(b)
			if x != x {
				got := f.narrow(x)
				require.Greater(t, got&0x7fff, f.inf(), "%s %#08x is a NaN", f.name, b)
				require.Equal(t, uint16(b>>16)&0x8000, got&0x8000)
				continue
			}
			if math.IsInf(float64(x), 0) {
				require.Equal(t, uint16(b>>16)&0x8000|f.inf(), f.narrow(x))
				continue
			}
			require.Equal(t, f.nearest(float64(x)), f.narrow(x), "%s %#08x", f.name, b)
		}
	}
}

// A signalling NaN whose payload lies only in the bits cut off must not become infinite.
func TestNarrowingKeepsNaNs(t *testing.T) {
	snan := math.Float32frombits(0x7f800001)
	require.Equal(t, uint16(0x7e00), Float16FromFloat32(snan))
	require.Equal(t, uint16(0x7fc0), BFloat16FromFloat32(snan))
	require.Equal(t, uint16(0xfe00), Float16FromFloat32(math.Float32frombits(0xff800001)))
	require.Equal(t, uint16(0xffff), BFloat16FromFloat32(math.Float32frombits(0xffffffff)))
}
