package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer"
)

// Far from the master a large all-reduce begins when it is launched, over one connection
// or several: data leaves before the last member has launched it, up to a bound. A member
// that never launches it costs no buffer.
func TestLargeAllReduceBeginsFarFromTheMaster(t *testing.T) {
	const n, count = 3, 4 << 20
	for _, pool := range []int{1, 4} {
		for _, dies := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d connections, the last one dies %v", pool, dies), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				all := apart(t, ctx, n, func(_ int, o *peer.Options) { o.PoolSize = pool })
				together(t, n, func(i int) error { return untilDirect(ctx, all[i]) }) // no ring is prepared then
				data := make([][]uint32, n)
				launch := func(i int) *peer.Operation {
					data[i] = make([]uint32, count)
					for k := range data[i] {
						data[i][k] = uint32(k << i)
					}
					op, err := all[i].AllReduceAsync(ctx, peer.Reduce{Tag: 4, Src: dtype.AsBytes(data[i]), Dst: dtype.AsBytes(data[i]), DType: dtype.Uint32, Op: dtype.Sum})
					require.NoError(t, err)
					return op
				}
				ops := []*peer.Operation{launch(0), launch(1)}
				for i := range ops {
					sent := func() int64 { return all[i].State().Ops[0].Sent }
					require.True(t, all[i].State().Ops[0].Eager)
					require.Eventually(t, func() bool { return sent() > 512<<10 }, patience, time.Millisecond)
					require.LessOrEqual(t, sent(), int64(2<<20))
				}
				want := func(i, k int) uint32 { return uint32(7 * k) }
				if dies {
					want = func(i, k int) uint32 { return uint32(k << i) }
					require.NoError(t, all[2].Close())
				} else {
					ops = append(ops, launch(2))
				}
				together(t, len(ops), func(i int) error {
					_, err := ops[i].Wait(ctx)
					if (errs.CodeOf(err) == errs.RankConnectionLost) != dies {
						return fmt.Errorf("member %d: %w", i, err)
					}
					return nil
				})
				for i := range ops {
					for _, k := range []int{0, 1, 5, 1000, count/3 + 1, count - 1} {
						require.Equal(t, want(i, k), data[i][k], "member %d, element %d", i, k)
					}
				}
			})
		}
	}
}
