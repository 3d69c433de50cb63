package pace

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSpills(t *testing.T) {
	require.False(t, Spills(7*1448, 1448), "by chance")
	require.True(t, Spills(8*1448, 1448))
	require.False(t, Spills(8*1448, 0), "nobody knows")
}
