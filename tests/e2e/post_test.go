package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/invariants"
)

// posted is one all-reduce of a test, with the sum that is expected.
type posted struct {
	h    *core.Handle
	v    []int32
	want int32
}

func post(c *core.Communicator, rank, world, tag, count int) (posted, error) {
	v := make([]int32, count)
	for i := range v {
		v[i] = int32(rank + tag)
	}
	r := core.ReduceOf(v, v, core.Sum)
	r.Tag = uint64(tag)
	h, err := c.Post(r)
	return posted{h, v, int32(world*tag + world*(world-1)/2)}, err
}

func (p posted) check(ctx context.Context) error {
	if _, err := p.h.Wait(ctx); err != nil {
		return err
	}
	if p.v[0] != p.want || p.v[len(p.v)-1] != p.want {
		return fmt.Errorf("sum is %d, not %d", p.v[0], p.want)
	}
	return nil
}

// Streams of posted operations, under every preset and under odd numbers of our
// own, mixed with calls that wait: all are right, in order, and none is lost.
func TestPostedStreams(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, set := range []func(o *core.Options){
		func(o *core.Options) { o.Post.Preset = "latency" },
		func(o *core.Options) { o.Post.Preset = "balanced" },
		func(o *core.Options) { o.Post.Preset = "throughput" },
		func(o *core.Options) { o.Post.Frequency, o.Post.Batch = 3, 1 },
	} {
		comms := world(t, ctx, localMaster(t), 3, func(_ int, o *core.Options) { set(o) })
		for _, err := range each(comms, func(rank int, c *core.Communicator) error {
			for round := range 2 {
				var all []posted
				for tag := range 60 {
					p, err := post(c, rank, 3, 1000*round+tag, 10+tag)
					if err != nil {
						return err
					}
					all = append(all, p)
				}
				w := []int32{1}
				r := core.ReduceOf(w, w, core.Sum)
				r.Tag = 99999
				if _, err := c.AllReduce(ctx, r); err != nil || w[0] != 3 { // behind what was posted
					return fmt.Errorf("sum %d: %w", w[0], err)
				}
				for _, p := range all {
					if err := p.check(ctx); err != nil {
						return err
					}
				}
			}
			return nil
		}) {
			require.NoError(t, err) // S4-08
		}
		for _, c := range comms {
			require.NoError(t, c.Close())
		}
	}
	for want, bad := range map[string]core.Options{
		"Post.Preset \"fast\"": {Post: core.PostOptions{Preset: "fast"}},
		"Post.Frequency -1":    {Post: core.PostOptions{Frequency: -1}},
		"Post.Batch 5000":      {Post: core.PostOptions{Batch: 5000}},
	} {
		bad.Master = "127.0.0.1:1"
		_, err := connect(ctx, bad)
		require.ErrorIs(t, err, errs.InvalidArgument)
		require.ErrorContains(t, err, want)
	}
}

// What the state of the session forbids is said by Wait, Done fires, and the
// buffer is as it was; what can never work is said at once.
func TestPostedAndRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 2, nil)
	_, err := comms[0].Post(core.Reduce{Src: make([]byte, 3), Dst: make([]byte, 3), DType: core.TypeOf[int32](), Op: core.Sum})
	require.ErrorIs(t, err, errs.InvalidArgument)
	var first [2]posted
	for rank, c := range comms {
		first[rank], err = post(c, rank, 2, 5, 10)
		require.NoError(t, err)
		if rank == 0 {
			again, err := post(c, rank, 2, 5, 10) // the tag is in flight
			require.NoError(t, err)
			<-again.h.Done()
			require.ErrorIs(t, again.check(ctx), errs.InvalidArgument)
			require.EqualValues(t, 5, again.v[0])
		}
	}
	for _, p := range first {
		require.NoError(t, p.check(ctx))
	}
	alone := world(t, ctx, localMaster(t), 1, nil)[0]
	p, err := post(alone, 0, 1, 1, 1)
	require.NoError(t, err)
	require.ErrorIs(t, p.check(ctx), errs.TooFewPeers)
	late, err := post(alone, 0, 1, 1, 1)
	require.NoError(t, err)
	require.NoError(t, alone.Close())
	<-late.h.Done()
	require.Error(t, late.check(ctx))
	_, err = post(alone, 0, 1, 1, 1)
	require.ErrorIs(t, err, errs.Closed)
}

// Shutdown with operations in flight lets every one of them end: posted, voting
// and running ones. Wait tells the verdicts afterwards. Locks are taken in their
// order.
func TestShutdownLosesNothing(t *testing.T) {
	defer invariants.WatchLocks()()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for range counts(10) {
		comms := world(t, ctx, localMaster(t), 3, nil)
		flights := make([][]posted, 3)
		var down sync.WaitGroup
		downs := make([]error, 3)
		for rank, c := range comms {
			for tag := range 30 {
				p, err := post(c, rank, 3, tag, 1+100*tag)
				require.NoError(t, err)
				flights[rank] = append(flights[rank], p)
			}
			down.Go(func() { downs[rank] = c.Shutdown(ctx) })
		}
		down.Wait()
		for rank, c := range comms {
			require.NoError(t, downs[rank])
			for _, p := range flights[rank] {
				select {
				case <-p.h.Done():
				default:
					t.Fatal("Shutdown has returned before the verdict")
				}
				require.NoError(t, p.check(ctx)) // S4-03, S4-13
			}
			_, err := post(c, rank, 3, 0, 1)
			require.ErrorIs(t, err, errs.Closed)
		}
	}
}

// A Shutdown whose context ends aborts what cannot end, and says so.
func TestShutdownGivesUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comms := world(t, ctx, localMaster(t), 2, nil)
	p, err := post(comms[0], 0, 2, 1, 10) // the other peer never does
	require.NoError(t, err)
	short, stop := context.WithCancel(ctx)
	stop()
	require.ErrorIs(t, comms[0].Shutdown(short), errs.Canceled)
	<-p.h.Done()
	require.Error(t, p.check(ctx))
	require.EqualValues(t, 1, p.v[0])
}
