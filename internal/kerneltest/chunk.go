// Package kerneltest makes the chunks on which tests compare kernels with plain
// Go.
package kerneltest

import (
	"math"
	"math/rand/v2"

	"github.com/gopccl/gopccl/core/dtype"
)

// Kinds of chunks; see Chunk.
const Kinds = 6

// Chunk returns n elements of float32 of one kind, at an odd address every
// second time.
func Chunk(kind, n int, rng *rand.Rand) []byte {
	data := make([]float32, n)
	for i := range data {
		x := float32(rng.NormFloat64())
		switch kind {
		case 1: // not negative, so that the smallest is a zero of either sign
			x = float32(math.Copysign(math.Max(0, float64(x)), rng.Float64()-0.5))
		case 2: // all patterns: NaN, infinite, subnormal
			x = math.Float32frombits(rng.Uint32())
		case 3: // finite, huge
			x *= 1e38
		case 4: // few values
			x = float32(rng.IntN(4))
		case 5: // subnormal
			x *= 1e-42
		}
		if rng.IntN(50) == 0 && kind == 0 {
			x = float32(math.NaN())
		}
		data[i] = x
	}
	b := make([]byte, 4*n+1)[n&1:]
	return b[:copy(b, dtype.AsBytes(data))]
}
