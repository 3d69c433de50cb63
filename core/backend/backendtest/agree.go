package backendtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
)

// Agree checks that b has the bits of oracle in every case, the NaNs of
// arithmetic included, which Run leaves open: all lengths from 0 to 4096
// elements (with -short only some of those above 200) at changing addresses,
// and all patterns of the 16 bit floats.
func Agree(t *testing.T, b, oracle backend.Backend) {
	for typ := range dtype.Type(dtype.NumTypes) {
		t.Run(typ.String(), func(t *testing.T) {
			if err := checkLengths(b, oracle, typ, testing.Short()); err != nil {
				t.Error(err)
			}
		})
	}
	for _, typ := range []dtype.Type{dtype.Float16, dtype.BFloat16} {
		t.Run(fmt.Sprint("all-", typ), func(t *testing.T) {
			if err := checkHalves(b, oracle, typ); err != nil {
				t.Error(err)
			}
		})
	}
}

// patterns fills b so that all bits of every element vary; for the floats NaNs
// with payloads, infinities, zeros of both signs and subnormals are frequent.
func patterns(t dtype.Type, b []byte, rng *rand.Rand) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	if !t.IsFloat() {
		return
	}
	for i := 0; i+t.Size() <= len(b); i += t.Size() {
		e := b[i : i+t.Size()]
		top, next := &e[len(e)-1], &e[len(e)-2]
		switch rng.IntN(8) {
		case 0: // infinite or NaN
			*top, *next = *top|0x7f, *next|0xf0
		case 1: // zero or subnormal
			*top, *next = *top&0x80, *next&0x03
		case 2: // zero
			clear(e[:len(e)-1])
			*top &= 0x80
		case 3: // infinite, but for formats with a shorter exponent
			clear(e)
			*top, *next = 0x7f, 0xf0
		case 4, 5: // about 1
			*top = *top&0x80 | 0x3f
		}
	}
}

func checkLengths(b, oracle backend.Backend, t dtype.Type, short bool) error {
	const most = 4096
	rng := rand.New(rand.NewPCG(uint64(t), 3))
	size := t.Size()
	x, y := make([]byte, most*size+64), make([]byte, most*size+64)
	got, want := make([]byte, most*size+64), make([]byte, most*size+64)
	patterns(t, x, rng)
	patterns(t, y, rng)
	same := func(n int) bool { // the bytes behind were not to be written
		end := n*size + 64
		return bytes.Equal(got[:end], want[:end])
	}
	for n := 0; n <= most; n++ {
		if short && n > 200 && n < most-1 {
			n = min(n+rng.IntN(60), most-1)
		}
		at := n % 5
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			if n > 300 && int(op)%5 != n%5 { // one operation per length
				continue
			}
			p, q := x[n%63:][:n*size], y[n%17:][:n*size]
			b.Reduce(t, op, got[at:][:n*size], p, q)
			oracle.Reduce(t, op, want[at:][:n*size], p, q)
			if !same(n) {
				return fmt.Errorf("%v of %d elements differs", op, n)
			}
		}
		if n%7 == 0 {
			b.Finalize(t, got[at:][:n*size], 2+n%9)
			oracle.Finalize(t, want[at:][:n*size], 2+n%9)
			if !same(n) {
				return fmt.Errorf("%d elements divided by %d differ", n, 2+n%9)
			}
		}
	}
	return nil
}

// checkHalves pairs all 65,536 patterns with chosen and random ones.
func checkHalves(b, oracle backend.Backend, t dtype.Type) error {
	all := make([]uint16, 1<<16)
	for i := range all {
		all[i] = uint16(i)
	}
	fixed := []uint16{0, 0x8000, 0x7c00, 0x7f80, 0xfc01, 0xff81, 0x7e00, 0x0001, 0x0400, 0x3c00, 0x3f80}
	rng := rand.New(rand.NewPCG(1, uint64(t)))
	other := make([]uint16, len(all))
	got, want := make([]byte, 2*len(all)), make([]byte, 2*len(all))
	x, y := dtype.AsBytes(all), dtype.AsBytes(other)
	for round := range 24 {
		for i := range other {
			other[i] = uint16(rng.Uint32())
			if round < len(fixed) {
				other[i] = fixed[round]
			}
		}
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			b.Reduce(t, op, got, x, y)
			oracle.Reduce(t, op, want, x, y)
			if err := equalHalves(got, want, all, other); err != nil {
				return fmt.Errorf("%v: %w", op, err)
			}
		}
	}
	for _, world := range []int{2, 3, 7, 16, 65537} {
		copy(got, x)
		copy(want, x)
		b.Finalize(t, got, world)
		oracle.Finalize(t, want, world)
		if err := equalHalves(got, want, all, all); err != nil {
			return fmt.Errorf("divided by %d: %w", world, err)
		}
	}
	return nil
}

func equalHalves(got, want []byte, x, y []uint16) error {
	g, w := dtype.View[uint16](got), dtype.View[uint16](want)
	for i := range w {
		if g[i] != w[i] {
			return fmt.Errorf("%#04x and %#04x give %#04x, want %#04x", x[i], y[i], g[i], w[i])
		}
	}
	return nil
}
