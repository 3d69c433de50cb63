package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// What a small all-reduce takes and allocates, of all peers and the master together, which share this process.
func BenchmarkSmallAllReduce(b *testing.B) {
	for _, n := range []int{2, 8} {
		b.Run(fmt.Sprintf("world=%d", n), func(b *testing.B) {
			ctx := context.Background()
			comms := world(b, ctx, localMaster(b), n, nil)
			b.ReportAllocs()
			b.ResetTimer()
			for _, err := range each(comms, func(i int, c *core.Communicator) error {
				v := make([]float32, 1<<12)
				for range b.N {
					if _, err := core.AllReduceSlice(ctx, c, v, v, core.Sum); err != nil {
						return err
					}
				}
				return nil
			}) {
				require.NoError(b, err)
			}
		})
	}
}
