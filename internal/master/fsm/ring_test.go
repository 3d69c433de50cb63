package fsm

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Asking for the ring that a group ought to have changes nothing; normalise
// makes it the order that stays when the reason for it is gone.
func TestArrangeIsAQuery(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(5, true)
	g := w.m.groups[0]
	sorted, own := w.m.arrange(g)
	require.False(t, own)
	require.Equal(t, g.ring, sorted)
	a, b := w.m.conns[cs[0]], w.m.conns[cs[1]]
	a.mark(b.uuid, 1)
	around, own := w.m.arrange(g)
	require.True(t, own)
	require.NotEqual(t, sorted, around)
	require.Nil(t, g.order)
	require.False(t, w.m.wanted(g), "nothing but uuids has decided on the order so far")
	require.Equal(t, around, w.m.normalise(g))
	require.Equal(t, around, g.order)
	require.True(t, w.m.wanted(g))
	a.ways.unreachable = nil
	again, _ := w.m.arrange(g)
	require.Equal(t, around, again)
	g.prefer(slices.Clone(sorted))
	a.mark(b.uuid, 1)
	require.True(t, w.m.wanted(g))
	require.Equal(t, sorted, g.order)
}
