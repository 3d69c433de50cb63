package link

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// Where only words went, as between sites to members that take no part in the exchange, nothing is shown of
// what the way carries. A slow way has as much to carry as others, and shows it.
func TestUnusedWaysShowNothing(t *testing.T) {
	h := &Hub{survey: &survey{}}
	y := &h.survey.yield
	used, slow, idle := wire.UUID{1}, wire.UUID{2}, wire.UUID{3}
	now := time.Second
	window := func(to wire.UUID, bytes, came uint64) {
		y.add(to, bytes, 50*time.Millisecond)
		for i := range byte(60) { // of 64 members most are not sent to
			y.add(wire.UUID{100 + i}, 0, 50*time.Millisecond)
		}
		y.add(idle, leastWay/5, 50*time.Millisecond)
		now += yieldTime
		y.end(now, came)
	}
	take := func() (best wire.C2MRates, to []wire.UUID) {
		best, ok := h.TakeYield(1 << 20)
		require.True(t, ok)
		for _, p := range best.Pairs {
			to = append(to, p.To)
		}
		return best, to
	}
	y.end(now, 0)
	for range 1000 {
		window(idle, 0, 1000)
	}
	_, ok := h.TakeYield(1 << 20)
	require.False(t, ok, "words are no measure, however many")
	for range 8 {
		window(slow, 64<<10, 200<<10)
	}
	window(used, 1<<20, 0)
	best, to := take()
	require.ElementsMatch(t, []wire.UUID{used, slow}, to)
	require.InDelta(t, 33.5, best.Up, 0.1)
	require.InDelta(t, 6.55, best.Down, 0.01)

	// Each report stands alone: a way that was used before this one, and not since, is not in it.
	window(used, leastWay/3, 1000)
	window(slow, 2<<20, 1000)
	best, to = take()
	require.Equal(t, []wire.UUID{slow}, to)
	require.Zero(t, best.Down, "hardly anything came")

	// A way counts that carried a small part of what the most used one did; one that carried less than
	// unusedWay of it does not.
	window(used, 32<<20, 0)
	window(slow, 512<<10, 0)
	window(idle, 128<<10, 0)
	_, to = take()
	require.ElementsMatch(t, []wire.UUID{used, slow}, to)
}
