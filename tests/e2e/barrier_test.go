package e2e

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

func init() {
	roles["barriers"] = func(ctx context.Context, o order, say func(report)) error {
		comm, err := join(ctx, o)
		if err != nil {
			return err
		}
		defer comm.Close()
		for n := uint64(1); ; n++ {
			switch err := comm.Barrier(ctx); errs.CodeOf(err) {
			case errs.Success:
				say(report{Event: "step", Step: n, World: comm.Attributes().LocalWorldSize})
			case errs.RankConnectionLost:
				say(report{Event: "lost", Step: n, Text: err.Error()})
			default:
				return err
			}
		}
	}
}

// Nobody passes a barrier before all have come, with and without an early start.
func TestBarrier(t *testing.T) {
	for name, bytes := range map[string]int{"eager": 0, "not eager": -1} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c := world(t, ctx, localMaster(t), 3, func(_ int, o *core.Options) { o.EagerBytes = bytes })
			var came atomic.Int64
			for _, err := range each(c, func(_ int, c *core.Communicator) error {
				for n := range int64(50) {
					came.Add(1)
					if err := c.Barrier(ctx); err != nil {
						return err
					}
					if all := came.Load(); all < 3*(n+1) {
						return fmt.Errorf("barrier %d was passed when %d had come", n, all)
					}
				}
				return nil
			}) {
				require.NoError(t, err)
			}
			require.True(t, c[0].Attributes().Collectives)
			sums(t, ctx, c)
		})
	}
}

// A peer that is killed ends the barrier of the others, which go on without it.
func TestBarrierOfTheDead(t *testing.T) {
	_, master := startMaster(t)
	var cs []*child
	for id := range 3 {
		cs = append(cs, start(t, order{Role: "barriers", Master: master, ID: id, World: 3}))
	}
	for _, c := range cs {
		c.await("step", patience)
	}
	cs[2].kill()
	for _, c := range cs[:2] {
		for c.await("step", patience).World == 3 {
		}
	}
}

// waitsIn waits until c has an operation of the kind.
func waitsIn(c *core.Communicator, kind string) {
	for {
		if ops := c.State().Ops; len(ops) > 0 && ops[0].Kind == kind {
			return
		}
		runtime.Gosched()
	}
}

// A caller that gives a barrier up gets its call back although nobody else has come. The
// others learn it when they come, and the next barrier is one for all.
func TestBarrierIsGivenUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 3, nil)
	for lost := false; !lost; { // the others may be faster than the news
		short, stop := context.WithCancel(ctx)
		gave := make(chan error)
		go func() { gave <- c[0].Barrier(short) }()
		waitsIn(c[0], "barrier")
		require.Equal(t, errs.Busy, errs.CodeOf(c[0].Barrier(ctx)), "one at a time")
		stop()
		require.Equal(t, errs.Canceled, errs.CodeOf(<-gave))
		got := each(c[1:], func(_ int, c *core.Communicator) error { return c.Barrier(ctx) })
		require.Equal(t, errs.CodeOf(got[0]), errs.CodeOf(got[1]))
		if lost = got[0] != nil; lost {
			require.Equal(t, errs.RankConnectionLost, errs.CodeOf(got[0]), "%v", got[0])
			require.ErrorContains(t, got[0], "barrier")
		}
	}
	for _, err := range each(c, func(_ int, c *core.Communicator) error { return c.Barrier(ctx) }) {
		require.NoError(t, err)
	}
	sums(t, ctx, c)
}

// Peers that call different collectives are told what each of them called.
func TestMismatchOfKinds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 3, nil)
	for _, err := range each(c, func(i int, c *core.Communicator) error {
		if i > 0 {
			return c.Barrier(ctx)
		}
		x := []float32{1}
		r := core.ReduceOf(x, x, core.Sum)
		r.Tag = math.MaxUint64
		_, err := c.AllReduce(ctx, r)
		return err
	}) {
		require.Equal(t, errs.Mismatch, errs.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "1 x float32 sum")
		require.ErrorContains(t, err, ": barrier")
	}
	for _, err := range each(c, func(_ int, c *core.Communicator) error { return c.Barrier(ctx) }) {
		require.NoError(t, err)
	}
}

// Beside a PCCL peer there is no barrier: the error says so and names the peer.
// Alone there is nobody to wait for.
func TestBarrierBesidePCCL(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := besidePCCL(t, ctx, localMaster(t))
	err := c.Barrier(ctx)
	require.Equal(t, errs.Unsupported, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "is a PCCL peer")
	require.ErrorContains(t, err, "127.0.0.1")
	require.False(t, c.Attributes().Collectives)

	alone := world(t, ctx, localMaster(t), 1, nil)[0]
	require.Equal(t, errs.TooFewPeers, errs.CodeOf(alone.Barrier(ctx)))
	require.NoError(t, alone.Close())
	require.Error(t, alone.Barrier(ctx))
}
