package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// The loop that everybody writes first: ask, update if somebody waits, reduce.
// A newcomer asks in its first turn, while the others, who have just let it in,
// are on to their reduction: nobody waits for ever, and the next newcomer is
// let in as well.
func TestNewcomersAskFirst(t *testing.T) {
	const peers, steps = 4, 60
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	addr := localMaster(t)
	var reached [peers]atomic.Int64 // steps of the one before, that the next one waits for
	loop := func(i int) error {
		if i > 0 {
			for reached[i-1].Load() < 5 {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Millisecond):
				}
			}
		}
		c, err := connect(ctx, core.Options{Master: addr, PortBase: -1})
		if err != nil {
			return err
		}
		defer c.Close()
		for n := int64(1); n <= steps || reached[peers-1].Load() < steps; n++ {
			pending, err := c.PeersPending(ctx)
			if err == nil && pending {
				err = c.UpdateTopology(ctx)
			}
			if err != nil {
				return err
			}
			v := []float32{1, 2, 3}
			_, err = c.AllReduceMultipleWithRetry(ctx, []core.Reduce{core.ReduceOf(v, v, core.Sum)}, 1)
			if err != nil && !errors.Is(err, errs.TooFewPeers) { // alone
				return err
			}
			reached[i].Store(n)
		}
		return nil
	}
	ended := make(chan error, peers)
	for i := range peers {
		go func() { ended <- loop(i) }()
	}
	for range peers {
		require.NoError(t, <-ended)
	}
}

// A program that begins when it counts n peers begins with n: whom a round has left
// outside, because it was still on trial, is not counted.
func TestProgramsBeginWithAll(t *testing.T) {
	const peers, formations = 3, 40
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	form := func(addr string) error {
		c, err := connect(ctx, core.Options{Master: addr, PortBase: -1})
		if err != nil {
			return err
		}
		defer c.Close()
		for c.Attributes().GlobalWorldSize < peers {
			if err := c.UpdateTopology(ctx); err != nil {
				return err
			}
		}
		v := []float32{1}
		info, err := c.AllReduce(ctx, core.ReduceOf(v, v, core.Sum))
		if err == nil && info.WorldSize != peers {
			err = fmt.Errorf("it began with %d of %d peers", info.WorldSize, peers)
		}
		return err
	}
	for range formations {
		addr := localMaster(t)
		ended := make(chan error, peers)
		for range peers {
			go func() { ended <- form(addr) }()
		}
		for range peers {
			require.NoError(t, <-ended)
		}
	}
}
