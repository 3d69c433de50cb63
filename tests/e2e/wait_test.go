package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// A group that falls below its minimum pauses, and goes on when somebody has
// come; above it nobody waits.
func TestMinimumOfPeers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	at := localMaster(t)
	c := world(t, ctx, at, 3, nil)
	for _, p := range c {
		require.NoError(t, p.WaitForPeers(ctx, 3), "above the minimum nobody waits, or needs the others")
	}
	require.NoError(t, c[2].Close())
	left := c[:2]
	reduced := make(chan error, len(left))
	for _, p := range left {
		go func() {
			x := []float32{1}
			_, err := core.AllReduceSlice(ctx, p, x, x, core.Sum)
			reduced <- err
		}()
	}
	for range left { // the first operation notices
		require.Equal(t, errs.RankConnectionLost, errs.CodeOf(<-reduced))
	}
	waited := make(chan error, len(left))
	for _, p := range left {
		require.Equal(t, 2, p.Attributes().LocalWorldSize)
		go func() { waited <- p.WaitForPeers(ctx, 3) }()
	}
	select {
	case err := <-waited:
		t.Fatalf("two peers are not three: %v", err)
	case <-time.After(100 * time.Millisecond): // a longer wait would see more
	}
	late, err := connect(ctx, core.Options{Master: at, PortBase: -1})
	require.NoError(t, err)
	defer late.Close()
	for range left {
		require.NoError(t, <-waited) // S2-09
	}
	for _, p := range append(left, late) {
		require.Equal(t, 3, p.Attributes().LocalWorldSize)
		require.NoError(t, p.WaitForPeers(ctx, 3))
	}
}

// The end of the context ends the waiting and leaves the session usable, the end
// of the session ends it, too.
func TestWaitingForPeersEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 1, nil)[0]
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	require.Equal(t, errs.Canceled, errs.CodeOf(c.WaitForPeers(short, 2)))
	require.NoError(t, c.UpdateTopology(ctx))
	ended := make(chan error, 1)
	go func() { ended <- c.WaitForPeers(ctx, 2) }()
	require.NoError(t, c.Close())
	require.Error(t, <-ended)
}

// A launch that has to wait can be taken back, and one that was taken goes on.
func TestALaunchIsTakenBack(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := world(t, ctx, localMaster(t), 2, nil)
	sum := func(tag uint64, x []float32) core.Reduce {
		r := core.ReduceOf(x, x, core.Sum)
		r.Tag = tag
		return r
	}
	x, y := []float32{1}, []float32{2}
	given, err := c[0].Launch(sum(0, x))
	require.NoError(t, err)
	<-given.Taken()
	require.NoError(t, given.Refused())
	given.Withdraw() // no effect: it was taken
	given.Cancel()   // its votes are still to be cast, so that what follows has to wait
	_, err = given.Wait(ctx)
	require.Equal(t, errs.Canceled, errs.CodeOf(err))

	late, err := c[0].Launch(sum(1, x))
	require.NoError(t, err)
	select {
	case <-late.Taken():
		t.Fatal("the background is not quiet")
	default:
	}
	late.Withdraw()
	require.Equal(t, errs.Canceled, errs.CodeOf(late.Refused()))
	<-late.Done()
	_, err = late.Wait(ctx)
	require.Equal(t, errs.Canceled, errs.CodeOf(err))

	_, err = c[1].AllReduce(ctx, sum(0, y))
	require.Equal(t, errs.RankConnectionLost, errs.CodeOf(err))
	again, err := c[0].Launch(sum(1, x)) // nothing of it is left
	require.NoError(t, err)
	_, err = c[1].AllReduce(ctx, sum(1, y))
	require.NoError(t, err)
	_, err = again.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, []float32{3}, x)
	require.Equal(t, []float32{3}, y)
}
