package ports

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A port is given once before it is given again, never one where somebody listens,
// and none that is not below the ephemeral range.
func TestFree(t *testing.T) {
	all, err := Free(size / 2)
	require.NoError(t, err)
	slices.Sort(all)
	require.Len(t, slices.Compact(slices.Clone(all)), size/2)
	require.Greater(t, all[0], base)
	require.Less(t, all[len(all)-1], base+size)
	require.Less(t, first+blocks*size, 32768)

	ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", all[7]))
	require.NoError(t, err)
	defer ln.Close()
	for range 6 {
		rest, err := Free(size / 2)
		require.NoError(t, err)
		require.NotContains(t, rest, all[7])
	}
	_, err = Free(size)
	require.ErrorContains(t, err, "are free")

	at, err := Address()
	require.NoError(t, err)
	again, err := net.Listen("tcp", at)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

// The block belongs to this process.
func TestTheBlockIsHeld(t *testing.T) {
	_, err := Free(1)
	require.NoError(t, err)
	_, err = net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", base))
	require.Error(t, err)
}
