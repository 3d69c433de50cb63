package minmax

import (
	"testing"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/quantizers/internal/lineartest"
)

func BenchmarkFloat32(b *testing.B) {
	lineartest.Benchmark(b, New(), []dtype.Type{dtype.Uint8, dtype.Uint16, dtype.Uint32}, []dtype.Op{dtype.Set, dtype.Sum, dtype.Max})
}
