package e2e

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// told waits until Notify has called, as a thread of a foreign runtime would.
func told(ctx context.Context, h *core.Handle) error {
	called, times := make(chan struct{}, 2), atomic.Int32{}
	h.Notify(func() {
		times.Add(1)
		called <- struct{}{}
	})
	select {
	case <-called:
	case <-ctx.Done():
		return ctx.Err()
	}
	if n := times.Load(); n != 1 {
		return fmt.Errorf("called %d times", n)
	}
	return nil
}

// A waiter that is told of the verdict gets it from Wait at once: launched or only
// posted, asked once or again, before the verdict or long after.
func TestNotify(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 2, nil)
	over, done := context.WithCancel(ctx)
	done()
	for _, err := range each(comms, func(rank int, c *core.Communicator) error {
		for tag := range 50 {
			v := []int32{int32(rank + tag)}
			r := core.ReduceOf(v, v, core.Sum)
			r.Tag = uint64(tag)
			launch := c.Post
			if tag%2 == 0 {
				launch = func(r core.Reduce) (*core.Handle, error) { return c.AllReduceAsync(ctx, r) }
			}
			h, err := launch(r)
			if err != nil {
				return err
			}
			for range 1 + tag%3 {
				if err := told(ctx, h); err != nil {
					return err
				}
			}
			if _, err := h.Wait(ctx); err != nil || v[0] != int32(2*tag+1) {
				return fmt.Errorf("sum %d: %w", v[0], err)
			}
			if _, err := h.Wait(over); err != nil && errs.CodeOf(err) != errs.Canceled {
				return err
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
}

// An operation that one peer gives up fails for all, buffers are as before, and
// the run goes on.
func TestNotifyAndCancel(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 2, nil)
	v := []int32{7}
	r := core.ReduceOf(v, v, core.Sum)
	h, err := comms[0].AllReduceAsync(ctx, r) // the other peer does not come
	require.NoError(t, err)
	called := make(chan struct{})
	h.Notify(func() { close(called) })
	h.Cancel()
	select {
	case <-called:
	case <-ctx.Done():
		t.Fatal("never called")
	}
	_, err = h.Wait(ctx)
	require.ErrorIs(t, err, errs.Canceled)
	require.Equal(t, []int32{7}, v)
	require.NoError(t, comms[0].Close())
}

// The end of the session is a verdict as well, for those who wait and for those
// who come late.
func TestNotifyAtTheEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 2, nil)
	var hs []*core.Handle
	for tag := range 3 {
		v := []int32{7}
		r := core.ReduceOf(v, v, core.Sum)
		r.Tag = uint64(tag)
		h, err := comms[0].AllReduceAsync(ctx, r)
		require.NoError(t, err)
		hs = append(hs, h)
	}
	called := make(chan struct{})
	hs[0].Notify(func() { close(called) })
	require.NoError(t, comms[0].Close())
	select {
	case <-called:
	case <-ctx.Done():
		t.Fatal("never called")
	}
	for _, h := range hs {
		require.NoError(t, told(ctx, h))
		_, err := h.Wait(ctx)
		require.ErrorIs(t, err, errs.Closed)
	}
}
