package quorum

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	seeds = flag.Uint64("quorum.seeds", 200, "number of seeds to run")
	first = flag.Uint64("quorum.seed", 0, "first seed")
)

// Masters lead one at a time and term, keep what was committed and confirm nothing that
// is over, whatever happens to them and to the network. A seed that fails is run alone
// with -quorum.seed N -quorum.seeds 1.
func TestSimulation(t *testing.T) {
	var sum world
	for seed := *first; seed < *first+*seeds; seed++ {
		w := newWorld(seed, 3+2*int(seed%2), none)
		w.live(8000)
		for _, wrong := range w.wrong {
			t.Errorf("seed %d: %s", seed, wrong)
		}
		if t.Failed() {
			return
		}
		sum.elections += w.elections
		sum.commits += w.commits
		sum.confirms += w.confirms
		sum.crashes += w.crashes
	}
	t.Logf("%d seeds: %d elections, %d commits, %d confirmations, %d crashes", *seeds, sum.elections, sum.commits, sum.confirms, sum.crashes)
	if n := int(*seeds); n >= 100 { // the seeds reach what they are for
		require.Greater(t, sum.elections, 2*n)
		require.Greater(t, sum.commits, 10*n)
		require.Greater(t, sum.confirms, 10*n)
		require.Greater(t, sum.crashes, 2*n)
	}
}

// Mistakes are seen.
func TestPlanted(t *testing.T) {
	for name, bug := range map[string]planted{
		"confirms locally": confirmsLocally, "commits locally": commitsLocally,
		"sends first": sendsFirst, "keeps nothing": keepsNothing,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(500) {
				w := newWorld(seed, 3, bug)
				w.live(8000)
				if len(w.wrong) > 0 {
					t.Logf("seed %d: %s", seed, w.wrong[0])
					return
				}
			}
			t.Fatal("no seed has shown it")
		})
	}
}
