package main

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == floorPeerArg {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestFloor(t *testing.T) {
	for _, count := range []int{1, 1000, 1 << 20} {
		for _, world := range []int{2, 3} {
			times, err := floor(t.Context(), world, count, 3)
			require.NoError(t, err)
			require.Len(t, times, 1)
			require.Positive(t, times[0])
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := floor(ctx, 2, 1000, 1)
	require.Error(t, err)
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int{"4": 4, "4KiB": 4096, "64MiB": 64 << 20} {
		n, err := parseSize(s)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	for _, s := range []string{"", "3", "4GB", "-1KiB"} {
		_, err := parseSize(s)
		require.Error(t, err, s)
	}
	require.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
}
