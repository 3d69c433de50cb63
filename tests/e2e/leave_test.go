package e2e

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
)

// reduceMasks reduces several vectors at once, in place, to which peer i brings 1<<i, and
// checks that each result is the sum over as many peers as the call says.
func reduceMasks(ctx context.Context, c *core.Communicator, i int, sizes []int) error {
	handles := make([]*core.Handle, len(sizes))
	vectors := make([][]float64, len(sizes))
	for k, n := range sizes {
		v := make([]float64, n)
		for j := range v {
			v[j] = float64(uint64(1) << i)
		}
		vectors[k] = v
		b := dtype.AsBytes(v)
		h, err := c.AllReduceAsync(ctx, core.Reduce{Tag: uint64(k), Src: b, Dst: b, DType: dtype.Float64, Op: dtype.Sum})
		if err != nil {
			return fmt.Errorf("launch of %d: %w", k, err)
		}
		handles[k] = h
	}
	for k, h := range handles {
		info, err := h.Wait(ctx)
		if err != nil {
			return fmt.Errorf("wait for %d: %w", k, err)
		}
		for j, x := range vectors[k] {
			if mask := uint64(x); x != vectors[k][0] || bits.OnesCount64(mask) != info.WorldSize || mask>>i&1 == 0 {
				return fmt.Errorf("element %d of %d is %b, of a world of %d", j, k, mask, info.WorldSize)
			}
		}
	}
	return nil
}

// Peers leave a loop of all-reduces one after the other, or together: nothing of the
// others is aborted, and no round is needed.
func TestDrains(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	const peers, leavers, steps = 5, 3, 30
	rng := rand.New(rand.NewPCG(1, 2))
	for world5 := range max(2, counts(67)) { // 201 peers leave with -soak
		o := overseen(t, core.MasterOptions{})
		comms := world(t, ctx, o.addr, peers, nil)
		o.settle(t, ctx, comms)
		rounds := o.ok.Load()
		last := make([]int, peers)
		for i := range last {
			last[i] = steps
			if i < leavers {
				last[i] = 3 + rng.IntN(20)
			}
			if world5%2 == 1 && i < 2 {
				last[i] = 9 // two at once
			}
		}
		for i, err := range each(comms, func(i int, c *core.Communicator) error {
			for n := range last[i] {
				if err := reduceMasks(ctx, c, i, []int{10, 3000, 20_000}); err != nil {
					return fmt.Errorf("step %d: %w", n, err)
				}
				if n%3 == 0 && i >= leavers && n > 24 {
					if err := c.Barrier(ctx); err != nil {
						return fmt.Errorf("barrier in step %d: %w", n, err)
					}
				}
			}
			if i < leavers {
				return c.Leave(ctx)
			}
			return nil
		}) {
			require.NoError(t, err, "peer %d of world %d", i, world5)
		}
		o.settle(t, ctx, comms[leavers:])
		require.Equal(t, rounds, o.ok.Load(), "nobody needed a round")
		require.Zero(t, o.failed.Load())
		require.Equal(t, peers-leavers, comms[peers-1].Attributes().LocalWorldSize)
		_, err := comms[0].AllReduce(ctx, core.ReduceOf([]float32{1}, []float32{1}, core.Sum))
		require.Equal(t, errs.Closed, errs.CodeOf(err))
		for _, c := range comms[leavers:] {
			require.NoError(t, c.Close())
		}
	}
}

// A peer leaves when some members are through with a broadcast that others have not launched.
// What was sent to these is of an epoch that is over: it fails on all, and nobody waits.
func TestALeaveEndsABroadcast(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o := overseen(t, core.MasterOptions{})
	comms := world(t, ctx, o.addr, 4, nil)
	for _, err := range each(comms, func(_ int, c *core.Communicator) error { return c.Barrier(ctx) }) {
		require.NoError(t, err)
	}
	var ring []*core.Communicator // root, through, late, leaver
	for _, u := range comms[0].Attributes().Ring {
		ring = append(ring, comms[slices.IndexFunc(comms, func(c *core.Communicator) bool { return c.Attributes().UUID == u })])
	}
	launch := func(c *core.Communicator) *core.Handle {
		b := dtype.AsBytes([]int64{1, 2, 3})
		root := slices.Index(c.Attributes().Members, ring[0].Attributes().UUID)
		h, err := c.CollectAsync(ctx, core.Collective{Kind: core.KindBroadcast, Root: root, Src: b, Dst: b, DType: dtype.Int64})
		require.NoError(t, err)
		return h
	}
	handles := []*core.Handle{launch(ring[0]), launch(ring[1])}
	for _, c := range ring[:2] {
		require.Eventually(t, func() bool {
			ops := c.State().Ops
			return len(ops) == 1 && ops[0].Phase == "ended"
		}, patience, time.Millisecond)
	}
	require.NoError(t, ring[3].Leave(ctx))
	require.Eventually(t, func() bool { return ring[2].Attributes().LocalWorldSize == 3 }, patience, time.Millisecond)
	handles = append(handles, launch(ring[2]))
	for i, err := range each(ring[:3], func(i int, _ *core.Communicator) error {
		_, err := handles[i].Wait(ctx)
		return err
	}) {
		require.Equal(t, errs.RankConnectionLost, errs.CodeOf(err), "member %d: %v", i, err)
	}
	for i, err := range each(ring[:3], func(_ int, c *core.Communicator) error {
		_, err := c.AllReduce(ctx, core.ReduceOf(make([]float32, 9), make([]float32, 9), core.Sum))
		return err
	}) {
		require.NoError(t, err, "member %d", i)
	}
}
