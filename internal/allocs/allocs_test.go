package allocs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

var sink []byte

// What the function allocates is counted, whatever else allocates now and then.
func TestPerRun(t *testing.T) {
	require.Zero(t, PerRun(10, func() {}))
	require.EqualValues(t, 2, PerRun(10, func() {
		sink = make([]byte, 64)
		sink = make([]byte, 128)
	}))
	calls := 0
	require.Zero(t, PerRun(10, func() {
		if calls++; calls < 15 { // another goroutine's, once
			for range 10 {
				sink = make([]byte, 64)
			}
		}
	}))
}
