//go:build amd64 && !noasm

package cpuavx

import (
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

func BenchmarkReduce(b *testing.B) {
	var all []backendtest.Named
	for i, v := range here(b) {
		if i == 0 {
			all = append(all, backendtest.Named{Name: "generic", Backend: v.Plain()})
		}
		all = append(all, backendtest.Named{Name: v.Level.Name, Backend: v})
	}
	backendtest.Benchmark(b, all...)
}
