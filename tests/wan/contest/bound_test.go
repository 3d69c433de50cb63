package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/lab"
)

// The ideal is what the dearest of all limits needs: a peer's, a site's, or that of all
// peers or sites together.
func TestIdeal(t *testing.T) {
	const bytes = 1_000_000 // 8 Mbit
	for text, want := range map[string]float64{
		"hosts 5\nhost * up 8 down 80":                                      1.5, // 3/4 twice, as a ring sends
		"hosts 5\nhost * up 80 down 8":                                      1.5,
		"hosts 5\nhost * up 80\nhost 2 up 8":                                1, // one peer's uplink
		"hosts 5\npair * * rate 8":                                          0.5,
		"hosts 5\nhost * up 8\nhost 4 up 1":                                 1.5, // the master's does not matter
		"hosts 5\npair * * delay 5ms":                                       0,
		"hosts 5\nhost 0 up 8":                                              1,
		"hosts 5\nsite 0 1 inside 0 1ms out 8\nsite 2 3 inside 0 1ms out 8": 1,
		"hosts 4\nsite 0 inside 0 1ms out 8\nsite 1 inside 0 1ms out 8\nsite 2 inside 0 1ms out 8": 4.0 / 3,
	} {
		p, err := lab.Parse("x", strings.NewReader(text))
		require.NoError(t, err)
		require.InDelta(t, want, ideal(p, len(p.Hosts)-1, bytes), 1e-9, text)
	}
}
