package collective

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A short lane takes few of the connections, and one that is very short a single one.
func TestStripes(t *testing.T) {
	for _, c := range []struct{ n, longest, flow, conns, piece int }{
		{4, 512 << 10, 512 << 10, 4, 16 << 10},
		{4, 512<<10 - 1, 512<<10 - 1, 3, 16 << 10},
		{4, 100_000, 100_000, 1, leastPiece},
		{32, 512 << 10, 512 << 10, 4, 16 << 10},
		{4, 4 << 20, 4 << 20, 4, 32 << 10},
		{4, 100_000, 4 << 20, 4, 32 << 10}, // many chunks at one time
		{1, 4 << 20, 4 << 20, 1, 512 << 10},
		{0, 4 << 20, 4 << 20, 0, 512 << 10},
	} {
		conns, piece := stripes(c.n, c.longest, c.flow, minStripe)
		require.Equal(t, c.conns, conns, "%+v", c)
		require.Equal(t, c.piece, piece, "%+v", c)
	}
}
