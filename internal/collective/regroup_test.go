package collective

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// Connections that come and go while collectives run take pieces of them, and none is
// lost. Afterwards none holds an operation.
func TestConnectionsJoinAndLeave(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, shape{
			n: 3, pool: 6, mesh: true, frame: 64, cfg: Config{minStripe: 64},
			link: memoryLink(transporttest.Options{Buffer: 500 + rng.IntN(3000), Piece: rng.IntN(200)}),
		})
		for range 4 {
			k := draw(rng, w, plan.AllReduce, 20_000).fill(w, rng)
			run := w.start(k.specs)
			var over atomic.Bool
			var wg sync.WaitGroup
			for i, op := range run.ops {
				for _, l := range op.outs {
					pool := w.eng[i].hub.Senders(l.peer)
					wg.Go(func() {
						for n := 0; !over.Load(); n++ {
							l.regroup(pool[:2+n%5])
						}
					})
				}
			}
			run.ok(t)
			over.Store(true)
			wg.Wait()
			k.right(t, "seed %d", seed)
			for i, op := range run.ops {
				for _, l := range op.outs {
					require.False(t, w.eng[i].hub.Sends(l.peer))
				}
			}
		}
		w.close()
	}
}
