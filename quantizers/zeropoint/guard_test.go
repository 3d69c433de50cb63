//go:build (amd64 || arm64) && !noasm

package zeropoint

import (
	"testing"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/fenced"
)

// No kernel touches a byte before or behind its operands.
func TestGuardPages(t *testing.T) {
	src, q := fenced.Memory(t, 1), fenced.Memory(t, 1)
	for i := range src {
		src[i] = byte(i*i>>3) & 0x7f
	}
	for n := range 300 {
		for _, at := range []int{0, 1} { // at the first byte, up to the last one
			f, w := src[at*(len(src)-4*n):][:4*n], q[at*(len(q)-n):][:n]
			m := New().Params(dtype.Float32, dtype.Uint8, f)
			New().Quantize(dtype.Float32, dtype.Uint8, &m, w, f)
			New().Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Set, f, w)
			New().Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Sum, f, w)
		}
	}
}
