package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// newcomersFirst are worlds whose master keeps nothing and dies, and where a newcomer is at the
// next one before any member of the run: it begins a run of its own there.
type newcomersFirst struct {
	on    bool
	begun int // runs of their own
	gave  int // ... that gave way
}

// firstWorld is a world in which a newcomer is the first at a master that knows nothing.
func firstWorld(seed uint64) *world {
	w := mortalWorld(2*seed+1, noBug) // nothing says who leads
	w.plan.drain, w.heirs.aimed, w.heirs.first.on = false, nil, true
	w.faults = []fault{{at: 1 + w.rng.n(150*w.plan.loops), kind: killMaster}}
	if w.rng.chance(3) {
		w.faults = append(w.faults, fault{at: w.faults[0].at + w.rng.n(150), kind: killMaster})
	}
	return w
}

// comesFirst has a newcomer be there when a master starts.
func (w *world) comesFirst() {
	if w.heirs.first.on && w.heirs.life == 1 {
		w.heirs.first.begun++
		w.after(w.rng.between(0, 2*time.Millisecond), nil, func() {
			if !w.master.dead {
				w.spawn(0, true, w.plan.loops)
			}
		})
	}
}

// startsOver reports whether p, which has done nothing with others yet, is told to begin again
// as a newcomer.
func (w *world) startsOver(p *peer, r wire.M2CSessionRegistrationResponse) bool {
	if p.met {
		return false
	}
	w.heirs.first.gave++
	p.memory.sync = w.collector.newSync() // what it ends, it ends alone
	p.uuid = r.UUID
	return true
}

// givesWay reports whether a peer is closed because it has begun a run beside one that goes on.
func (w *world) givesWay(e mfsm.Close) bool {
	return w.heirs.first.on && strings.Contains(e.Reason, "earlier run")
}

// A newcomer that is the first at a master without a registry waits when the members of the run
// come, and no call fails: neither theirs, nor its own.
func TestNewcomersComeFirst(t *testing.T) {
	t.Parallel()
	if replays(t, func(seed uint64) *world { return firstWorld(seed) }, (*world).run) {
		return
	}
	n := uint64(3000)
	if raceEnabled {
		n = 200
	}
	begun, gave, successes := 0, 0, 0
	for seed := *first; seed < *first+n; seed++ {
		w := firstWorld(seed)
		failure := w.run()
		if failure == "" && w.unprovoked > 0 && !w.provoked() {
			failure = "operations have failed"
		}
		if failure != "" {
			t.Errorf("seed %d: %s", seed, failure)
		}
		begun, gave, successes = begun+w.heirs.first.begun, gave+w.heirs.first.gave, successes+w.collector.successes
	}
	t.Logf("%d seeds, %d masters began with a newcomer, %d newcomers gave way, %d operations", n, begun, gave, successes)
	require.Greater(t, gave, int(n)/4)
}
