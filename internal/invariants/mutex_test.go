//go:build invariants

package invariants

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A lock that is taken in the wrong order is found, by the first who
// does it, whether or not another one is there to wait for.
func TestLockOrder(t *testing.T) {
	var low, high, other, free Mutex
	low.Rank(1, "low")
	high.Rank(2, "high")
	other.Rank(2, "other")
	wrong := func() {
		high.Lock()
		defer high.Unlock()
		low.Lock()
		low.Unlock()
	}
	require.NotPanics(t, wrong, "nobody watches")
	stop := WatchLocks()
	defer stop()
	right := func() {
		low.Lock()
		high.Lock()
		low.Unlock() // not the last one that was taken
		free.Lock()
		free.Unlock()
		high.Unlock()
		other.Lock()
		other.Unlock()
	}
	right()
	require.PanicsWithValue(t, "invariant violated: lock order: low (rank 1) is taken while high (rank 2) is held", wrong) // S4-21
	require.Panics(t, func() {
		high.Lock()
		defer high.Unlock()
		other.Lock() // the same rank
	})
	require.NotPanics(t, func() {
		high.Lock()
		defer high.Unlock()
		require.True(t, low.TryLock(), "who does not wait closes no circle")
		low.Unlock()
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				right()
			}
		})
	}
	wg.Wait()
	require.Empty(t, held.by)
	stop()
	require.NotPanics(t, wrong)
}
