//go:build wan

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/lab"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// The original library plays in the hosts of the network, and not beside it: what it
// sends takes the time that the network asks for.
func TestTheOriginalPlaysInTheNetwork(t *testing.T) {
	pccl.Require(t)
	p, err := lab.Parse("short", strings.NewReader("hosts 4\nhost * up 100 down 100\npair * * delay 5ms"))
	require.NoError(t, err)
	found, err := game{seed: 1, congestion: "cubic", sizes: []int{200_000}, rounds: 2, lineup: lineup{original: "1"}}.play(p)
	require.NoError(t, err)
	entries := found[0].Entries
	require.Equal(t, namePCCL+", 1", entries[1].Name)
	require.Greater(t, entries[1].Seconds, 4*0.005, "four hops")
}
