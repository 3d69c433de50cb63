//go:build arm64 && !noasm

package cpuneon

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/backends/internal/vectors"
	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/backend/backendtest"
	"github.com/gopccl/gopccl/core/dtype"
)

func here() vectors.Backend { return vectors.At(Name, &neon) }

func TestConformance(t *testing.T) {
	backendtest.Run(t, driver)
}

func TestBitsOfPlainGo(t *testing.T) {
	backendtest.Agree(t, here(), here().Plain())
}

func TestChosen(t *testing.T) {
	require.True(t, here().Agrees())
	b, passed, err := backend.Select("auto")
	require.NoError(t, err)
	require.Empty(t, passed)
	require.Equal(t, Name, b.Name())
}

// A kernel with wrong results is not used.
func TestWrongKernelIsNoticed(t *testing.T) {
	for typ := range dtype.Type(dtype.NumTypes) {
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			wrong := neon
			right := wrong.Reduce[typ][op]
			wrong.Reduce[typ][op] = func(dst, a, b *byte, n int) {
				right(dst, a, b, n)
				*dst ^= 1
			}
			require.False(t, vectors.At(Name, &wrong).Agrees(), "%v %v", typ, op)
		}
	}
}

func BenchmarkReduce(b *testing.B) {
	backendtest.Benchmark(b,
		backendtest.Named{Name: "generic", Backend: here().Plain()},
		backendtest.Named{Name: neon.Name, Backend: here()})
}
