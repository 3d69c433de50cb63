package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// forward listens, and passes connections on to what to names last, "": it closes them.
func forward(t *testing.T, to *atomic.Pointer[string]) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var open sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		open.Wait()
	})
	open.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", *to.Load())
			if err != nil {
				in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			pass := func(a, b net.Conn) func() {
				return func() {
					_, _ = io.Copy(a, b) // until one of them ends
					a.Close()
					b.Close()
				}
			}
			open.Go(pass(in, out))
			open.Go(pass(out, in))
		}
	})
	return ln.Addr().String()
}

// goOn trains until all of a world of n have done some steps together.
func goOn(ctx context.Context, c *core.Communicator, i, n int) error {
	state := &core.SharedState{Tensors: []core.Tensor{core.TensorOf("params", make([]float64, 100))}}
	for together := 0; ; {
		pending, err := c.PeersPending(ctx)
		if err == nil && pending {
			err = c.UpdateTopology(ctx)
		}
		if err != nil {
			return fmt.Errorf("update: %w", err)
		}
		if _, err := c.SyncSharedState(ctx, state, core.SyncOptions{}); err != nil {
			return fmt.Errorf("sync: %w", err)
		}
		state.Revision++
		world := c.Attributes().LocalWorldSize
		if world < 2 {
			continue
		}
		if err := reduceMasks(ctx, c, i, []int{10, 3000, 20_000}); err != nil {
			return err
		}
		if world == n {
			together++
		}
		full := []float64{0}
		if together > 5 {
			full[0] = 1
		}
		if _, err := c.AllReduce(ctx, core.ReduceOf(full, full, core.Sum)); err != nil {
			return err
		}
		if full[0] == float64(n) {
			return nil
		}
	}
}

func init() {
	roles["goer"] = func(ctx context.Context, o order, say func(report)) error {
		comm, err := join(ctx, o)
		if err != nil {
			return err
		}
		defer comm.Close()
		say(report{Event: "connected", World: comm.Attributes().LocalWorldSize})
		return goOn(ctx, comm, o.ID, 4)
	}
}

// The master dies, keeps nothing, and a newcomer is at the next one before the members of the
// run: it begins one of its own, and is let in by theirs when they come. No call fails.
func TestNewcomerIsFirst(t *testing.T) {
	for range counts(50) {
		m, at := startMaster(t)
		var to atomic.Pointer[string]
		to.Store(&at)
		addr := forward(t, &to)
		goer := func(id, world int, addr string) *child {
			return start(t, order{Role: "goer", Master: addr, ID: id, World: world, Patience: time.Minute})
		}
		var cs []*child
		for id := range 3 {
			cs = append(cs, goer(id, 3, addr))
		}
		for _, c := range cs {
			c.await("connected", time.Minute)
		}
		nowhere := ""
		to.Store(&nowhere)
		m.kill()
		for range m.lines { // until it is gone
		}
		_, next := startMaster(t)
		first := goer(3, 1, next)
		require.Equal(t, 1, first.await("connected", time.Minute).World)
		to.Store(&next)
		for _, c := range append(cs, first) {
			c.await("done", time.Minute)
		}
	}
}
