package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/plan"
)

// amidWait is for how many events a fault waits for a collective that it is to strike.
const amidWait = 300

// amid reports whether a collective other than an all-reduce, or a message, is under way.
func (w *world) amid() bool {
	for _, p := range w.peers {
		for _, o := range p.ops {
			if o.job != nil && !o.finished && !p.dead {
				return true
			}
		}
		if p.corresponds() {
			return true
		}
	}
	return false
}

// noteAmid counts a fault for the kinds that are under way.
func (w *world) noteAmid(k kind) {
	if k >= numKinds {
		return
	}
	if slices.ContainsFunc(w.peers, (*peer).corresponds) {
		w.collector.mail.amid[k]++
	}
	hit := 0
	for _, p := range w.peers {
		for _, o := range p.ops {
			if o.job != nil && !o.finished && !p.dead && hit>>o.vote.Kind&1 == 0 {
				hit |= 1 << o.vote.Kind
				w.collector.others.amid[o.vote.Kind][k]++
			}
		}
	}
}

// collecting is a world of gopccl peers that call collectives of one kind.
func collecting(seed uint64, bug mutation, k plan.Kind, n, loops int) *world {
	w := emptyWorld(seed, bug)
	w.plan = scenario{groups: 1, natives: 2, loops: loops, others: true, kind: k}
	for range n {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { w.spawn(0, true, loops) })
	}
	return w
}

// otherKinds are the collectives other than all-reduce.
func otherKinds() (list []plan.Kind) {
	for k := plan.AllGather; k < plan.NumKinds; k++ {
		list = append(list, k)
	}
	return list
}

// TestCollectives: nothing fails but what is called with different arguments, and that
// with the reason, on all members.
func TestCollectives(t *testing.T) {
	t.Parallel()
	n := uint64(120)
	if raceEnabled {
		n = 6
	}
	for _, k := range otherKinds() {
		var differ [numDifferences]int
		gathered := 0
		for seed := uint64(1); seed <= n; seed++ {
			w := collecting(seed, noBug, k, 2+int(seed%5), 5)
			w.plan.alone, w.plan.eager = seed%3 == 0, seed%2 == 0
			require.Empty(t, w.run(), "%v, seed %d", k, seed)
			gathered += w.collector.others.gathered
			for i, c := range w.collector.others.mismatches {
				differ[i] += c
			}
		}
		t.Logf("%v: %d of one peer each, mismatches by difference %v", k, gathered, differ)
		require.Greater(t, gathered, int(n))
		for d := kinds; d < numDifferences && !raceEnabled && k != plan.Barrier; d++ {
			if d.fits(k, false, 3) || d.fits(k, vary(k), 3) {
				require.Positive(t, differ[d], "%v with different %s", k, differenceNames[d])
			}
		}
	}
}

// TestFaultsAtEveryStepOfACollective: faults come all along runs of each kind, a death
// after every fourth event.
func TestFaultsAtEveryStepOfACollective(t *testing.T) {
	t.Parallel()
	for _, k := range otherKinds() {
		t.Run(k.String(), func(t *testing.T) {
			struck, failed, gathered := map[kind]int{}, 0, 0
			for _, f := range []kind{kill, powerLoss, cutMaster, cutPeers, block, stop, join, cancel, closeNow} {
				for seed := uint64(7); seed <= 8; seed++ { // with and without eager start
					whole := collecting(seed, noBug, k, 4, 2)
					whole.plan.agree = true
					require.Empty(t, whole.run())
					stride := 16
					if f == kill {
						stride = 4
					}
					if raceEnabled {
						stride = 60
					}
					for at := 60 + int(f)%stride; at < whole.count; at += stride {
						w := collecting(seed, noBug, k, 4, 2)
						w.plan.agree = true
						w.faults = []fault{{at: at, kind: f}}
						require.Empty(t, w.run(), "fault %d, seed %d, at event %d", f, seed, at)
						struck[f] += w.collector.others.amid[k][f]
						failed += w.collector.others.broken
						gathered += w.collector.others.gathered
					}
				}
				if !raceEnabled {
					require.Positive(t, struck[f], "fault %d", f)
				}
			}
			t.Logf("faults amid it %v; %d of one peer each failed, %d did not", fmt.Sprint(struck), failed, gathered)
			require.Positive(t, failed)
			require.Positive(t, gathered)
		})
	}
}

// troubled is a world of collectives of every kind, in which faults strike amid them.
func troubled(seed uint64, bug mutation) *world {
	w := collecting(seed, bug, plan.AllReduce, 2+int(seed%4), 4)
	w.plan.alone = seed%3 == 0
	for range w.rng.n(4) {
		w.faults = append(w.faults, fault{at: 80 + w.rng.n(300), kind: w.someKind(), amid: true})
	}
	slices.SortFunc(w.faults, func(a, b fault) int { return a.at - b.at })
	return w
}

// TestBugsOfCollectivesAreFound puts bugs in on purpose.
func TestBugsOfCollectivesAreFound(t *testing.T) {
	t.Parallel()
	const within = 400
	for seed := range uint64(within) {
		require.Empty(t, troubled(seed+1, noBug).run(), "seed %d", seed+1)
	}
	for name, bug := range map[string]mutation{
		"blocks in the order of the ring":  blocksByRing,
		"roots that are not compared":      rootUnsaid,
		"lanes that are not compared":      totalsUnchecked,
		"an input that is not restored":    inPlaceForgotten,
		"an output that is not preserved":  outputForgotten,
		"blocks that are not compared":     extentForgotten,
		"a mismatch that is not told":      mismatchUntold,
		"a misfit that looks like a loss":  misfitUntyped,
		"a loss that nobody notices":       lossUnseen,
		"an abort that nobody hears":       abortUnheard,
		"early data without its sender":    senderForgotten,
		"an abort that is not forwarded":   abortForgotten,
		"a verdict that differs":           verdictFlipped,
		"a mesh taken from the launch":     meshOfLaunch,
		"news of a mesh behind a commence": meshNewsLate,
		"members counted by uuid":          membersByUUID,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(within) {
				w := troubled(seed+1, bug)
				switch bug {
				case lossUnseen: // few cuts hit what is on its way
					w = collecting(8, bug, plan.AllToAll, 4, 2)
					w.faults = []fault{{at: 80 + int(seed), kind: cutPeers}}
				case extentForgotten: // few lists of counts have the same sum
					w = collecting(seed+1, bug, plan.Gather, 3+int(seed%3), 6)
					w.plan.alone = true
				}
				if failure := w.run(); failure != "" {
					t.Logf("seed %d: %s", seed+1, failure)
					return
				}
			}
			t.Fatalf("not found within %d seeds", within)
		})
	}
}
