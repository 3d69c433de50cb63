package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A peer joins a world of twelve that works all the time: only its own links
// are measured, the ring with it is installed within two seconds of the last
// measurement, and no operation is aborted.
func TestJoinCostsNoOperation(t *testing.T) {
	t.Parallel()
	const n = 12
	for seed := uint64(1); seed <= 5; seed++ {
		w := emptyWorld(seed, noBug)
		// Two groups, of which one is empty: all optimize after every accept round.
		w.plan = scenario{groups: 2, loops: 6, natives: 2, optimize: true}
		w.log.keep = true
		for range n {
			w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { w.spawn(0, true, 6) })
		}
		var complete, joined, installed time.Duration
		var before, after int // operations that failed
		measured := -1
		var watch func()
		watch = func() {
			switch {
			case complete == 0:
				if s := w.master.m.Snapshot(); len(s.Groups) == 1 && s.Groups[0].Members == n {
					complete = w.now
				}
			case joined == 0:
				// All have measured: the newcomer comes while they work.
				if i := w.last("probes: "); i < 0 || w.log.factAt[i] < complete {
					break
				}
				joined, before = w.now, w.collector.failures
				w.spawn(0, true, 2)
			case joined > 0:
				if i := w.last("probes: "); measured < 0 && w.log.factAt[i] > joined {
					measured = i
				}
				if i := w.last("round: connections established"); measured >= 0 && i > measured {
					installed, after = w.log.factAt[i], w.collector.failures
					return
				}
			}
			w.after(time.Millisecond, nil, watch)
		}
		w.after(50*time.Millisecond, nil, watch)
		require.Empty(t, w.run(), "seed %d", seed)
		require.Equal(t, before, after, "seed %d: operations failed", seed) // S1-20
		require.Positive(t, installed, "seed %d", seed)
		require.Less(t, installed-w.log.factAt[measured], 2*time.Second, "seed %d", seed)
		var links, rounds int
		_, err := fmt.Sscanf(w.log.facts[measured], "probes: %d links measured in %d rounds", &links, &rounds)
		require.NoError(t, err)
		require.LessOrEqual(t, links, 2*n, "seed %d: %s", seed, w.log.facts[measured]) // S1-15
	}
}

// last returns the position of the last fact with the prefix, -1 if there is none.
func (w *world) last(prefix string) int {
	for i, f := range slices.Backward(w.log.facts) {
		if strings.HasPrefix(f, prefix) {
			return i
		}
	}
	return -1
}
