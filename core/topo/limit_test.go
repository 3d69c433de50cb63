package topo

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A limited context ends by the clock of its owner and by nothing else, but
// with its parent; solvers read the same clock.
func TestLimit(t *testing.T) {
	used := 7 * time.Second // what was used before does not count
	parent, cancel := context.WithCancel(context.Background())
	defer cancel()
	ctx := Limit(parent, 10*time.Second, func() time.Duration { return used })
	require.NoError(t, ctx.Err())
	now, end := Clock(ctx)
	require.Equal(t, 10*time.Second, end-now())
	used += 9 * time.Second
	require.NoError(t, ctx.Err())
	require.Equal(t, time.Second, end-now())
	inner, stop := context.WithCancel(ctx)
	defer stop()
	now, end = Clock(inner)
	require.Equal(t, time.Second, end-now(), "through other contexts")
	used += time.Second
	require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded) // S1-18
	require.Zero(t, end-now())
	cancel()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	<-ctx.Done()

	tighter := Limit(Limit(context.Background(), time.Hour, func() time.Duration { return 0 }), time.Minute, func() time.Duration { return 0 })
	_, end = Clock(tighter)
	require.Equal(t, time.Minute, end)
}

// Without a limit the clock starts now and goes to the deadline, if there is one.
func TestClockOfDeadline(t *testing.T) {
	_, end := Clock(context.Background())
	require.Equal(t, Endless, end)
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	now, end := Clock(ctx)
	require.Negative(t, end)
	require.GreaterOrEqual(t, now(), time.Duration(0))
	ctx, cancel = context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	_, end = Clock(ctx)
	require.Positive(t, end)
	require.LessOrEqual(t, end, time.Hour)
}
