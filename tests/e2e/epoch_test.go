package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// The first operation of an epoch, begun eagerly by all but one peer, is canceled
// by that one; its tag is used again while another operation keeps the round
// away. What was sent for the first is not taken for the second.
func TestCanceledTagIsUsedAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 3, func(id int, o *core.Options) {
		if id == 1 {
			o.EagerBytes = 64
		}
	})
	const n = 300
	buf := func(x float32) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = x
		}
		return v
	}
	launch := func(c *core.Communicator, tag uint64, v []float32) *core.Handle {
		r := core.ReduceOf(v, v, core.Sum)
		r.Tag = tag
		for {
			h, err := c.AllReduceAsync(ctx, r)
			if errs.CodeOf(err) == errs.InvalidArgument && ctx.Err() == nil {
				time.Sleep(time.Millisecond) // the verdict of the canceled one is on its way here
				continue
			}
			require.NoError(t, err)
			return h
		}
	}
	for round := range 3 {
		first, other, again := make([]*core.Handle, 3), make([]*core.Handle, 3), make([]*core.Handle, 3)
		kept := [][]float32{buf(1), buf(2), buf(4)}
		for i := range 2 {
			first[i] = launch(comms[i], 7, buf(float32(1000*(i+1))))
			other[i] = launch(comms[i], 8, kept[i])
		}
		first[1].Cancel()
		<-first[1].Done()
		first[2] = launch(comms[2], 7, buf(4000))
		for _, h := range first {
			<-h.Done()
		}
		_, err := first[1].Wait(ctx)
		require.ErrorIs(t, err, errs.Canceled)
		other[2] = launch(comms[2], 8, kept[2])
		for _, i := range []int{0, 2} {
			_, err := first[i].Wait(ctx)
			require.ErrorIs(t, err, errs.RankConnectionLost)
		}
		values := [][]float32{buf(10), buf(20), buf(40)}
		for i := range 3 {
			again[i] = launch(comms[i], 7, values[i])
		}
		var wg sync.WaitGroup
		fail := make([][2]error, 3)
		for i := range 3 {
			wg.Go(func() {
				_, fail[i][0] = other[i].Wait(ctx)
				_, fail[i][1] = again[i].Wait(ctx)
			})
		}
		wg.Wait()
		for i := range 3 {
			require.NoError(t, fail[i][0], "peer %d", i)
			require.NoError(t, fail[i][1], "peer %d", i)
			require.Equal(t, buf(7), kept[i], "peer %d, round %d", i, round)
			require.Equal(t, buf(70), values[i], "peer %d, round %d", i, round)
		}
		// A new epoch, in which nothing was begun yet.
		for i := range 3 {
			wg.Go(func() { fail[i][0] = comms[i].UpdateTopology(ctx) })
		}
		wg.Wait()
		for i := range 3 {
			require.NoError(t, fail[i][0])
		}
	}
}
