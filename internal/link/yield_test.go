package link

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// A way over which only words went, as members of sites have to those that others of theirs send to, shows
// nothing of what it carries. One that is slow does: it had as much to carry as the others.
func TestUnusedWaysShowNothing(t *testing.T) {
	h := &Hub{survey: &survey{}}
	y := &h.survey.yield
	used, slow, unused := wire.UUID{1}, wire.UUID{2}, wire.UUID{3}
	now := time.Second
	y.end(now, 0)
	for window := range 8 {
		y.add(slow, 64<<10, 50*time.Millisecond)
		if window == 0 {
			y.add(used, 512<<10, 50*time.Millisecond)
		}
		y.add(unused, 500, 50*time.Millisecond)
		now += yieldTime
		y.end(now, 0)
	}
	best, ok := h.TakeYield(1 << 20)
	require.True(t, ok)
	var to []wire.UUID
	for _, p := range best.Pairs {
		to = append(to, p.To)
	}
	require.ElementsMatch(t, []wire.UUID{used, slow}, to)

	y.add(unused, 2<<20, 50*time.Millisecond)
	y.end(now+yieldTime, 0)
	best, ok = h.TakeYield(1 << 20)
	require.True(t, ok)
	require.Len(t, best.Pairs, 1, "each time anew")
}
