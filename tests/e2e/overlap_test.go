package e2e

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/internal/transport"
)

// canal is what the data connections of a world share: it lets through what it
// is given, and counts.
type canal struct {
	mu     sync.Mutex
	moved  *sync.Cond
	open   bool
	given  int
	passed int
}

func newCanal() *canal {
	c := &canal{open: true}
	c.moved = sync.NewCond(&c.mu)
	return c
}

// take waits until some of want bytes may pass and returns how many.
func (c *canal) take(want int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.open && c.given == 0 {
		c.moved.Wait()
	}
	n := want
	if !c.open {
		n = min(want, c.given)
		c.given -= n
	}
	c.passed += n
	c.moved.Broadcast()
	return n
}

// give lets n more bytes pass and returns when they have, or when over says so.
func (c *canal) give(n int, over func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.given += n
	c.moved.Broadcast()
	for c.given > 0 && !over() {
		c.moved.Wait()
	}
	c.given = 0 // what nobody used is lost, as it is on a link
}

// wake has everybody look again.
func (c *canal) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moved.Broadcast()
}

func (c *canal) set(open bool) (passed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed, c.passed, c.open, c.given = c.passed, 0, open, 0
	c.moved.Broadcast()
	return passed
}

// barge is a connection that goes through a canal.
type barge struct {
	net.Conn
	c *canal
}

func (b barge) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = b.Conn.Write(p[n : n+b.c.take(len(p)-n)])
		n += k
	}
	return n, err
}

// Communication goes on while the trainer computes, of several all-reduces at
// once: a link that moves in each step of a computation a share of what they
// have to send is busy in every one of them, and when the computation is done
// so are they. Nothing here depends on time: a step ends when the link has
// moved its share, and what it could have moved without work for it is lost.
func TestCommunicationHidesBehindComputation(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	master := localMaster(t)
	link := newCanal()
	comms := world(t, ctx, master, 3, func(_ int, o *core.Options) {
		o.FrameBytes = 16 << 10
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil || addr == master {
				return c, err
			}
			return barge{transport.Quiet(c), link}, nil // see TestOneOperationUsesAllConnections
		}
	})
	const tensors, count, steps = 4, 50_000, 25
	var mu sync.Mutex
	left := 0
	launch := func() (handles []*core.Handle, results [][]float32) {
		mu.Lock()
		left = len(comms) * tensors
		mu.Unlock()
		for tag := range uint64(tensors) {
			for i, c := range comms {
				v := make([]float32, count)
				for k := range v {
					v[k] = float32(i + 1)
				}
				r := core.ReduceOf(v, v, core.Sum)
				r.Tag = tag
				h, err := c.AllReduceAsync(ctx, r)
				require.NoError(t, err)
				h.Notify(func() {
					mu.Lock()
					left--
					mu.Unlock()
					link.wake()
				})
				handles, results = append(handles, h), append(results, v)
			}
		}
		return handles, results
	}
	finish := func(handles []*core.Handle, results [][]float32) {
		t.Helper()
		for i, h := range handles {
			_, err := h.Wait(ctx)
			require.NoError(t, err)
			require.Equal(t, slices.Repeat([]float32{6}, count), results[i])
		}
	}
	over := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return left == 0 || ctx.Err() != nil
	}
	stop := context.AfterFunc(ctx, link.wake)
	defer stop()

	// What they have to send, with nothing in the way.
	link.set(true)
	finish(launch())
	volume := link.set(false)
	require.Greater(t, volume, tensors*count*4*4, "each sends two times two thirds")

	// Frames may be cut finer when the link is slow.
	share := (volume + volume/50) / steps
	handles, results := launch()
	busy := 0
	for range steps { // of the trainer, each as long as it takes
		before := over()
		link.give(share, over)
		if !before {
			busy++
		}
	}
	require.NoError(t, ctx.Err(), "the link stood still in a step: %d bytes in %d steps", volume, busy)
	require.True(t, over(), "not done with the last step")
	finish(handles, results)
	moved := link.set(true)
	ratio := float64(busy) / steps
	t.Logf("%d bytes of %d all-reduces in %d of %d steps: overlap %.2f", moved, tensors, busy, steps, ratio)
	require.GreaterOrEqual(t, ratio, 0.9, "the steps are balanced with what there is to send") // S2-04, S2-29
}
