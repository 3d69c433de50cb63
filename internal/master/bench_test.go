package master

import (
	"fmt"
	"sync"
	"testing"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/wire"
)

// BenchmarkCollective is the master's part of one collective: four packets to
// and from every member.
func BenchmarkCollective(b *testing.B) {
	for _, n := range []int{2, 32, 128} {
		b.Run(fmt.Sprintf("world=%d", n), func(b *testing.B) {
			h := serve(b, Options{})
			var rs []*raw
			for range n {
				rs = append(rs, h.register(wire.Ext{}))
			}
			rs[0].round()
			rs[0].send(wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: true})
			together(rs, func(r *raw) { r.round() })
			b.ResetTimer()
			var wg sync.WaitGroup
			for _, r := range rs {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for range b.N {
						r.send(wire.C2MCollectiveCommsInitiate{Tag: 1, Count: 1, DType: dtype.Float32, Op: dtype.Sum})
						recv[wire.M2CCollectiveCommsCommence](r)
						r.send(wire.C2MCollectiveCommsComplete{Tag: 1})
						recv[wire.M2CCollectiveCommsAbort](r)
						recv[wire.M2CCollectiveCommsComplete](r)
					}
				}()
			}
			wg.Wait()
		})
	}
}
