package linear

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/allocs"
)

// A walk over slices at any address meets every element once, in its place, and
// allocates nothing.
func TestPairWalks(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 257, 1000} {
		for _, td := range []dtype.Type{dtype.Uint8, dtype.Uint16, dtype.Float64} {
			src := make([]byte, 4*n+1)[1:]
			for i := range src {
				src[i] = byte(i * 7)
			}
			dst := bytes.Repeat([]byte{9}, n*td.Size()+1)[1:]
			walk := func() {
				var pair Pair
				d, s := dst, src
				for len(d) > 0 {
					a, b := pair.Load(td, d, dtype.Float32, s)
					if !Aligned(td, a, dtype.Float32, b) || len(a)/td.Size() != len(b)/4 {
						t.Fatalf("%d elements of %v: %d and %d bytes", n, td, len(a), len(b))
					}
					for i := range len(b) / 4 {
						a[i*td.Size()] += b[4*i]
					}
					d, s = d[copy(d, a):], s[len(b):]
				}
				if len(s) != 0 {
					t.Fatalf("%d bytes are left", len(s))
				}
			}
			require.Zero(t, allocs.PerRun(1, walk)) // it runs twice
			for i := range n {
				require.Equal(t, byte(9+2*7*4*i), dst[i*td.Size()], "element %d of %d", i, n)
				for _, untouched := range dst[i*td.Size()+1 : (i+1)*td.Size()] {
					require.EqualValues(t, 9, untouched)
				}
			}
		}
	}
	var pair Pair
	require.Panics(t, func() { pair.Load(dtype.Float64, make([]byte, 7), dtype.Uint8, make([]byte, 1)) }, "part of an element")
}

func TestAccumulate(t *testing.T) {
	a, b := []byte{1, 2, 3}, []byte{4, 5, 6}
	Accumulate(a, a)
	require.Equal(t, []byte{1, 2, 3}, a)
	Accumulate(a, b)
	require.Equal(t, b, a)
	Accumulate(nil, nil)
}

func TestBytes(t *testing.T) {
	u, s := Bytes[uint8](), Bytes[int8]()
	for i := range 256 {
		require.Equal(t, uint8(i), u[i])
		require.Equal(t, u[i], uint8(s[i]))
	}
	require.Equal(t, int8(-1), s[255])
}
