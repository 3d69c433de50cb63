//go:build amd64 && !noasm

package cpuavx

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/backends/vectors"
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/backend/backendtest"
	"github.com/gopccl/gopccl/core/dtype"
)

// here are the levels of this machine; every check runs for each. A processor
// without AVX2 has none, and its tests show that the driver says so.
func here(tb testing.TB) []vectors.Backend {
	ls, err := levels()
	if err != nil {
		_, _, err = backend.Select(Name)
		require.ErrorContains(tb, err, "AVX2")
	}
	var vs []vectors.Backend
	for _, l := range ls {
		vs = append(vs, vectors.At(Name, l))
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
		t.Run(v.Level.Name, func(t *testing.T) { backendtest.Run(t, one{Driver{}, v}) })
	}
}

func TestBitsOfPlainGo(t *testing.T) {
	for _, v := range here(t) {
		t.Run(v.Level.Name, func(t *testing.T) { backendtest.Agree(t, v, v.Plain()) })
	}
}

func TestChosen(t *testing.T) {
	for _, v := range here(t) {
		require.True(t, v.Agrees(), v.Level.Name)
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
				if v.Level.Reduce[typ][op] == nil {
					continue
				}
				wrong := *v.Level
				right := wrong.Reduce[typ][op]
				wrong.Reduce[typ][op] = func(dst, a, b *byte, n int) {
					right(dst, a, b, n)
					*dst ^= 1
				}
				require.False(t, vectors.At(Name, &wrong).Agrees(), "%v %v", typ, op)
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
			all = append(all, named{"generic", v.Plain()})
		}
		all = append(all, named{v.Level.Name, v})
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
