package fsm

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// made makes the plans that were asked for, of which there is one at a time.
func (w *world) made() {
	w.t.Helper()
	require.Len(w.t, w.asked, 1)
	w.step(w.makes())
}

// makes takes the oldest plans that were asked for, and returns them made.
func (w *world) makes() PlansMade {
	w.t.Helper()
	require.NotEmpty(w.t, w.asked)
	e := w.asked[0]
	w.asked = w.asked[1:]
	return PlansMade{Job: e.Job, Direct: e.Basis.Make(nil)}
}

// beside builds a world of n members that know all plans, with rates that differ. Those of so
// many are made in the step.
func beside(t testing.TB, n, inStep int) (*world, []ClientID) {
	w := newWorld(t, Config{Switch: true, PlannedInStep: inStep})
	var cs []ClientID
	for range n {
		c := w.connectAt("127.0.0.1:4000")
		w.send(c, wire.C2MRequestSessionRegistration{P2PPort: 1, Ext: wire.Ext{Native: true, Switch: true, Early: wire.Early{Eager: true}, Collectives: 1, Plans: wire.PlansVersion}})
		want[wire.M2CSessionRegistrationResponse](w, c)
		if cs = append(cs, c); len(cs) == 1 {
			w.round(true)
		}
	}
	w.send(cs[0], acceptVote)
	w.round(true)
	w.facts = nil
	w.differ()
	return w, cs
}

// differ says what each member sends: large all-reduces have a plan for it.
func (w *world) differ() {
	w.waysGive(w.m.groups[0], func(from, _ int) float64 { return float64(20 + 100*from) })
}

// Plans of a large group are made beside the machine. Collectives, and what else the members do,
// wait for nothing meanwhile, and are not offered anything. What comes of it is what would have
// come in the step.
func TestPlansAreMadeBeside(t *testing.T) {
	w, cs := beside(t, 4, 0)
	w.meshed(cs, 40*time.Millisecond)
	require.Empty(t, w.asked)
	at := w.switched(cs)

	w, cs = beside(t, 4, 3)
	w.meshed(cs, 40*time.Millisecond)
	require.Len(t, w.asked, 1)
	require.Zero(t, w.asked[0].Group)
	for range 2 {
		w.reduced(cs, 1<<19, time.Second)
		w.quiet(cs...)
	}
	require.Len(t, w.asked, 1, "nobody asks twice")
	w.made()
	require.Equal(t, at, w.switched(cs))
	w.quiet(cs...)

	// With members that are busy the offer comes later, and is the same.
	w.infos(cs)
	w.meshed(cs, 40*time.Millisecond)
	w.all(cs[:1], acceptVote)
	w.made()
	w.quiet(cs...)
	w.all(cs[1:], acceptVote)
	for _, c := range cs {
		w.hearsRound(c)
		w.send(c, connected)
	}
	for _, c := range cs {
		want[wire.M2CP2PConnectionsEstablished](w, c)
	}
	w.quiet(cs...)
	require.Equal(t, draft{}, w.m.groups[0].mesh.draft)
}

// Plans that were asked for before a round, for a mesh that is no more, or for members of whom
// one has gone mean nothing; neither do those that nobody has asked for.
func TestStalePlansMeanNothing(t *testing.T) {
	for name, happens := range map[string]func(w *world, cs []ClientID) []ClientID{
		"a round": func(w *world, cs []ClientID) []ClientID { w.infos(cs); return cs },
		"a round, and another mesh": func(w *world, cs []ClientID) []ClientID {
			w.infos(cs)
			w.meshed(cs, 30*time.Millisecond)
			return cs
		},
		"a member has gone": func(w *world, cs []ClientID) []ClientID {
			w.leave(cs[3])
			w.drain(cs[:3])
			return cs[:3]
		},
		"another number": func(w *world, cs []ClientID) []ClientID {
			w.m.groups[0].mesh.draft.job += 7
			return cs
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, cs := beside(t, 4, -1)
			w.meshed(cs, 40*time.Millisecond)
			stale := w.makes()
			require.NotZero(t, stale.Direct)
			cs = happens(w, cs)
			was := w.m.groups[0].mesh.draft
			w.step(stale)
			w.quiet(cs...)
			require.Zero(t, w.m.groups[0].mesh.direct)
			if name == "a member has gone" {
				was = draft{}
			}
			require.Equal(t, was, w.m.groups[0].mesh.draft, "it is still waited for what was asked for last")
			if len(w.asked) > 0 {
				w.made()
				require.NotEqual(t, stale.Direct, w.switched(cs))
			}
			w.step(stale)
			w.quiet(cs...)
		})
	}
}

// A ring that is found while plans are made waits for its own, and what was asked for beside
// the ring before means nothing.
func TestPlansBesideABetterRing(t *testing.T) {
	w, cs := beside(t, 4, -1)
	g := w.m.groups[0]
	better := slices.Clone(g.ring)
	better[1], better[2] = better[2], better[1]
	w.meshed(cs, 40*time.Millisecond)
	g.prefer(better)
	w.m.out = nil
	w.m.offer(g)
	w.carryOut(w.m.out)
	w.quiet(cs...)
	require.Len(t, w.asked, 2)
	w.step(w.makes())
	w.quiet(cs...)
	w.made()
	for _, c := range cs {
		change := want[wire.M2CPrepareRing](w, c).Change
		w.send(c, wire.C2MRingPrepared{Change: change})
	}
	for _, c := range cs {
		p := want[wire.M2CSwitchRing](w, c)
		require.Equal(t, w.m.normalise(g), p.Ring)
		require.NotZero(t, p.Direct)
	}
	require.Equal(t, draft{}, g.mesh.draft)
	w.quiet(cs...)
}

// A ring that was offered before the mesh stood comes into force while plans beside the one
// before are made: they are made again.
func TestTheRingChangesBeforeThePlans(t *testing.T) {
	w, cs := beside(t, 4, -1)
	g := w.m.groups[0]
	better := slices.Clone(g.ring)
	better[1], better[2] = better[2], better[1]
	g.prefer(better)
	w.m.out = nil
	w.m.offer(g)
	w.carryOut(w.m.out)
	var change uint64
	for _, c := range cs {
		change = want[wire.M2CPrepareRing](w, c).Change
	}
	w.meshed(cs, 40*time.Millisecond)
	stale := w.makes()
	w.all(cs, wire.C2MRingPrepared{Change: change})
	for _, c := range cs {
		require.Zero(t, want[wire.M2CSwitchRing](w, c).Direct)
	}
	w.step(stale)
	w.quiet(cs...)
	w.made()
	require.NotZero(t, w.switched(cs))
}

// What members show while plans are made is looked at when these are through, and not in
// vain: a trial ends.
func TestPlansAreLookedAtOneByOne(t *testing.T) {
	w, cs := untried(t, 4, wire.PlansVersion, 40*time.Millisecond)
	w.m.cfg.PlannedInStep = -1
	g := w.m.groups[0]
	w.reduced(cs, largeOp, 9*time.Second, 20, 20, 20, 20)
	require.Len(t, w.asked, 1)
	w.reduced(cs, largeOp, 9*time.Second, 20, 300, 300, 300)
	require.Len(t, w.asked, 1, "one at a time")
	require.True(t, g.learned.news)
	w.made()
	require.NotEqual(t, plan.TrialName, w.planOf(w.switched(cs), 4))
}

// The basis of plans is constant: making them changes nothing of it, and what the machine learns
// afterwards neither.
func TestTheBasisOfPlansIsConstant(t *testing.T) {
	w, cs := beside(t, 5, -1)
	g := w.m.groups[0]
	w.meshed(cs, 40*time.Millisecond)
	e := w.asked[0]
	first := e.Basis.Make(nil)
	require.NotEmpty(t, first.Schemes)
	for i, u := range g.roster {
		for _, o := range g.roster {
			if o != u {
				w.m.learn(w.m.uuids[u], o, float64(900-100*i), 0)
			}
		}
		w.m.uuids[u].place.ways = nil
	}
	require.Equal(t, first, e.Basis.Make(nil))
	g.mesh.draft = draft{}
	require.NotEqual(t, first, w.m.basis(g, g.ring).Make(nil))
	calls := 0
	e.Basis.Make(func() bool { calls++; return true })
	require.Positive(t, calls, "it asks whether it goes on")
}

// Members refuse a list that is too long. What small all-reduces have is left out of it.
func TestListsThatAreTooLong(t *testing.T) {
	w, cs := beside(t, 8, -1)
	w.meshed(cs, 40*time.Millisecond)
	b := w.asked[0].Basis
	b.small, b.told = true, true
	p := b.problem
	large := b.settled(p).Above()
	for _, n := range []int{plan.MaxOptions - len(large.List), plan.MaxOptions - len(large.List) + 1} {
		small := plan.Options{}
		for i := range n {
			small.List = append(small.List, plan.Option{From: uint64(1000 * i), Scheme: plan.Direct(p.N, nil)})
		}
		b.inForce = small.With(large)
		o, err := plan.ParseOptions([]byte(b.schemes(p)), p.N)
		require.NoError(t, err)
		require.Equal(t, n+len(large.List) <= plan.MaxOptions, len(o.Below().List) == n, "%d", n)
		above := o.Above()
		require.Equal(t, large.Encode(), above.Encode())
	}
}

// BenchmarkAskForPlans is what a step has to do for plans that are made beside it.
func BenchmarkAskForPlans(b *testing.B) {
	for _, n := range []int{plannedInStep, 17, 64, 254} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			w, cs := beside(b, n, -1)
			g := w.m.groups[0]
			g.mesh = mesh{state: meshDirect, change: 1, partial: n > plan.MostMeshed}
			if g.mesh.partial {
				g.mesh.state = meshRefused
			}
			for i, c := range cs {
				p := &w.m.conns[c].place
				p.meshed = g.mesh.change
				for k, o := range cs {
					if k != i && (!g.mesh.partial || i < landmarks || k < landmarks) {
						p.ways = append(p.ways, wire.Way{To: w.ids[o], RTT: uint32(40_000 + 1000*(i+k))})
					}
				}
				for range mostGave {
					r := wire.C2MRates{Up: 100, Down: 100}
					for _, o := range cs {
						if o != c {
							r.Pairs = append(r.Pairs, wire.PathRate{To: w.ids[o], Mbps: 100})
						}
					}
					w.send(c, r)
				}
			}
			for b.Loop() {
				g.mesh.draft, w.m.out = draft{}, nil
				w.m.plans(g, g.ring)
			}
		})
	}
}
