package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// death is the end of a process that has not said anything.
type death struct {
	at     time.Duration
	beside []*peer       // its neighbours
	away   time.Duration // how far these and it are from the master
}

// dies notes that p dies now, and who will notice.
func (w *world) dies(p *peer) {
	if !w.heirs.on || p.uuid == (wire.UUID{}) {
		return
	}
	if w.heirs.deaths == nil {
		w.heirs.deaths = map[wire.UUID]death{}
	}
	ring, d := p.m.View().Ring, death{at: w.now, away: p.line.away}
	for i, u := range ring {
		n := len(ring)
		if ring[(i+1)%n] == p.uuid || ring[(i+n-1)%n] == p.uuid {
			o := w.byUUID(u)
			d.beside, d.away = append(d.beside, o), max(d.away, o.line.away)
		}
	}
	w.heirs.deaths[p.uuid] = d
}

// buried checks how long the master has waited for one that is dead.
func (w *world) buried(f mfsm.Fact) {
	const soon = 20 * time.Millisecond // for what is on its way
	d, dead := w.heirs.deaths[f.Peer]
	if !dead || !strings.Contains(f.Text, "is gone: ") {
		return
	}
	delete(w.heirs.deaths, f.Peer)
	took := w.now - d.at
	w.heirs.waits = append(w.heirs.waits, took)
	if slices.ContainsFunc(d.beside, func(o *peer) bool { return !o.dead && !o.over }) && took > soon+d.away {
		w.failf("a peer that had died was waited for %v", took)
	}
}

// dyingWorld is a world of peers that resume, some of which die.
func dyingWorld(seed uint64, bug mutation) *world {
	w := mortalWorld(seed, bug)
	w.faults, w.heirs.aimed, w.plan.drain = nil, nil, false
	for range 1 + w.rng.n(2) {
		f := fault{at: 1 + w.rng.n(200*w.plan.loops), kind: kill}
		if w.rng.chance(2) {
			f.aim, f.nth = phases[w.rng.n(12)].id, 1+w.rng.n(4)
			w.heirs.aimed = append(w.heirs.aimed, f)
			continue
		}
		w.faults = append(w.faults, f)
	}
	slices.SortFunc(w.faults, func(a, b fault) int { return a.at - b.at })
	return w
}

// A peer that dies in whatever phase is dropped when its connections have ended: nobody waits
// for it as for one whose connection to the master alone has.
func TestPeersDie(t *testing.T) {
	t.Parallel()
	if replays(t, func(seed uint64) *world { return dyingWorld(seed, noBug) }, (*world).run) {
		return
	}
	n := uint64(3000)
	if raceEnabled {
		n = 200
	}
	var waits []time.Duration
	for seed := uint64(1); seed <= n; seed++ {
		w := dyingWorld(seed, noBug)
		if failure := w.run(); failure != "" {
			t.Errorf("seed %d: %s", seed, failure)
		}
		waits = append(waits, w.heirs.waits...)
	}
	slices.Sort(waits)
	t.Logf("%d seeds, %d deaths, waited for %v (median), %v (9 of 10), %v (99 of 100), %v at most", n, len(waits),
		waits[len(waits)/2], waits[len(waits)*9/10], waits[len(waits)*99/100], waits[len(waits)-1])
	require.Greater(t, len(waits), int(n)/2)

	for seed := uint64(1); seed <= 20; seed++ { // the word of neighbours is what does it
		if w := dyingWorld(seed, endsUnsaid); strings.Contains(w.run(), "was waited for") {
			return
		}
	}
	require.Fail(t, "silent neighbours cost nothing")
}
