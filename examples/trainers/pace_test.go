package trainers

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// As few local steps as keep averaging within its share of the time.
func TestPace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Pace{Share: rapid.Float64Range(0.01, 0.9).Draw(t, "share"), Most: 1 << 30}
		step := time.Duration(rapid.Int64Range(1e3, 1e10).Draw(t, "step"))
		reduce := time.Duration(rapid.Int64Range(0, 1e10).Draw(t, "reduce"))
		share := func(n int) float64 { return float64(reduce) / (float64(reduce) + float64(n)*float64(step)) }
		n := p.Steps(step, reduce)
		require.LessOrEqual(t, share(n), p.Share*(1+1e-9))
		require.True(t, n == 1 || share(n-1) > p.Share*(1-1e-9), "%d steps, one less would do", n)
	})
	require.Equal(t, 1000, Pace{Share: 0.1}.Steps(1, time.Hour), "bounded")
	require.Equal(t, 7, Pace{Share: 0.1, Most: 7}.Steps(time.Second, time.Hour))
}

// A simulated group in virtual time: the link becomes slow and fast again, a
// peer computes slower than the others, and from the second step after a change
// averaging keeps its share, while no more steps are taken than that needs.
func TestPaceFollowsTheLinks(t *testing.T) {
	p := Pace{Share: 0.1, Most: 5000}
	inner, before := 20, time.Duration(0)
	for k := range 60 {
		step, reduce := 50*time.Millisecond, 400*time.Millisecond
		switch {
		case k >= 20 && k < 40:
			reduce = 9 * time.Second // the link is bad
		case k >= 40:
			step = 200 * time.Millisecond // the slowest peer became slower
		}
		share := reduce.Seconds() / (reduce + time.Duration(inner)*step).Seconds()
		if settled := k%20 >= 2; settled {
			require.LessOrEqual(t, share, p.Share+1e-9, "step %d", k) // S2-57
			require.Greater(t, share, p.Share*0.8, "step %d: %d local steps", k, inner)
		}
		if k > 0 { // what an average took is told with the next one
			inner = p.Steps(step, before)
		}
		before = reduce
	}
}

// Peers that measure different durations take equally many local steps, those of
// the slowest peer's step and of the shortest average, and hold the same bits.
func TestPeersKeepPace(t *testing.T) {
	addr, _ := master(t)
	o := small(addr)
	o.Pace = Pace{Share: 0.5, Most: 6}
	ticking := func(each time.Duration) func() time.Time {
		var mu sync.Mutex
		now := time.Unix(0, 0)
		return func() time.Time { // every look costs the same
			mu.Lock()
			defer mu.Unlock()
			now = now.Add(each)
			return now
		}
	}
	fast, slow := o, o
	fast.Now, slow.Now = ticking(time.Millisecond), ticking(time.Second)
	a, b := start(t, DiLoCo, fast, nil), start(t, DiLoCo, slow, nil)
	a.wait(t)
	b.wait(t)
	for i, e := range a.of(Stepped) {
		require.Equal(t, e.Inner, b.of(Stepped)[i].Inner, "step %d", e.Step)
		require.Equal(t, e.Hash, b.of(Stepped)[i].Hash, "step %d", e.Step)
	}
	// The slow one's step, a second by three local steps, and the fast one's
	// average of a millisecond.
	require.Equal(t, o.Inner, a.of(Stepped)[0].Inner)
	require.Equal(t, 1, a.of(Stepped)[len(a.of(Stepped))-1].Inner)
}
