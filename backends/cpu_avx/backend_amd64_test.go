//go:build amd64 && !noasm

package cpuavx

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/backend/backendtest"
	"github.com/gopccl/gopccl/core/dtype"
)

// here are the levels of this machine; every check runs for each. A processor
// without AVX2 has none, and its tests show that the driver says so.
func here(tb testing.TB) []vectors {
	ls, err := levels()
	if err != nil {
		_, _, err = backend.Select(Name)
		require.ErrorContains(tb, err, "AVX2")
	}
	var vs []vectors
	for _, l := range ls {
		vs = append(vs, at(l))
	}
	return vs
}

// one is a driver for a certain level.
type one struct {
	Driver
	b backend.Backend
}

func (o one) New() (backend.Backend, error) { return o.b, nil }

func TestConformance(t *testing.T) {
	for _, v := range here(t) {
		t.Run(v.name, func(t *testing.T) { backendtest.Run(t, one{Driver{}, v}) })
	}
}

func TestChosen(t *testing.T) {
	for _, v := range here(t) {
		require.True(t, v.agrees(), v.name)
		b, passed, err := backend.Select("auto")
		require.NoError(t, err)
		require.Empty(t, passed)
		require.Equal(t, Name, b.Name())
	}
}

// A kernel with wrong results is not used.
func TestWrongKernelIsNoticed(t *testing.T) {
	for _, v := range here(t) {
		for typ := range dtype.Type(dtype.NumTypes) {
			for op := dtype.Sum; op < dtype.NumOps; op++ {
				if v.reduce[typ][op] == nil {
					continue
				}
				wrong := *v.level
				right := wrong.reduce[typ][op]
				wrong.reduce[typ][op] = func(dst, a, b *byte, n int) {
					right(dst, a, b, n)
					*dst ^= 1
				}
				require.False(t, vectors{&wrong, v.rest}.agrees(), "%v %v", typ, op)
			}
		}
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

// Every length from 0 to 4096 elements against the oracle, bit for bit, NaNs included.
func TestEveryLength(t *testing.T) {
	for _, v := range here(t) {
		for typ := range dtype.Type(dtype.NumTypes) {
			t.Run(fmt.Sprint(v.name, "/", typ), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(uint64(typ), 3))
				const most = 4096
				size := typ.Size()
				a, b := make([]byte, most*size+64), make([]byte, most*size+64)
				got, want := make([]byte, most*size+64), make([]byte, most*size+64)
				patterns(typ, a, rng)
				patterns(typ, b, rng)
				same := func(op dtype.Op, n int) {
					end := n*size + 64 // the bytes behind were not to be written
					if !bytes.Equal(got[:end], want[:end]) {
						require.FailNow(t, "differs", "operation %d of %d elements", op, n)
					}
				}
				for n := range most + 1 {
					for op := dtype.Sum; op < dtype.NumOps; op++ {
						if n > 300 && int(op)%5 != n%5 { // one operation per length
							continue
						}
						offset := n % 63
						x, y := a[offset:offset+n*size], b[n%17:n%17+n*size]
						v.Reduce(typ, op, got[n%5:n%5+n*size], x, y)
						v.rest.Reduce(typ, op, want[n%5:n%5+n*size], x, y)
						same(op, n)
					}
					if n%7 == 0 {
						v.Finalize(typ, got[n%5:n%5+n*size], 2+n%9)
						v.rest.Finalize(typ, want[n%5:n%5+n*size], 2+n%9)
						same(dtype.NumOps, n)
					}
				}
			})
		}
	}
}

// Pairs of all 65,536 patterns of the 16 bit floats with chosen and random ones.
func TestAllHalves(t *testing.T) {
	for _, v := range here(t) {
		for _, typ := range []dtype.Type{dtype.Float16, dtype.BFloat16} {
			all := make([]uint16, 1<<16)
			for i := range all {
				all[i] = uint16(i)
			}
			rng := rand.New(rand.NewPCG(1, uint64(typ)))
			other := make([]uint16, len(all))
			got, want := make([]byte, 2*len(all)), make([]byte, 2*len(all))
			for round := range 24 {
				fixed := []uint16{0, 0x8000, 0x7c00, 0x7f80, 0xfc01, 0xff81, 0x7e00, 0x0001, 0x0400, 0x3c00, 0x3f80}
				for i := range other {
					other[i] = uint16(rng.Uint32())
					if round < len(fixed) {
						other[i] = fixed[round]
					}
				}
				x, y := dtype.AsBytes(all), dtype.AsBytes(other)
				for op := dtype.Sum; op < dtype.NumOps; op++ {
					v.Reduce(typ, op, got, x, y)
					v.rest.Reduce(typ, op, want, x, y)
					require.True(t, bytes.Equal(got, want), "%v %v %v round %d", v.name, typ, op, round)
				}
			}
			for _, world := range []int{2, 3, 7, 16, 65537} {
				copy(got, dtype.AsBytes(all))
				copy(want, dtype.AsBytes(all))
				v.Finalize(typ, got, world)
				v.rest.Finalize(typ, want, world)
				require.True(t, bytes.Equal(got, want), "%v %v by %d", v.name, typ, world)
			}
		}
	}
}

// The bytes per second of one operand, in cache.
func BenchmarkReduce(b *testing.B) {
	type named struct {
		name string
		backend.Backend
	}
	var all []named
	for i, v := range here(b) {
		if i == 0 {
			all = append(all, named{"generic", v.rest})
		}
		all = append(all, named{v.name, v})
	}
	const size = 128 << 10
	x, y, dst := make([]byte, size), make([]byte, size), make([]byte, size)
	for i := range x {
		x[i], y[i] = byte(i*7919>>3), byte(i*104729>>5)
	}
	for t := range dtype.Type(dtype.NumTypes) {
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			if op == dtype.Avg {
				continue
			}
			for _, v := range all {
				b.Run(fmt.Sprint(t, "/", op, "/", v.name), func(b *testing.B) {
					b.SetBytes(size)
					for b.Loop() {
						v.Reduce(t, op, dst, x, y)
					}
				})
			}
		}
		for _, v := range all {
			b.Run(fmt.Sprint(t, "/finalize3/", v.name), func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					v.Finalize(t, dst, 3)
				}
			})
		}
	}
}
