package reduce

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// Connections that come and go while operations run take pieces of them, and none is
// lost: the bits are those of the oracle. Afterwards none holds an operation.
func TestConnectionsJoinAndLeave(t *testing.T) {
	for _, abort := range []bool{false, true} {
		for seed := range uint64(8) {
			rng := rand.New(rand.NewPCG(seed, 1))
			s := striping(3, 6)
			s.link = memory(transporttest.Options{Buffer: 500 + rng.IntN(3000), Piece: rng.IntN(200)})
			r := newRing(t, s)
			for range 4 {
				specs, want := r.specs(rng, dtype.Float32, dtype.Sum, 20_000, true)
				before := keep(specs)
				run := r.start(specs)
				var over atomic.Bool
				var wg sync.WaitGroup
				for i, op := range run.ops {
					pool := r.eng[i].hub.Senders(r.ids[(i+1)%3])
					wg.Go(func() {
						for k := 0; !over.Load(); k++ {
							op.regroup(pool[:2+k%5])
							if abort && k == 20 {
								op.Abort(errTest)
							}
						}
					})
				}
				for i, err := range run.wait(t) {
					if !abort {
						require.NoError(t, err)
						require.Equal(t, want, specs[i].Dst, "rank %d", i)
					}
				}
				over.Store(true)
				wg.Wait()
				for i, op := range run.ops {
					require.Greater(t, len(op.out.flows.All()), 2)
					require.False(t, r.eng[i].hub.Sends(op.next))
					op.Finish(abort)
					if abort {
						require.Equal(t, before[i], specs[i].Src)
					}
				}
			}
			r.close()
		}
	}
}
