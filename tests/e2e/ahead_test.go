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
		t.Run(fmt.Sprint(pool, " connections"), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			all := apart(t, ctx, n, func(_ int, o *peer.Options) { o.PoolSize = pool })
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
			sent := func(i int) int64 {
				for _, o := range all[i].State().Ops {
					if o.Eager {
						return o.Sent
					}
				}
				return 0
			}
			half := func() []*peer.Operation {
				ops := []*peer.Operation{launch(0), launch(1)}
				for i := range ops {
					require.Eventually(t, func() bool { return sent(i) > 512<<10 }, patience, time.Millisecond)
					require.LessOrEqual(t, sent(i), int64(2<<20))
				}
				return ops
			}
			ops := append(half(), launch(2))
			for i, op := range ops {
				info, err := op.Wait(ctx)
				require.NoError(t, err)
				require.Equal(t, n, info.WorldSize)
				for _, k := range []int{0, 1, 5, 1000, count/3 + 1, count - 1} {
					require.EqualValues(t, uint32(7*k), data[i][k], "member %d, element %d", i, k)
				}
			}
			ops = half()
			require.NoError(t, all[2].Close())
			together(t, len(ops), func(i int) error { // the round behind it needs both
				if _, err := ops[i].Wait(ctx); errs.CodeOf(err) != errs.RankConnectionLost {
					return fmt.Errorf("member %d: %w", i, err)
				}
				return nil
			})
			for i := range ops {
				for _, k := range []int{0, 1, 5, 1000, count/3 + 1, count - 1} {
					require.EqualValues(t, uint32(k<<i), data[i][k], "member %d, element %d was not restored", i, k)
				}
			}
		})
	}
}
