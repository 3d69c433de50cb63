package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// The slowest link of the best ring gets the rate that was asked for; a peer that
// joins is a whole peer.
func TestScale(t *testing.T) {
	for _, n := range []int{3, 6, 8, 12} {
		_, m, err := load(n)
		require.NoError(t, err)
		best, scaled, err := scale(context.Background(), m, 40)
		require.NoError(t, err)
		require.InDelta(t, 40, best, 1e-6)
		ids := make([]int, n)
		for i := range ids {
			ids[i] = i
		}
		slow, _, ok := scaled.Value(ids)
		require.True(t, ok)
		require.Less(t, slow, 40.001)
		grown := twin(m)
		for i := range n {
			_, there := grown.At(i, n)
			_, back := grown.At(n, i)
			require.True(t, there && back)
		}
	}
	_, _, err := load(13)
	require.Error(t, err)
}
