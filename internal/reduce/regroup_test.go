package reduce

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport/transporttest"
)

// Connections that come and go while operations run take pieces of them, and none is
// lost: the bits are those of the oracle. Afterwards none holds an operation.
func TestConnectionsJoinAndLeave(t *testing.T) {
	joined := 0
	for _, abort := range []bool{false, true} {
		for seed := range uint64(8) {
			rng := rand.New(rand.NewPCG(seed, 1))
			s := striping(3, 2)
			s.link = memory(transporttest.Options{Buffer: 500 + rng.IntN(3000), Piece: rng.IntN(200)})
			r := newRing(t, s)
			for round := range 4 {
				specs, want := r.specs(rng, dtype.Float32, dtype.Sum, 20_000, true)
				before := keep(specs)
				run := r.start(specs)
				var over atomic.Bool
				var wg sync.WaitGroup
				for i := range r.ids {
					for k := uint32(2); round == 0 && k < 6; k++ {
						a, b := r.shape.link(t)
						next := (i + 1) % 3
						r.eng[next].hub.AddReceiver(r.ids[i], k, b)
						r.eng[i].hub.AddSender(r.ids[next], k, a, link.Features{Native: true, Flows: true})
					}
				}
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
					if op.e.mu.Lock(); round == 0 && len(op.in.from) > 2 {
						joined++
					}
					op.e.mu.Unlock()
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
	require.Positive(t, joined, "no piece came on a connection that joined")
}
