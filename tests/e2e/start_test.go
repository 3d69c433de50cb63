package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
)

// pair forms a world of o.World, reduces once and leaves.
func pair(ctx context.Context, o order, say func(report)) error {
	comm, err := join(ctx, o)
	if err != nil {
		return err
	}
	defer comm.Close()
	data := make([]uint64, 64)
	for i := range data {
		data[i] = 1 << o.ID
	}
	if _, err := core.AllReduceSlice(ctx, comm, data, data, core.Sum); err != nil {
		return err
	}
	for i, v := range data {
		if v != 3 {
			return fmt.Errorf("element %d is %#x, want 3", i, v)
		}
	}
	say(report{Event: "reduced"})
	return nil
}

// worlds creates, connects, reduces and destroys o.Steps times in one process.
func worlds(ctx context.Context, o order, say func(report)) error {
	for n := range o.Steps {
		if err := pair(ctx, o, func(report) {}); err != nil {
			return fmt.Errorf("cycle %d: %w", n, err)
		}
		say(report{Event: "cycle", Step: uint64(n)})
	}
	return nil
}

func init() {
	roles["pair"] = pair
	roles["worlds"] = worlds
}

// Two processes start at once, form a world and all-reduce at once, over and
// over (PCCL crashes in 1 of 100 such starts).
func TestStartAtOnce(t *testing.T) {
	_, master := startMaster(t)
	for n := range counts(1000) {
		a := start(t, order{Role: "pair", Master: master, ID: 0, World: 2})
		b := start(t, order{Role: "pair", Master: master, ID: 1, World: 2})
		a.await("reduced", patience)
		b.await("reduced", patience)
		a.await("done", patience)
		b.await("done", patience)
		if n%100 == 99 {
			t.Logf("%d starts", n+1)
		}
	}
}

// Two processes create, connect, reduce and destroy in a loop (PCCL crashes
// within 40 cycles).
func TestCreateReduceDestroyLoop(t *testing.T) {
	_, master := startMaster(t)
	cycles := counts(400)
	a := start(t, order{Role: "worlds", Master: master, ID: 0, World: 2, Steps: cycles})
	b := start(t, order{Role: "worlds", Master: master, ID: 1, World: 2, Steps: cycles})
	a.await("done", patience)
	b.await("done", patience)
}

// Twenty peers join a run of two at once; all get in, and the run goes on. The
// longest pause of the run is logged.
func TestTwentyJoinAtOnce(t *testing.T) {
	_, master := startMaster(t)
	founders := []*child{
		start(t, order{Role: "trainer", Master: master, ID: 0, Count: 100, World: 2, Extra: 1}),
		start(t, order{Role: "trainer", Master: master, ID: 1, Count: 100, World: 2, Extra: 1}),
	}
	founders[0].await("step", patience)
	for id := 2; id < 22; id++ {
		start(t, order{Role: "trainer", Master: master, ID: id, Count: 100, Extra: 1})
	}
	last, longest := time.Now(), time.Duration(0)
	for {
		r := founders[0].await("step", patience)
		longest = max(longest, time.Since(last))
		last = time.Now()
		if r.World == 22 {
			break
		}
	}
	t.Logf("longest pause between two steps of the run: %v", longest)
	require.Equal(t, 22, founders[1].awaitWorld(22))
}

func (c *child) awaitWorld(w int) int {
	for {
		if r := c.await("step", patience); r.World >= w {
			return r.World
		}
	}
}
