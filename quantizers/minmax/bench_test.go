package minmax

import (
	"math/rand/v2"
	"testing"

	"github.com/gopccl/gopccl/core/dtype"
)

// Bytes are those of the float32 data; a data step of a ring quantizes and
// dequantizes once per chunk.
func BenchmarkFloat32(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	data := make([]float32, 64<<10)
	for i := range data {
		data[i] = float32(rng.NormFloat64())
	}
	src := dtype.AsBytes(data)
	dst := make([]byte, len(src))
	for _, q := range []dtype.Type{dtype.Uint8, dtype.Uint16, dtype.Uint32} {
		wireForm := make([]byte, len(data)*q.Size())
		m := New().Params(dtype.Float32, q, src)
		New().Quantize(dtype.Float32, q, &m, wireForm, src)
		b.Run(q.String()+"/params", func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				New().Params(dtype.Float32, q, src)
			}
		})
		b.Run(q.String()+"/quantize", func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				New().Quantize(dtype.Float32, q, &m, wireForm, src)
			}
		})
		for _, op := range []dtype.Op{dtype.Set, dtype.Sum, dtype.Max} {
			b.Run(q.String()+"/dequantize-"+op.String(), func(b *testing.B) {
				b.SetBytes(int64(len(src)))
				for b.Loop() {
					New().Dequantize(dtype.Float32, q, &m, op, dst, wireForm)
				}
			})
		}
	}
}
