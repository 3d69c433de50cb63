//go:build wan

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/lab"
)

// Nobody measures anything and nothing is set: hosts of very different rates soon take
// parts by what they can, in trees of one hop or of more. All take the same plan, and every
// element is compared.
func TestUnequalHostsTakeUnequalShares(t *testing.T) {
	p, err := lab.Parse("unequal", strings.NewReader(`hosts 5
host 0 up 10 down 50
host 1 up 50 down 50
host 2 up 100 down 100
host 3 up 100 down 100
pair * * delay 10ms
`))
	require.NoError(t, err)
	// On a machine with little time hosts show less than they can, but not for ever.
	shares := func(s step) bool { return strings.HasPrefix(s.plan, "shares") || strings.HasPrefix(s.plan, "relays") }
	found, err := game{
		seed: 1, congestion: "cubic", sizes: []int{2 << 20}, rounds: 16,
		enough: func(all []*contestant) bool { return slices.ContainsFunc(all[0].steps, shares) },
	}.play(p)
	require.NoError(t, err)
	steps := found[0].Entries[0].steps
	require.Equal(t, "ring", steps[0].plan)
	for _, s := range steps {
		t.Logf("%v: %s, %s", s.took, s.plan, s.why)
	}
	require.True(t, slices.ContainsFunc(steps, shares))
}
