package backendtest

import (
	"fmt"
	"testing"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
)

// Named is a backend with the name that a benchmark shows.
type Named struct {
	Name string
	backend.Backend
}

// Benchmark measures the bytes per second of one operand, in cache, of every
// operation of every type, one backend beside the other.
func Benchmark(b *testing.B, backends ...Named) {
	const size = 128 << 10
	x, y, dst := make([]byte, size), make([]byte, size), make([]byte, size)
	for i := range x {
		x[i], y[i] = byte(i*7919>>3), byte(i*104729>>5)
	}
	each := func(what string, do func(backend.Backend)) {
		for _, v := range backends {
			b.Run(what+"/"+v.Name, func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					do(v.Backend)
				}
			})
		}
	}
	for t := range dtype.Type(dtype.NumTypes) {
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			if op == dtype.Avg { // adds, like Sum
				continue
			}
			each(fmt.Sprint(t, "/", op), func(v backend.Backend) { v.Reduce(t, op, dst, x, y) })
		}
		each(fmt.Sprint(t, "/finalize3"), func(v backend.Backend) { v.Finalize(t, dst, 3) })
	}
}
