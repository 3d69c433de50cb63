package link

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport/transporttest"
	"github.com/gopccl/gopccl/platform"
)

// Who takes waits for those before, at the rate of the moment, and a pause is made up for by slack
// alone.
func TestAllowance(t *testing.T) {
	var a allowance
	now := time.Unix(1000, 0)
	take := func(n, want int) float64 {
		bytes, place := a.take(n, now)
		a.leave(place, false) // each alone
		require.Equal(t, want, bytes)
		return place
	}
	require.Zero(t, a.until(take(1<<30, leastGulp), now), "nothing is bounded")
	a.set(1e7)
	now = now.Add(time.Hour)
	first := take(1<<30, 200_000)
	require.Zero(t, a.until(first, now))
	second := take(100, 100)
	require.Equal(t, 20*time.Millisecond-slack, a.until(second, now))
	third := take(1<<20, 200_000)
	a.set(1e6)
	require.Equal(t, 150*time.Millisecond+100*time.Microsecond, a.until(third, now), "slower by now")
	a.refund(50_000)
	require.Equal(t, 100*time.Millisecond+100*time.Microsecond, a.until(third, now))
	now = now.Add(60 * time.Millisecond)
	require.Equal(t, 40*time.Millisecond+100*time.Microsecond, a.until(third, now))
	a.set(1)
	require.Equal(t, longestWait, a.until(third, now))
	a.set(0)
	require.Zero(t, a.until(third, now), "let go")
	a.set(1e7)
	now = now.Add(time.Second)
	require.Zero(t, a.until(take(1<<20, 200_000), now), "a pause")
	require.Equal(t, 20*time.Millisecond-slack, a.until(take(1, 1), now))
}

// However many wait, all get their turn within longestWait, and one that has waited longer is no
// debt of those behind it.
func TestAllowanceOfMany(t *testing.T) {
	var a allowance
	now := time.Unix(1000, 0)
	const rate, many = 1e7, 200
	a.set(rate)
	a.take(1, now)
	var last float64
	for range many {
		_, last = a.take(1<<20, now)
	}
	require.Less(t, a.until(last, now), longestWait)

	slow := allowance{}
	slow.set(64 << 10)
	slow.take(1, now)
	for range many {
		_, last = slow.take(1<<20, now)
	}
	require.Equal(t, longestWait, slow.until(last, now), "more than it carries")
	slow.leave(last, true)
	require.Zero(t, slow.until(last, now))
	_, next := slow.take(1, now)
	require.LessOrEqual(t, slow.until(next, now), 100*time.Millisecond)
}

// Data to distant peers takes of the allowance; small frames and near peers do not.
func TestBoundedSender(t *testing.T) {
	p := newPair(t, Config{}, 2, transporttest.Options{}, Features{Native: true, Flows: true})
	far, near := p.far(0, func(*platform.Info) bool { return false }), p.sender(1)
	h := p.a.h
	const rate, bytes = 1e6, 100_000
	h.allowance.set(rate)
	taken := func() float64 {
		h.allowance.mu.Lock()
		defer h.allowance.mu.Unlock()
		return h.allowance.taken
	}
	p.send(t, near, 1, bytes)
	require.True(t, far.ask(t.Context()))
	p.send(t, far, 2, unbounded-100)
	require.Zero(t, taken(), "nothing was taken")
	p.send(t, far, 3, bytes)
	p.send(t, far, 4, bytes)
	require.GreaterOrEqual(t, taken(), 2.0*bytes)
	require.NotNil(t, far.gauge.flow.timer, "the second one waited")

	// What ends while it waits does not wait on.
	far.close(errTest)
	require.Eventually(t, func() bool { return far.gauge.flow.writes.Load() == 0 }, patience, time.Millisecond)
}
