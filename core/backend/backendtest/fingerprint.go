package backendtest

import (
	"hash/crc32"
	"math"
	"math/rand/v2"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
)

// Fingerprint is a checksum of what b computes from patterns of all kinds, the
// same number on every processor: a NaN that arithmetic makes counts as one,
// whatever its bits, since these are the processor's choice.
func Fingerprint(b backend.Backend) uint32 {
	const n = 1999
	sum := uint32(0)
	take := func(t dtype.Type, exact bool, result []byte) {
		for i := 0; !exact && t.IsFloat() && i < len(result); i += t.Size() {
			if math.IsNaN(value(t, load(t, result[i:]))) {
				store(t, result[i:], mask(t))
			}
		}
		sum = crc32.Update(sum, crc32.IEEETable, result)
	}
	for t := range dtype.Type(dtype.NumTypes) {
		rng := rand.New(rand.NewPCG(11, uint64(t)))
		x, y, dst := make([]byte, n*t.Size()), make([]byte, n*t.Size()), make([]byte, n*t.Size())
		patterns(t, x, rng)
		patterns(t, y, rng)
		for op := dtype.Sum; op < dtype.NumOps; op++ {
			b.Reduce(t, op, dst, x, y)
			take(t, op == dtype.Max || op == dtype.Min, dst)
		}
		for _, world := range []int{2, 3, 48} {
			copy(dst, x)
			b.Finalize(t, dst, world)
			take(t, false, dst)
		}
	}
	return sum
}
