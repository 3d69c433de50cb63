//go:build wan

package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/lab"
)

// TestMain makes this program that of the processes in the hosts.
func TestMain(m *testing.M) {
	if os.Getenv(orderVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// A pair of peers that is cut off for two seconds costs an operation at most one repeat:
// every element is compared, along the ring and in the direct exchange.
func TestOperationsOutliveABlackout(t *testing.T) {
	p, err := lab.Load("regional")
	require.NoError(t, err)
	found, err := game{
		seed: 1, congestion: "cubic", sizes: []int{1 << 20, 200_000}, rounds: 3, blackout: 2 * time.Second,
	}.play(p)
	require.NoError(t, err)
	require.Len(t, found, 2)
	for _, o := range found {
		require.Len(t, o.Entries, 1)
	}
}
