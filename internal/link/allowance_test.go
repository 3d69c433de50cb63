package link

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/platform"
)

// Who takes waits for what was taken before, and a pause is made up for by slack alone.
func TestAllowance(t *testing.T) {
	var a allowance
	now := time.Unix(1000, 0)
	require.Zero(t, a.take(1<<30, now), "nothing is bounded")
	a.set(1e6)
	require.Zero(t, a.take(100_000, now))
	require.Equal(t, 100*time.Millisecond-slack, a.take(100_000, now))
	require.Equal(t, 150*time.Millisecond-slack, a.take(5_000, now.Add(50*time.Millisecond)))
	later := now.Add(time.Hour)
	require.Zero(t, a.take(5_000, later), "slack")
	require.Zero(t, a.take(1, later))
	require.Positive(t, a.take(1, later))
	a.set(0)
	require.Zero(t, a.take(1<<30, later))
}

// What is bounded waits, small frames and near peers do not, and what ends while it waits
// does not wait on.
func TestBoundedSenderLetsGo(t *testing.T) {
	p := newPair(t, Config{}, 2, transporttest.Options{}, Features{Native: true, Flows: true})
	far, near := p.far(0, func(*platform.Info) bool { return false }), p.sender(1)
	h := p.a.h
	h.allowance.set(1)                  // a byte in a second
	h.allowance.take(1<<20, time.Now()) // for the next days
	require.True(t, far.bounded(unbounded+1))
	require.False(t, far.bounded(unbounded))
	require.False(t, near.bounded(1<<20))
	require.True(t, far.ask(t.Context()), "a ping is small")

	x, y := newRoll(1, 7, make([]byte, 100_000)), newTape()
	p.b.open(uuid(0), 1, 7, y)
	far.Attach(x)
	far.Kick(false, false)
	require.Eventually(t, func() bool { return far.gauge.flow.writes.Load() == 1 }, patience, time.Millisecond)
	z, w := newRoll(1, 8, make([]byte, 100_000)), newTape()
	p.b.open(uuid(0), 1, 8, w)
	near.Attach(z)
	near.Kick(false, false)
	require.Len(t, w.next(t), 100_000)
	far.close(errTest)
	require.Eventually(t, func() bool { return far.gauge.flow.writes.Load() == 0 }, patience, time.Millisecond, "it waits for nothing that has ended")
}
