package cpugeneric

import (
	"testing"

	"github.com/gopccl/gopccl/core/dtype"
)

// The bytes per second of one operand, in cache.
func BenchmarkReduce(b *testing.B) {
	for t := range dtype.Type(dtype.NumTypes) {
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			if op == dtype.Avg {
				continue
			}
			b.Run(t.String()+"/"+op.String(), func(b *testing.B) {
				const size = 128 << 10
				x, y := make([]byte, size), make([]byte, size)
				for i := range x {
					x[i], y[i] = byte(i*7919>>3), byte(i*104729>>5)
				}
				dst := make([]byte, size)
				b.SetBytes(size)
				for b.Loop() {
					generic{}.Reduce(t, op, dst, x, y)
				}
			})
		}
		b.Run(t.String()+"/finalize3", func(b *testing.B) {
			dst := make([]byte, 128<<10)
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				generic{}.Finalize(t, dst, 3)
			}
		})
	}
}
