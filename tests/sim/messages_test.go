package sim

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var messageSeeds = flag.Int("sim.messages", 600, "number of seeds of TestMessages, if -sim.seeds are as many")

// corresponding is a world of gopccl peers that send messages to each other.
func corresponding(seed uint64, bug mutation, n, loops int) *world {
	w := emptyWorld(seed, bug)
	w.plan = scenario{groups: 1, natives: 2, loops: loops, messages: true, apart: seed%3 == 0, remote: seed%6 == 0}
	w.eagerBytes = 1 << 20
	for range n {
		w.after(w.rng.between(0, 20*time.Millisecond), nil, func() { w.spawn(0, true, loops) })
	}
	return w
}

// plagued is such a world in which faults strike amid messages.
func plagued(seed uint64, bug mutation) *world {
	w := corresponding(seed, bug, 2+int(seed%4), 3)
	w.plan.others, w.plan.eager, w.plan.mends = seed%4 == 0, seed%7 == 0, seed%2 == 0
	for range w.rng.n(5) {
		k := w.someKind()
		if w.rng.chance(3) {
			k = cutPeers
		}
		w.faults = append(w.faults, fault{at: 80 + w.rng.n(600), kind: k, amid: true})
	}
	slices.SortFunc(w.faults, func(a, b fault) int { return a.at - b.at })
	return w
}

// severed is a world of few peers whose connections are cut all the time, and come back.
func severed(seed uint64, bug mutation) *world {
	w := corresponding(seed, bug, 2+int(seed%8/4), 5)
	w.plan.mends = true
	for range 20 {
		w.faults = append(w.faults, fault{at: 80 + w.rng.n(1000), kind: cutPeers, amid: true})
	}
	slices.SortFunc(w.faults, func(a, b fault) int { return a.at - b.at })
	return w
}

// renewed is a world of members that are far from each other, and let newcomers in all the
// time.
func renewed(seed uint64, bug mutation) *world {
	w := corresponding(seed, bug, 3, 8)
	w.plan.apart = true
	for range 6 {
		w.faults = append(w.faults, fault{at: 80 + w.rng.n(1000), kind: join, amid: true})
	}
	slices.SortFunc(w.faults, func(a, b fault) int { return a.at - b.at })
	return w
}

// messaging draws the world of a seed.
func messaging(seed uint64) *world {
	switch seed % 8 {
	case 3, 7:
		return severed(seed, noBug)
	case 5:
		return renewed(seed, noBug)
	}
	return plagued(seed, noBug)
}

// add counts what another run has seen.
func (b *mailbook) add(o *mailbook) {
	b.sent, b.whole, b.refused, b.strays, b.failed = b.sent+o.sent, b.whole+o.whole, b.refused+o.refused, b.strays+o.strays, b.failed+o.failed
	b.canceled, b.busy, b.anys = b.canceled+o.canceled, b.busy+o.busy, b.anys+o.anys
	for i, n := range o.amid {
		b.amid[i] += n
	}
}

// TestMessages runs many seeds of messages among faults. A failing one is replayed with
// -sim.seed=N -sim.trace.
func TestMessages(t *testing.T) {
	t.Parallel()
	if replays(t, func(seed uint64) *world { return messaging(seed) }, (*world).run) {
		return
	}
	n := min(*seeds, *messageSeeds)
	if raceEnabled {
		n = min(n, 100)
	}
	began, failed := time.Now(), 0
	var seen mailbook
	for seed := *first; seed < *first+uint64(n); seed++ {
		w := messaging(seed)
		if failure := w.run(); failure != "" {
			t.Errorf("seed %d: %s", seed, failure)
			if failed++; failed == 10 {
				t.FailNow()
			}
		}
		seen.add(&w.collector.mail)
	}
	t.Logf("%d seeds in %v: %d sent, %d whole (%d from any, %d strays), %d refused, %d canceled, %d failed, %d times busy, faults amid %v",
		n, time.Since(began), seen.sent, seen.whole, seen.anys, seen.strays, seen.refused, seen.canceled, seen.failed, seen.busy, seen.amid)
	if n >= 600 { // the seeds reach what they are for
		for _, c := range []int{seen.whole, seen.anys, seen.refused, seen.canceled, seen.failed, seen.busy} {
			require.Greater(t, c, n)
		}
		require.Positive(t, seen.strays)
		for k, c := range seen.amid {
			require.Positive(t, c, "fault %d never struck a message", k)
		}
	}
}

// TestBugsOfMessagesAreFound puts bugs in on purpose, one for each rule.
func TestBugsOfMessagesAreFound(t *testing.T) {
	t.Parallel()
	const within = 400
	for name, bug := range map[string]mutation{
		"offers that overtake each other":          offersSwapped,
		"offers that come twice":                   offersDoubled,
		"a message whose connection has ended":     halfDelivered,
		"tags that are not compared":               tagsForgotten,
		"sizes that differ for one end":            refusalUntold,
		"a receive given up in silence":            givingUpUntold,
		"a send given up in silence":               withdrawalUntold,
		"a failure in silence":                     failureUntold,
		"a message that is not whole":              partsForgotten,
		"the end of a connection from a member":    endUnheard,
		"the end of a connection to a member":      endUnsaid,
		"a connection in the place of another one": replacementUnheard,
		"words of the connection before":           staleHeard,
		"a member that has gone":                   leaverForgotten,
		"a round that ends nothing":                roundForgotten,
		"messages of the round before":             mailEpochForgotten,
		"messages of the next round":               aheadForgotten,
		"more messages than may be open":           openForgotten,
		"more bytes than may be ahead":             bytesForgotten,
		"last words that nobody waits for":         lastWordsForgotten,
		"a buffer given back too early":            releaseForgotten,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(within) {
				w := plagued(seed+1, bug)
				switch bug {
				case staleHeard, failureUntold, halfDelivered: // few cuts hit what is on its way
					w = severed(seed+1, bug)
				case mailEpochForgotten: // few rounds do
					w = renewed(seed+1, bug)
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

// TestMessagesBetweenHealthyMembers: nothing fails but what is given up, and what ends that
// differ in size are told.
func TestMessagesBetweenHealthyMembers(t *testing.T) {
	t.Parallel()
	n := uint64(200)
	if raceEnabled {
		n = 20
	}
	var seen mailbook
	for seed := uint64(1); seed <= n; seed++ {
		w := corresponding(seed, noBug, 2+int(seed%4), 3)
		w.collector.mail.healthy = true
		require.Empty(t, w.run(), "seed %d", seed)
		seen.add(&w.collector.mail)
	}
	t.Logf("%d seeds: %d sent, %d whole, %d refused, %d canceled, %d failed", n, seen.sent, seen.whole, seen.refused, seen.canceled, seen.failed)
	require.Greater(t, seen.whole, 10*int(n))
	require.Positive(t, seen.refused)
	require.Positive(t, seen.canceled)
}

// TestFaultsAtEveryStepOfMessages: faults come all along runs with messages, a death after
// every fourth event.
func TestFaultsAtEveryStepOfMessages(t *testing.T) {
	t.Parallel()
	for f := range numKinds {
		struck, failed := 0, 0
		for seed := uint64(7); seed <= 8; seed++ {
			whole := corresponding(seed, noBug, 3, 2)
			require.Empty(t, whole.run())
			stride := 12
			if f == kill {
				stride = 4
			}
			if raceEnabled {
				stride = 60
			}
			for at := 60 + int(f)%stride; at < whole.count; at += stride {
				w := corresponding(seed, noBug, 3, 2)
				w.plan.mends = at%2 == 0
				w.faults = []fault{{at: at, kind: f}}
				require.Empty(t, w.run(), "fault %d, seed %d, at event %d", f, seed, at)
				struck += w.collector.mail.amid[f]
				failed += w.collector.mail.failed
			}
		}
		t.Logf("fault %d: %d times amid messages, %d messages of one peer each failed", f, struck, failed)
		if !raceEnabled {
			require.Positive(t, struck, "fault %d", f)
		}
	}
}

// TestSameMessagesInTheSameRun: what becomes of messages is the function of the seed, too.
func TestSameMessagesInTheSameRun(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 30; seed++ {
		var lines [2][]string
		for i := range lines {
			w := plagued(seed, noBug)
			w.log.tracing = true
			require.Empty(t, w.run())
			lines[i] = w.log.lines
		}
		require.Equal(t, lines[0], lines[1], "seed %d", seed)
	}
}
