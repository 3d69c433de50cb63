// Package backendtest is the proof that a reduce backend does what
// backend.Backend asks: every operation on every element type against a dumb
// oracle and the vectors of PCCL 1.0.0, for all short lengths and some long
// ones, every aliasing, odd addresses, NaN and signed zero rules, and nothing
// written outside dst.
package backendtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/allocs"
)

// Run checks the backend of d. A driver whose Probe fails skips nothing: the
// caller decides whether a machine without the hardware is a failure.
func Run(t *testing.T, d backend.Driver) {
	if err := d.Probe(); err != nil {
		t.Fatalf("probe: %v", err)
	}
	b, err := d.New()
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	if b.Name() == "" {
		t.Error("the backend has no name")
	}
	for typ := range dtype.Type(dtype.NumTypes) {
		t.Run(typ.String(), func(t *testing.T) {
			for op := dtype.Sum; op < dtype.NumOps; op++ {
				if err := checkReduce(b, typ, op); err != nil {
					t.Errorf("%v: %v", op, err)
				}
			}
			if err := checkFinalize(b, typ); err != nil {
				t.Errorf("finalize: %v", err)
			}
			if n := allocations(b, typ); n != 0 {
				t.Errorf("%v allocations per call, want none", n)
			}
		})
	}
	t.Run("vectors", func(t *testing.T) {
		if err := checkVectors(b); err != nil {
			t.Error(err)
		}
	})
	t.Run("concurrent", func(t *testing.T) {
		for i := range 4 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				if err := checkReduce(b, dtype.Float32, dtype.Sum); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// lengths in elements: all short ones, around powers of two, and long ones.
func lengths() []int {
	var l []int
	for n := range 65 {
		l = append(l, n)
	}
	return append(l, 127, 128, 129, 257, 1000, 4099)
}

// few of the short lengths meet every aliasing and every offset.
var few = map[int]bool{0: true, 1: true, 3: true, 7: true, 8: true, 15: true, 17: true, 33: true, 64: true}

// offsets of the three operands from a 64 byte border, in bytes.
var offsets = [][3]int{{0, 0, 0}, {8, 8, 8}, {4, 12, 20}, {1, 1, 1}, {0, 3, 0}, {5, 2, 7}, {32, 16, 48}}

const guard = 64

// arena is memory whose payload starts offset bytes after a 64 byte border,
// with guard bytes on both sides.
type arena struct{ all, payload []byte }

func newArena(n, offset int, rng *rand.Rand) arena {
	raw := make([]byte, n+offset+2*guard+64)
	start := guard
	for !dtype.Aligned(raw[start:], 64) {
		start++
	}
	a := arena{raw, raw[start+offset : start+offset+n]}
	for i := 0; i+8 <= len(raw); i += 8 {
		binary.LittleEndian.PutUint64(raw[i:], rng.Uint64())
	}
	return a
}

// changedOutside reports whether a byte outside the payload differs from before.
func (a arena) changedOutside(before []byte) bool {
	payload := bytes.Clone(a.payload)
	start := cap(a.all) - cap(a.payload)
	copy(a.payload, before[start:])
	changed := !bytes.Equal(a.all, before)
	copy(a.payload, payload)
	return changed
}

// specials are the patterns of t with which mistakes are made.
func specials(t dtype.Type) []uint64 {
	if !t.IsFloat() {
		top := uint64(1) << (8*t.Size() - 1)
		return []uint64{0, 1, 2, 3, mask(t), mask(t) - 1, top, top - 1, top + 1, 0x55 & mask(t)}
	}
	fraction, bias := format(t)
	inf := uint64(2*bias+1) << fraction
	s := []uint64{
		0, 1, 2, 1<<fraction - 1, 1 << fraction, 1<<fraction + 1, // zero, subnormals, smallest normals
		inf - 1, inf, inf | 1<<(fraction-1), inf | 1<<(fraction-1) | 5, inf | 1, // largest, infinite, quiet and signalling NaNs
		uint64(bias) << fraction, uint64(bias)<<fraction | 1, uint64(bias-fraction-1) << fraction, // 1, above 1, half a step of 1
	}
	for _, v := range s[:len(s):len(s)] {
		s = append(s, v|1<<(8*t.Size()-1))
	}
	return s
}

// fill writes patterns: a third special, a third random, a third ordinary
// numbers whose results are finite.
func fill(t dtype.Type, b []byte, rng *rand.Rand) {
	sp := specials(t)
	for i := 0; i < len(b); i += t.Size() {
		v := rng.Uint64() & mask(t)
		switch {
		case rng.IntN(3) == 0:
			v = sp[rng.IntN(len(sp))]
		case t.IsFloat() && rng.IntN(2) == 0:
			v = pattern(t, round(t, rng.NormFloat64()))
		}
		store(t, b[i:], v)
	}
}

// aliasing of the operands of a reduction.
const (
	separate = iota
	dstIsA
	dstIsB
	allSame
	aIsB
	numAliases
)

// Data spec, section 3.
func checkReduce(b backend.Backend, t dtype.Type, op dtype.Op) error {
	rng := rand.New(rand.NewPCG(uint64(t), uint64(op)))
	for _, n := range lengths() {
		for alias := range numAliases {
			for _, off := range offsets {
				plain := alias == separate && off == offsets[0]
				if !plain && (n > 64 && (alias > dstIsA || off != offsets[5]) || n <= 64 && !few[n]) {
					continue
				}
				if err := reduceOnce(b, t, op, n, alias, off, rng); err != nil {
					return fmt.Errorf("%d elements, aliasing %d, offsets %v: %w", n, alias, off, err)
				}
			}
		}
	}
	return nil
}

func reduceOnce(b backend.Backend, t dtype.Type, op dtype.Op, n, alias int, off [3]int, rng *rand.Rand) error {
	size := t.Size()
	dst, x, y := newArena(n*size, off[0], rng), newArena(n*size, off[1], rng), newArena(n*size, off[2], rng)
	switch alias {
	case dstIsA:
		x = dst
	case dstIsB:
		y = dst
	case allSame:
		x, y = dst, dst
	case aIsB:
		y = x
	}
	fill(t, x.payload, rng)
	fill(t, y.payload, rng)
	want := make([]byte, n*size)
	for i := 0; i < len(want); i += size {
		store(t, want[i:], reduceOne(t, op, load(t, x.payload[i:]), load(t, y.payload[i:])))
	}
	dstBefore, xBefore, yBefore := bytes.Clone(dst.all), bytes.Clone(x.all), bytes.Clone(y.all)
	b.Reduce(t, op, dst.payload, x.payload, y.payload)
	if err := compare(t, op == dtype.Max || op == dtype.Min, dst.payload, want); err != nil {
		return err
	}
	switch {
	case dst.changedOutside(dstBefore):
		return fmt.Errorf("bytes around dst were written")
	case alias != dstIsA && alias != allSame && !bytes.Equal(x.all, xBefore):
		return fmt.Errorf("operand a was written")
	case alias != dstIsB && alias != allSame && !bytes.Equal(y.all, yBefore):
		return fmt.Errorf("operand b was written")
	}
	return nil
}

// Data spec, section 3. World sizes that the element type cannot hold divide like all others.
func checkFinalize(b backend.Backend, t dtype.Type) error {
	rng := rand.New(rand.NewPCG(uint64(t), 99))
	for _, world := range []int{1, 2, 3, 4, 7, 10, 16, 100, 127, 128, 255, 256, 257, 1000, 65537} {
		for _, n := range lengths() {
			if world > 7 && !few[n] {
				continue
			}
			for _, off := range offsets[:4] {
				if off != offsets[0] && !few[n] {
					continue
				}
				a := newArena(n*t.Size(), off[0], rng)
				fill(t, a.payload, rng)
				before := bytes.Clone(a.all)
				want := make([]byte, n*t.Size())
				for i := 0; i < len(want); i += t.Size() {
					store(t, want[i:], divideOne(t, load(t, a.payload[i:]), world))
				}
				b.Finalize(t, a.payload, world)
				if err := compare(t, false, a.payload, want); err != nil {
					return fmt.Errorf("%d elements, offset %d, world %d: %w", n, off[0], world, err)
				}
				if a.changedOutside(before) {
					return fmt.Errorf("%d elements, offset %d, world %d: bytes around dst were written", n, off[0], world)
				}
			}
		}
	}
	return nil
}

func allocations(b backend.Backend, t dtype.Type) float64 {
	dst, x, y := make([]byte, 4096), make([]byte, 4096), make([]byte, 4096)
	most := 0.0
	for op := dtype.Sum; op < dtype.NumOps; op++ {
		most = math.Max(most, allocs.PerRun(10, func() {
			b.Reduce(t, op, dst, x, y)
			b.Reduce(t, op, dst[1:4088+1], x[:4088], y[:4088])
			b.Finalize(t, dst, 3)
		}))
	}
	return most
}
