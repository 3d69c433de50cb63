package sim

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	seeds      = flag.Int("sim.seeds", 8000, "number of seeds to run")
	first      = flag.Uint64("sim.first", 1, "the first seed")
	oneSeed    = flag.Uint64("sim.seed", 0, "run only this seed")
	threeSeeds = flag.Int("sim.three", 2000, "number of seeds of TestThreeMasters, if -sim.seeds are as many")
	trace      = flag.Bool("sim.trace", false, "print the trace of -sim.seed")
)

// replays runs the seed of -sim.seed alone, if there is one, in the world that begin makes,
// and shows its trace.
func replays(t *testing.T, begin func(seed uint64) *world, run func(*world) string) bool {
	t.Helper()
	if *oneSeed == 0 {
		return false
	}
	w := begin(*oneSeed)
	w.log.tracing = *trace
	failure := run(w)
	t.Log(strings.Join(w.log.lines, "\n"))
	require.Empty(t, failure)
	return true
}

// TestSimulation runs many seeds. A failing one is replayed with
// -sim.seed=N -sim.trace.
// See book for what must agree after every event.
func TestSimulation(t *testing.T) {
	t.Parallel()
	if replays(t, func(seed uint64) *world { return newWorld(seed, noBug) }, (*world).run) {
		return
	}
	n := *seeds
	if raceEnabled { // it costs ten times the time and finds nothing: there are no goroutines
		n = min(n, 2000)
	}
	began := time.Now()
	failed := 0
	var seen struct {
		struck                       uint
		events                       int
		successes, failures, fetches int
		switches, ahead              int
		limited, held                int
		tornAgain, reuses            int
		meshes                       int
		directs, directFailures      int
		others                       tally
	}
	for seed := *first; seed < *first+uint64(n); seed++ {
		w := newWorld(seed, noBug)
		if failure := w.run(); failure != "" { // S1-36, S2-12, S2-14, S2-21
			t.Errorf("seed %d: %s", seed, failure)
			if failed++; failed == 10 {
				t.FailNow()
			}
		}
		seen.events += w.count
		seen.struck |= w.struck
		seen.successes += w.collector.successes
		seen.failures += w.collector.failures
		seen.fetches += w.collector.fetches
		seen.switches += w.collector.switches
		seen.ahead += w.collector.ahead
		seen.limited += w.collector.limited
		seen.held += w.collector.held
		seen.tornAgain += w.collector.tornAgain
		seen.reuses += w.collector.reuses
		seen.meshes += w.collector.meshes
		seen.directs += w.collector.directs
		seen.directFailures += w.collector.directFailures
		seen.others.add(&w.collector.others)
	}
	t.Logf("%d seeds in %v: %+v", n, time.Since(began), seen)
	if n >= 1000 { // the seeds reach what they are for
		require.Equal(t, allKinds(), seen.struck, "some kind of fault was never injected")
		require.Greater(t, seen.successes, n)
		require.Greater(t, seen.failures, n/10)
		require.Greater(t, seen.fetches, n/10)
		require.Positive(t, seen.switches)
		require.Greater(t, seen.ahead, n/4)
		require.Greater(t, seen.limited, n/4)
		require.Greater(t, seen.held, n/10)
		require.Greater(t, seen.tornAgain, n/100)
		require.Greater(t, seen.reuses, n/10)
		require.Greater(t, seen.meshes, n/10)
		require.Greater(t, seen.others.gathered, n/4)
		require.Greater(t, seen.directs, n)
		require.Greater(t, seen.directFailures, n/20)
	}
	if n >= 10000 {
		for _, k := range otherKinds() {
			for f, times := range seen.others.amid[k] {
				require.Positive(t, times, "fault %d never struck a %v", f, k)
			}
		}
		for d := kinds; d < numDifferences; d++ {
			require.Positive(t, seen.others.mismatches[d], "different %s were never noticed", differenceNames[d])
		}
	}
}

// TestSameSeedSameRun: a run is the function of its seed.
func TestSameSeedSameRun(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 50; seed++ {
		var lines [2][]string
		for i := range lines {
			w := newWorld(seed, noBug)
			w.log.tracing = true
			require.Empty(t, w.run())
			lines[i] = w.log.lines
		}
		require.Equal(t, lines[0], lines[1]) // S1-09
	}
}

// TestBugsAreFound puts bugs in on purpose: the simulation must find them soon.
func TestBugsAreFound(t *testing.T) {
	t.Parallel()
	const within = 400
	for name, bug := range map[string]mutation{
		"abort not forwarded":               abortForgotten,
		"votes not re-checked on a leave":   voteForgotten,
		"buffer not restored":               restoreSkipped,
		"verdict differs at one member":     verdictFlipped,
		"a sum that misses one part":        chunkLost,
		"fetched state without its content": fetchSkipped,
		"a torn state that can be elected":  tornVotes,
		"leftovers of an earlier round":     epochForgotten,
		"leftovers of the first operation":  spoilForgotten,
		"a ring switched for all but one":   switchForgotten,
		"a mesh taken from the launch":      meshOfLaunch,
		"news of a mesh behind a commence":  meshNewsLate,
		"members counted by uuid":           membersByUUID,
		"a choice taken at the launch":      choiceOfLaunch,
		"a choice taken before its packet":  choiceAhead,
		"a plan that some do not take":      planForgotten,
		"no bound before the commence":      boundForgotten,
		"an epoch behind the commence":      numberUnused,
		"what was held back and stays":      heldForgotten,
		"any number without one":            anyNumber,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= within; seed++ {
				w := newWorld(seed, bug)
				switch bug {
				case switchForgotten:
					w = switching(seed, bug)
				case spoilForgotten:
					w = reusing(seed, bug)
				case tornVotes:
					w = tearing(seed, bug)
				}
				if failure := w.run(); failure != "" {
					t.Logf("seed %d: %s", seed, failure)
					return
				}
			}
			t.Fatalf("not found within %d seeds", within)
		})
	}
}

// TestRingsSwitchBetweenCollectives: peers of one kind whose rings change all
// the time without a round. Nothing fails because of it; with faults, what must
// agree agrees.
func TestRingsSwitchBetweenCollectives(t *testing.T) {
	t.Parallel()
	n := uint64(2000)
	if raceEnabled {
		n = 100
	}
	switches, failures, faulty := 0, 0, 0
	for seed := uint64(1); seed <= n; seed++ {
		w := switching(seed, noBug)
		faults := seed%2 == 1
		if faults {
			for range 1 + w.rng.n(4) {
				w.faults = append(w.faults, fault{at: 1 + w.rng.n(1500), kind: w.someKind()})
			}
			slices.SortFunc(w.faults, func(a, b fault) int { return a.at - b.at })
		}
		require.Empty(t, w.run(), "seed %d", seed)
		switches += w.collector.switches
		if faults {
			faulty += w.collector.failures
		} else {
			failures += w.unprovoked
		}
	}
	t.Logf("%d seeds: %d switches of one peer each, %d operations failed without a fault, %d with", n, switches, failures, faulty)
	require.Zero(t, failures, "a switch costs no operation")
	require.Positive(t, faulty)
	require.Greater(t, switches, int(n))

	// The sentence above would notice a switch that does cost something.
	failures = 0
	for seed := uint64(2); seed <= min(n, 400); seed += 2 {
		w := switching(seed, releasedEarly)
		require.Empty(t, w.run())
		failures += w.unprovoked
	}
	require.Positive(t, failures)
}

// switching is a world of gopccl peers for which better rings are found again
// and again.
func switching(seed uint64, bug mutation) *world {
	w := emptyWorld(seed, bug)
	w.plan = scenario{groups: 1, natives: 2, loops: 9, eager: true, overlap: w.rng.chance(2), apart: seed%4 > 1, remote: seed%4 == 2, forward: seed%3 != 1}
	for range 3 + w.rng.n(4) {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { w.spawn(0, true, 9) })
	}
	return w
}

// reusing is a world of gopccl peers that give operations up and use their tags
// again at once.
func reusing(seed uint64, bug mutation) *world {
	w := emptyWorld(seed, bug)
	w.plan = scenario{groups: 1, natives: 2, loops: 4, eager: w.rng.chance(2), reuse: true, apart: seed%2 == 0, remote: seed%4 == 0, forward: seed%3 != 1}
	for range 2 + w.rng.n(4) {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { w.spawn(0, true, 4) })
	}
	return w
}

// tearing is a world of gopccl peers whose holders die while others fetch from them.
func tearing(seed uint64, bug mutation) *world {
	w := emptyWorld(seed, bug)
	w.plan = scenario{groups: 1, natives: 2, loops: 3, tear: true, forward: seed%2 == 0}
	for range 2 + w.rng.n(3) {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { w.spawn(0, true, 3) })
	}
	return w
}

// TestHoldersDie: a state that is half overwritten never becomes everybody's.
func TestHoldersDie(t *testing.T) {
	t.Parallel()
	n := uint64(500)
	if raceEnabled {
		n = 50
	}
	again := 0
	for seed := uint64(1); seed <= n; seed++ {
		w := tearing(seed, noBug)
		require.Empty(t, w.run(), "seed %d", seed)
		again += w.collector.tornAgain
	}
	t.Logf("%d seeds: %d peers came back with a torn state", n, again)
	require.Greater(t, again, int(n/10))
}

// TestTagsAreUsedAgainBeforeTheRound: rings change meanwhile, and peers differ in
// what they begin eagerly. Every result is that of the operation it is taken for.
func TestTagsAreUsedAgainBeforeTheRound(t *testing.T) {
	t.Parallel()
	n := uint64(500)
	if raceEnabled {
		n = 50
	}
	reuses, switches := 0, 0
	for seed := uint64(1); seed <= n; seed++ {
		w := reusing(seed, noBug)
		require.Empty(t, w.run(), "seed %d", seed)
		reuses += w.collector.reuses
		switches += w.collector.switches
	}
	t.Logf("%d seeds: %d tags used again, %d switches of one peer each", n, reuses, switches)
	require.Greater(t, reuses, int(n))
	require.Positive(t, switches)
}

// quiet is a world of n peers in one group that start together, without faults.
func quiet(seed uint64, n int, native bool, loops int) *world {
	w := emptyWorld(seed, noBug)
	w.plan = scenario{groups: 1, loops: loops}
	for range n {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { w.spawn(0, native, loops) })
	}
	return w
}

// TestKillAtEveryStep kills a peer after every single event of a run, in every
// phase of every call, by each way to go.
// All survivors get the same verdict, the application retries.
func TestKillAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, native := range []bool{true, false} {
		for _, n := range []int{2, 3, 4} {
			for _, k := range []kind{kill, powerLoss, cutMaster, closeNow} {
				if k == powerLoss && !native {
					continue
				}
				t.Run(fmt.Sprintf("native %v/%d peers/kind %d", native, n, k), func(t *testing.T) {
					whole := quiet(7, n, native, 3)
					require.Empty(t, whole.run())
					failures, stride := 0, 1
					if raceEnabled {
						stride = 5
					}
					for at := 1; at < whole.count; at += stride {
						w := quiet(7, n, native, 3)
						w.faults = []fault{{at: at, kind: k}}
						require.Empty(t, w.run(), "at event %d", at) // S2-14
						failures += w.collector.failures
					}
					require.Positive(t, failures)
				})
			}
		}
	}
}

// TestTwoFaults strikes twice, the second time while the first is dealt with.
func TestTwoFaults(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 3; seed++ {
		whole := quiet(seed, 4, true, 3)
		require.Empty(t, whole.run())
		require.Greater(t, whole.count, 200)
		stride := 3
		if raceEnabled {
			stride = 15
		}
		for at := 5; at < whole.count; at += stride {
			for i, gap := range []int{1, 7, 20} {
				w := quiet(seed, 4, true, 3)
				w.faults = []fault{{at: at, kind: kill}, {at: at + gap, kind: []kind{kill, cutPeers, join}[(at+i)%3]}}
				require.Empty(t, w.run(), "seed %d, at event %d and %d", seed, at, at+gap)
			}
		}
	}
}

// A silent voter delays all, is named, and is dropped at the deadline.
func TestSilentVoterIsNamedAndDropped(t *testing.T) {
	t.Parallel()
	w := emptyWorld(11, noBug)
	w.plan = scenario{groups: 1, loops: 3}
	w.log.keep, w.excused = true, true
	for i := range 3 {
		w.after(time.Duration(i)*time.Millisecond, nil, func() {
			w.spawn(0, true, 3)
			w.peers[i].trainer.mute = i == 2
		})
	}
	require.Empty(t, w.run())
	mute := w.peers[2]
	named, dropped := "", ""
	for _, f := range w.log.facts {
		if strings.HasPrefix(f, "waiting-for: ") {
			named = f
		}
		if strings.HasPrefix(f, "dropped: ") {
			dropped = f
		}
	}
	require.Contains(t, named, mute.uuid.Short()) // S1-37
	require.Contains(t, dropped, mute.uuid.Short())
	require.True(t, mute.over)
	for _, p := range w.peers[:2] {
		require.Zero(t, p.trainer.loops, "peer %d did its work", p.id)
	}
	require.Greater(t, w.now, voteBound)
	require.Positive(t, w.collector.successes)
}

// A failed collective of one group does not stop the other one.
func TestGroupsRepairByThemselves(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 100; seed++ {
		w := emptyWorld(seed, noBug)
		w.plan = scenario{groups: 2, loops: 3, natives: 2}
		for i := range 6 {
			w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { w.spawn(uint32(i%2), true, 3) })
		}
		w.faults = []fault{{at: 150 + int(seed)*5, kind: kill}}
		require.Empty(t, w.run(), "seed %d", seed)
		require.Less(t, w.now, silence, "seed %d: somebody was waited for", seed)
	}
}
