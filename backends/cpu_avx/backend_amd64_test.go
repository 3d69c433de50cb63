//go:build amd64 && !noasm

package cpuavx

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/backends/internal/vectors"
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/backend/backendtest"
	"github.com/gopccl/gopccl/core/dtype"
)

// here are the backends that run on this machine; every check runs for each.
// The tests of the others show that their drivers say what is missing.
func here(tb testing.TB) []vectors.Backend {
	var vs []vectors.Backend
	for _, d := range drivers {
		l, err := d.Level()
		if err != nil {
			_, _, err = backend.Select(d.Name)
			require.ErrorContains(tb, err, "the processor has no AVX")
			continue
		}
		vs = append(vs, vectors.At(d.Name, l))
	}
	return vs
}

func TestConformance(t *testing.T) {
	for _, d := range drivers {
		if d.Probe() == nil {
			t.Run(d.Name, func(t *testing.T) { backendtest.Run(t, d) })
		}
	}
}

func TestBitsOfPlainGo(t *testing.T) {
	for _, v := range here(t) {
		t.Run(v.Level.Name, func(t *testing.T) { backendtest.Agree(t, v, v.Plain()) })
	}
}

// Each backend is had by its name; by itself the one with AVX2 is taken.
func TestChosen(t *testing.T) {
	for _, v := range here(t) {
		b, _, err := backend.Select(v.Name())
		require.NoError(t, err)
		require.Equal(t, v.Name(), b.Name())
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
				require.False(t, vectors.At("wrong", &wrong).Agrees(), "%v %v", typ, op)
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
