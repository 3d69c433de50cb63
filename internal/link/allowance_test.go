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
	a.take(1<<40, later)
	require.Equal(t, longestWait, a.take(1<<40, later), "nobody waits for longer")
	a.set(0)
	require.Zero(t, a.take(1<<30, later))
}

// Data to distant peers takes of the allowance; small frames and near peers do not.
func TestBoundedSender(t *testing.T) {
	p := newPair(t, Config{}, 2, transporttest.Options{}, Features{Native: true, Flows: true})
	far, near := p.far(0, func(*platform.Info) bool { return false }), p.sender(1)
	h := p.a.h
	const rate, bytes = 1e6, 100_000
	h.allowance.set(rate)
	free := func() time.Time {
		h.allowance.mu.Lock()
		defer h.allowance.mu.Unlock()
		return h.allowance.free
	}
	send := func(s *Sender, tag uint64, n int) {
		x, y := newRoll(1, tag, make([]byte, n)), newTape()
		p.b.open(uuid(0), 1, tag, y)
		s.Attach(x)
		s.Kick(true, false)
		require.Len(t, y.next(t), n)
	}
	send(near, 1, bytes)
	require.True(t, far.ask(t.Context()))
	send(far, 2, unbounded-100)
	require.Zero(t, free(), "nothing was taken")
	began := time.Now()
	send(far, 3, bytes)
	send(far, 4, bytes)
	require.GreaterOrEqual(t, free().Sub(began), 2*bytes*time.Second/rate-2*slack)
	require.NotNil(t, far.gauge.flow.timer, "the second one waited")

	// What ends while it waits does not wait on.
	far.close(errTest)
	far.await()
}
