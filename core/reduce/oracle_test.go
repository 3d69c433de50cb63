package reduce

import (
	"math/rand/v2"
	"testing"

	"github.com/gopccl/gopccl/core/dtype"
)

// Data spec, sections 2.1 to 2.3 and 3: worlds, counts around the world size and odd
// sizes, in and out of place, small frames. S1-29 S1-30 S2-35
func TestRingMatchesOracle(t *testing.T) {
	for n := 2; n <= 9; n++ {
		t.Run(name("world %d", n), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			r := newRing(t, shape{n: n, cfg: Config{FrameBytes: 64}})
			for count := 0; count <= 40; count++ {
				r.run(rng, dtype.Float32, dtype.Sum, count, count%2 == 0)
			}
			for _, count := range []int{97, 1000, 4099} {
				r.run(rng, dtype.Float32, dtype.Sum, count, false)
				r.run(rng, dtype.Float64, dtype.Sum, count, true)
			}
		})
	}
}
