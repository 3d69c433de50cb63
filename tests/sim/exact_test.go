package sim

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var only = flag.String("sim.strike", "", "print the trace of one death of TestMasterDiesAtEveryPacket, as its failure names it")

// boundary is a step of the master and what is on its way behind that. A master that dies
// there dies in one of as many ways as there are combinations of what still arrives.
type boundary struct {
	step    int
	flying  []int // packets to each peer
	writing int   // registries that it wants written: 0 or 1
}

// strike is one of these ways: as many packets still reach each peer, and the registry
// is still written.
type strike boundary

func (s strike) String() string { return fmt.Sprintf("%d,%v,%d", s.step, s.flying, s.writing) }

// ways returns all of them.
func (b boundary) ways() (list []strike) {
	list = []strike{{step: b.step}}
	for _, n := range b.flying {
		var more []strike
		for _, s := range list {
			for k := range n + 1 {
				more = append(more, strike{step: b.step, flying: append(slices.Clone(s.flying), k)})
			}
		}
		list = more
	}
	for _, s := range slices.Clone(list[:len(list)*b.writing]) {
		s.writing = 1
		list = append(list, s)
	}
	return list
}

// exact has the first master die behind one step, or notes all steps.
type exact struct {
	steps  int
	strike *strike
	seen   []boundary
	died   func() // nil: nothing else happens then
	both   bool   // a peer dies with it, in turn each of them
}

// victim returns the peer that dies with the master behind a step, nil: none.
func (x *exact) victim(w *world, step int) *peer {
	if p := w.peers[step%len(w.peers)]; x.both && !p.dead && !p.over {
		return p
	}
	return nil
}

// exactly is called behind a step of m.
func (m *master) exactly() {
	w, x := m.w, m.w.heirs.exact
	if x == nil {
		return
	}
	if x.steps++; w.heirs.kills > 0 || w.strangers() {
		return
	}
	if x.strike == nil {
		b := boundary{step: x.steps, flying: make([]int, len(w.peers))}
		dies := x.victim(w, x.steps)
		for i, p := range w.peers {
			if p.line.to == m && !p.line.cut && !p.dead && p != dies {
				b.flying[i] = p.line.flying
			}
		}
		if m.writing != nil {
			b.writing = 1
		}
		x.seen = append(x.seen, b)
		return
	}
	if x.steps != x.strike.step {
		return
	}
	w.catch(killMaster)
	w.tracef("FAULT: the master is killed, and of what is on its way %v arrives", x.strike)
	w.heirs.kills++
	w.heirs.killed = w.now + 2*time.Millisecond
	m.dead = true
	if x.strike.writing > 0 {
		w.heirs.registry = *m.writing
	}
	down := w.rng.between(0, 3*time.Millisecond)
	if p := x.victim(w, x.steps); p != nil {
		w.diesWith(p)
		down += 6 * time.Millisecond // connections have ended when it is missed
	}
	for i, p := range w.peers {
		if p.line.to != m || p.line.cut || p.dead {
			continue
		}
		p.line.final = true
		if p.line.grant = x.strike.flying[i]; p.line.grant == 0 {
			p.cutOff()
		}
	}
	w.after(down, nil, w.startMaster)
	if x.died != nil {
		x.died()
	}
}

// arrived counts a packet of a master. The last one of a dead master is followed by the
// end of the connection.
func (p *peer) arrived() {
	p.line.flying--
	if p.line.final && !p.line.cut {
		if p.line.grant--; p.line.grant == 0 {
			p.cutOff()
		}
	}
}

// cutOff ends the connection to the master.
func (p *peer) cutOff() {
	client := p.line.client
	p.line.cut = true
	p.w.after(0, p, func() { p.lineEnded(client, errors.New("connection reset")) })
}

// scenes are the runs of three peers in which the master dies at every packet.
var scenes = []struct {
	name string
	plan scenario
	late bool // the third peer joins while the others work
	dies bool // ... when the master dies
	both bool // a peer dies with it
}{
	{"all-reduces and synchronisations", scenario{loops: 3}, false, false, false},
	{"a peer joins", scenario{loops: 3, overlap: true}, true, false, false},
	{"a peer joins after the death", scenario{loops: 3}, true, true, false},
	{"the topology is updated", scenario{loops: 3, optimize: true, eager: true}, false, false, false},
	{"peers leave", scenario{loops: 3, drain: true}, false, false, false},
	{"barriers and meshes", scenario{loops: 2, others: true, apart: true}, false, false, false},
	{"a peer dies, too", scenario{loops: 2, others: true}, false, false, true},
}

// found says where bugs are, which few deaths show: the scene, and the seed.
var found = map[mutation][2]uint64{answersForgotten: {1, 3}, switchedLate: {4, 1}, verdictsForgotten: {6, 6}}

// sceneOf is a world of a scene, in which the first master dies by s, if it is not nil.
func sceneOf(scene int, seed uint64, decides bool, bug mutation, s *strike) *world {
	w := emptyWorld(seed, bug)
	w.heirs = newHeirs(decides)
	w.heirs.exact = &exact{strike: s, both: scenes[scene].both}
	w.plan = scenes[scene].plan
	w.plan.groups, w.plan.natives = 1, 2
	w.master = w.newMaster(w.masterConfig(0))
	join := func() { w.served(func() { w.spawn(0, true, w.plan.loops+w.rng.n(2)) }) }
	if scenes[scene].dies {
		w.heirs.exact.died = join
	}
	for i := range 3 {
		if i == 2 && scenes[scene].dies {
			break
		}
		at := w.rng.between(0, 5*time.Millisecond)
		if i == 2 && scenes[scene].late {
			at += w.rng.between(20*time.Millisecond, 60*time.Millisecond)
		}
		w.after(at, nil, join)
	}
	return w
}

// outcome runs a scene in which the master dies, and returns what is wrong with it.
func (w *world) outcome() string {
	failure := w.run()
	if failure == "" && w.unprovoked > 0 && !w.provoked() {
		failure = fmt.Sprintf("%d operations have failed", w.unprovoked)
	}
	return failure
}

// everyDeath has the master die behind every step of it in a scene, in every way. It returns
// how many steps and deaths there were; each gets what is wrong with one, and returns
// whether to go on.
func everyDeath(t *testing.T, scene int, seed uint64, decides bool, bug mutation, each func(w *world, name, failure string) bool) (steps, deaths int) {
	t.Helper()
	w := sceneOf(scene, seed, decides, bug, nil)
	require.Empty(t, w.run(), "%s, seed %d", scenes[scene].name, seed)
	boundaries := w.heirs.exact.seen
	for _, b := range boundaries {
		for _, s := range b.ways() {
			w := sceneOf(scene, seed, decides, bug, &s)
			name := fmt.Sprintf("%d,%d,%v,%v", scene, seed, decides, s)
			w.log.tracing = *only == name
			deaths++
			if !each(w, name, w.outcome()) {
				return len(boundaries), deaths
			}
		}
	}
	return len(boundaries), deaths
}

// The master dies behind every single step of it, in every way in which what is on its way
// to three peers can still arrive at some of them: none is left out. No call fails.
func TestMasterDiesAtEveryPacket(t *testing.T) {
	t.Parallel()
	table, all := map[cell]int{}, 0
	for i, scene := range scenes {
		for n := range 2 * uint64(max(1, *seeds/20000)) {
			seed, decides := *first+n/2, n%2 == 0
			steps, deaths := everyDeath(t, i, seed, decides, noBug, func(w *world, name, failure string) bool {
				if failure != "" {
					t.Errorf("-sim.strike '%s': %s: %s\n%s", name, scene.name, failure, strings.Join(w.log.lines, "\n"))
				}
				w.tally(table)
				return true
			})
			t.Logf("%s, seed %d: %d steps of the master, %d deaths", scene.name, seed, steps, deaths)
			all += deaths
		}
	}
	require.Greater(t, all, 5000)
	for _, p := range phases {
		for _, share := range []string{"none", "some", "all"} {
			require.Positive(t, table[cell{p.id, share, killMaster}], "%s, heard by %s", p.name, share)
		}
	}
}

// Bugs are found at some packet. That peers forget verdicts shows where a peer dies, too: where
// nobody but the master does, the next one comes to the same verdict again.
func TestBugsAreFoundAtEveryPacket(t *testing.T) {
	t.Parallel()
	for bug, name := range map[mutation]string{
		numbersForgotten: "numbers", verdictsForgotten: "verdicts", answersForgotten: "answers",
		electionsForgotten: "elections", roundsForgotten: "rounds", endsForgotten: "ends",
		switchedLate: "switches", oldVerdicts: "newcomers",
	} {
		t.Run(name, func(t *testing.T) {
			scene, seed := 0, uint64(1)
			if at, known := found[bug]; known {
				scene, seed = int(at[0]), at[1]
			}
			for n := range uint64(16) { // the certificates of a run in TLS make others of them
				was := ""
				_, deaths := everyDeath(t, scene, seed+n/2, n%2 == 0, bug, func(_ *world, name, failure string) bool {
					was = name + ": " + failure
					return failure == ""
				})
				if !strings.HasSuffix(was, ": ") {
					t.Log(was)
					return
				}
				t.Logf("not among %d deaths", deaths)
			}
			t.Fatal("not found")
		})
	}
}
