package e2e

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// Nothing polls: accepting a newcomer, and an abort while everybody is blocked
// in a read, are events. Here the first tick of any timer is ten minutes away,
// and the test is over before.
func TestEventsNeedNoTick(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	master, err := newMaster(core.MasterOptions{Listen: "127.0.0.1:0", HeartbeatInterval: 10 * time.Minute, HeartbeatTimeout: 30 * time.Minute})
	require.NoError(t, err)
	ended := make(chan error, 1)
	mctx, stop := context.WithCancel(context.Background())
	go func() { ended <- master.Run(mctx) }()
	defer func() { stop(); <-ended; master.Close() }()
	addr := master.Addr().String()
	var shut atomic.Bool
	open := make(chan struct{})
	comms := world(t, ctx, addr, 3, func(id int, o *core.Options) {
		o.HeartbeatInterval, o.HeartbeatTimeout, o.WarnStuckAfter = 10*time.Minute, 30*time.Minute, -1
		o.UserTimeout = time.Hour
		o.Dial = func(ctx context.Context, network, to string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, to)
			if err != nil || to == addr {
				return c, err
			}
			return behind(c, &shut, open), nil
		}
	})
	sums(t, ctx, comms)
	shut.Store(true)
	var handles []*core.Handle
	for _, c := range comms {
		v := make([]float32, 10_000)
		h, err := c.AllReduceAsync(ctx, core.ReduceOf(v, v, core.Sum))
		require.NoError(t, err)
		handles = append(handles, h)
	}
	for i, c := range comms {
		require.Eventually(t, func() bool { return c.State().Active == 1 }, patience, time.Millisecond, "peer %d", i)
	}
	require.NoError(t, comms[2].Close())
	close(open) // the ring is repaired behind the abort
	// Each takes part in the round that repairs the ring.
	for i, err := range each(comms, func(i int, _ *core.Communicator) error { _, err := handles[i].Wait(ctx); return err }) {
		require.Error(t, err, "peer %d", i)
	}
	require.NoError(t, ctx.Err()) // S4-16
}

// What setting up a world and the end of an operation by another peer take,
// from the call to its effect on the other end.
func BenchmarkNotice(b *testing.B) {
	quantiles := func(b *testing.B, took []time.Duration) {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
		b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
	}
	ctx := context.Background()
	join := func(b *testing.B, master string, first *core.Communicator) *core.Communicator {
		done := make(chan *core.Communicator, 1)
		go func() {
			c, err := connect(ctx, core.Options{Master: master, PortBase: -1})
			if err != nil {
				b.Error(err)
			}
			done <- c
		}()
		for first.Attributes().LocalWorldSize < 2 {
			if err := first.UpdateTopology(ctx); err != nil {
				b.Fatal(err)
			}
		}
		return <-done
	}
	b.Run("newcomer", func(b *testing.B) {
		master := localMaster(b)
		first, err := connect(ctx, core.Options{Master: master, PortBase: -1})
		require.NoError(b, err)
		defer first.Close()
		var took []time.Duration
		for b.Loop() {
			start := time.Now()
			c := join(b, master, first)
			took = append(took, time.Since(start))
			c.Close()
			for first.Attributes().LocalWorldSize > 1 {
				require.NoError(b, first.UpdateTopology(ctx))
			}
		}
		quantiles(b, took)
	})
	b.Run("abort", func(b *testing.B) {
		master := localMaster(b)
		first, err := connect(ctx, core.Options{Master: master, PortBase: -1})
		require.NoError(b, err)
		defer first.Close()
		second := join(b, master, first)
		defer second.Close()
		v := make([]float32, 1000)
		var took []time.Duration
		for b.Loop() {
			h, err := first.AllReduceAsync(ctx, core.ReduceOf(v, v, core.Sum))
			require.NoError(b, err)
			other, err := second.AllReduceAsync(ctx, core.ReduceOf(slices.Clone(v), slices.Clone(v), core.Sum))
			require.NoError(b, err)
			start := time.Now()
			h.Cancel()
			<-other.Done()
			took = append(took, time.Since(start))
			h.Wait(ctx)
			other.Wait(ctx)
		}
		quantiles(b, took)
	})
}
