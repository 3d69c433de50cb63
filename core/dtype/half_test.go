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
			ok := got != got
			switch {
			case h&0x7fff < f.inf():
				ok = math.Float64bits(f.value(h)) == math.Float64bits(float64(got))
			case h&0x7fff == f.inf():
				ok = math.IsInf(float64(got), 1-2*int(h>>15))
			}
			if !ok {
				t.Fatalf("%s %#04x becomes %v", f.name, h, got)
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
			if got := f.narrow(f.widen(h)); got != want {
				t.Fatalf("%s %#04x becomes %#04x", f.name, h, got)
			}
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
				if got := f.narrow(s * mid); got != sign|even {
					t.Fatalf("%s middle above %#04x becomes %#04x", f.name, h, got)
				}
				if got := f.narrow(s * below); got != sign|h {
					t.Fatalf("%s below the middle above %#04x becomes %#04x", f.name, h, got)
				}
				if got := f.narrow(s * above); above > mid && got != sign|(h+1) { // the middle may be the largest float32
					t.Fatalf("%s above the middle above %#04x becomes %#04x", f.name, h, got)
				}
			}
		}
	}
}

func TestNarrowingAgreesWithTheSearchOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range formats {
		for range 50000 {
			b := rng.Uint32()
			x := math.Float32frombits(b)
			if x != x {
				if got := f.narrow(x); got&0x7fff <= f.inf() || got&0x8000 != uint16(b>>16)&0x8000 {
					t.Fatalf("%s NaN %#08x becomes %#04x", f.name, b, got)
				}
				continue
			}
			want := uint16(b>>16)&0x8000 | f.inf()
			if !math.IsInf(float64(x), 0) {
				want = f.nearest(float64(x))
			}
			if got := f.narrow(x); got != want {
				t.Fatalf("%s %#08x becomes %#04x, want %#04x", f.name, b, got, want)
			}
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
