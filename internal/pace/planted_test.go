package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Controllers with a known fault fail in the model, so that the model can be
// trusted: each has one rule missing.

// Without the floor a queue that is not ours takes the rate down to nothing. The
// model gives it one that does not go: the way is longer than its base says.
func TestWithoutTheFloor(t *testing.T) {
	least := func(floor float64) float64 {
		f := way{mbit: 100, base: 30, buffer: 50 * time.Millisecond, conns: 2}.fluid(1)
		f.up.law.floor, f.up.law.drain = floor, 1e9
		f.run(5 * time.Second)
		f.measured = func(s *Sample) { s.RTT += 10 * time.Millisecond }
		least := 1.0
		for range 30 {
			least = min(least, f.run(500*time.Millisecond).part)
		}
		return least
	}
	require.Greater(t, least(theLaw.floor), 0.4)
	require.Less(t, least(0.01), 0.4)
}

// The fastest moment of an interval instead of its mean: what comes in bursts
// looks fast, and the queue stays.
func TestMaximumInsteadOfMean(t *testing.T) {
	c := way{mbit: 50, base: 100, buffer: 100 * time.Millisecond, conns: 4, acks: 0.7}
	outcome := func(peak bool) outcome {
		f := c.fluid(1)
		if peak {
			type last struct {
				at      int
				arrived uint64
				seen    uint64
				best    float64
				since   int
			}
			flows := map[uint64]*last{}
			f.measured = func(s *Sample) {
				l := flows[s.Conn]
				if l == nil {
					flows[s.Conn] = &last{at: f.now, arrived: s.Arrived, seen: s.Arrived, since: f.now}
					return
				}
				rate := float64(s.Arrived-l.arrived) / float64(f.now-l.at)
				if f.now-l.since > 100 {
					l.best, l.since = 0, f.now
				}
				l.best = max(l.best, rate)
				l.seen += uint64(l.best * float64(f.now-l.at))
				l.at, l.arrived = f.now, s.Arrived
				s.Arrived = l.seen
			}
		}
		f.run(c.settles())
		return f.run(10 * time.Second)
	}
	require.Empty(t, good(outcome(false)))
	require.NotEmpty(t, good(outcome(true)))
}

// A controller that reduces at every loss loses a line that is only a little bad.
func TestCutOnRandomLoss(t *testing.T) {
	c := way{mbit: 20, base: 20, buffer: 50 * time.Millisecond, conns: 16, loss: 0.01}
	rate := func(losses, queue float64) float64 {
		f := c.fluid(1)
		f.up.law.losses, f.up.law.lossQueue = losses, queue
		f.run(10 * time.Second)
		return f.run(10 * time.Second).part
	}
	require.Greater(t, rate(theLaw.losses, theLaw.lossQueue), 0.85)
	require.Less(t, rate(0, 0), 0.85)
}

// If the base is never measured again, a longer way is taken for a queue for ever.
func TestBaseForEver(t *testing.T) {
	f := way{mbit: 100, base: 30, buffer: 100 * time.Millisecond, conns: 2}.fluid(1)
	f.up.law.drain = 1e9
	f.run(12 * time.Second)
	for _, w := range f.flows {
		w.base = 90
	}
	f.run(5 * time.Second)
	require.Equal(t, int64(30), f.up.Base(1).Milliseconds())
}
