package sim

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	seeds   = flag.Int("sim.seeds", 20000, "number of seeds to run")
	oneSeed = flag.Uint64("sim.seed", 0, "run only this seed")
	trace   = flag.Bool("sim.trace", false, "print the trace of -sim.seed")
)

// TestSimulation runs many seeds.
func TestSimulation(t *testing.T) {
	if *oneSeed != 0 {
		w := newWorld(*oneSeed, noBug)
		w.tracing = *trace
		failure := w.run()
		t.Log(strings.Join(w.lines, "\n"))
		require.Empty(t, failure)
		return
	}
	began := time.Now()
	failed, events := 0, 0
	for seed := uint64(1); seed <= uint64(*seeds); seed++ {
		w := newWorld(seed, noBug)
		if failure := w.run(); failure != "" {
			t.Errorf("seed %d: %s", seed, failure)
			if failed++; failed == 10 {
				t.FailNow()
			}
		}
		events += w.count
	}
	t.Logf("%d seeds, %d events, %v", *seeds, events, time.Since(began))
}
