package fsm

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// Where nothing went along the ring, and little was asked of its links, it is timed if it may be the fastest.
func TestTheRingIsTimed(t *testing.T) {
	for name, ring := range map[string]time.Duration{"it turns out to be faster": 4 * time.Second, "it turns out to be slower": 9 * time.Second} {
		t.Run(name, func(t *testing.T) {
			w, cs := gathered(t, 4, wire.PlansVersion)
			g := w.m.groups[0]
			w.meshedBy(cs, func(i, k int) time.Duration {
				if i == 0 && k == 1 {
					return 500 * time.Microsecond
				}
				return 40 * time.Millisecond
			})
			require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4))
			w.link = 15 // as much was asked of each
			for w.planOf(g.mesh.direct, 4) != "" {
				w.reduced(cs, largeOp, 5600*time.Millisecond, 50, 50, 50, 50)
				require.Less(t, g.learned.ops, uint64(4), "a ring of 50 Mbit/s takes 4.5 s")
				if len(w.inbox[cs[0]]) > 0 {
					w.switched(cs)
				}
			}
			for range 6 { // the trial has a third time
				took := 5600 * time.Millisecond
				if w.planOf(g.mesh.direct, 4) == "" {
					took = ring
				}
				w.reduced(cs, largeOp, took, 50, 50, 50, 50)
				if len(w.inbox[cs[0]]) > 0 {
					w.switched(cs)
				}
			}
			require.Equal(t, ring == 4*time.Second, w.planOf(g.mesh.direct, 4) == "")
		})
	}
}

// What was measured of single ways bounds nobody who shows more over all of them, and what was
// measured is not forgotten where little is shown.
func TestMembersShowMoreThanTheirWays(t *testing.T) {
	w, cs := learning(t, 3, wire.PlansVersion, 40*time.Millisecond)
	g := w.m.groups[0]
	for _, u := range g.roster[1:] {
		w.m.learn(w.m.uuids[g.roster[0]], u, 100, 0)
	}
	for _, c := range cs {
		w.send(c, wire.C2MRates{Up: 150, Down: 60})
	}
	_, p, ok := w.m.problem(g, g.ring)
	require.True(t, ok)
	require.Equal(t, []float64{0, 100, 100, 0, 0, 0, 0, 0, 0}, p.Rates)
	require.Equal(t, []float64{150, 150, 150}, p.Up)
	require.Equal(t, []float64{60, 60, 60}, p.Down)
}

// A trial is a plan of the kind that was barred, and does not take its place: it is compared with the ring by
// itself, which is timed again.
func TestTrialsDoNotReplaceWhatIsBarred(t *testing.T) {
	const n = 4
	p := plan.Problem{N: n, Ring: []int{0, 1, 2, 3}, Delay: slices.Repeat([]time.Duration{20 * time.Millisecond}, n*n), Rates: make([]float64, n*n)}
	p.Up, p.Down = []float64{20, 100, 200, 400}, slices.Repeat([]float64{500}, n)
	trial := plan.Trial(p, largeOp, 0).List[0].Scheme
	p.Timed = []plan.Timed{{Scheme: trial, Bytes: largeOp, Took: 2 * time.Second, Often: true}}
	b := &Basis{bytes: largeOp}
	all := b.settled(p)
	require.Equal(t, plan.TrialName, all.For(largeOp).Scheme.Name)
	b.barred = []string{"shares", "direct"}
	none := b.settled(p)
	require.Nil(t, none.For(largeOp))
}

// What goes directly because it is small says nothing of the ring.
func TestExchangesAreNotTimedAsRings(t *testing.T) {
	w, cs := gathered(t, 4, wire.PlansVersion)
	w.meshed(cs, 40*time.Millisecond)
	w.switched(cs)
	g := w.m.groups[0]
	o := &clientOp{count: 2 << 20 / 4, dtype: dtype.Float32}
	require.True(t, g.mesh.exchanged(2<<20))
	_, name, _, _ := w.m.planned(g, o, false)
	require.Equal(t, plan.TrialName, name)
	g.mesh.large, g.mesh.direct.Most = plan.Options{}, 4<<20
	bytes, _, _, _ := w.m.planned(g, o, false)
	require.Zero(t, bytes)
	o.count = 16 << 20 / 4
	bytes, name, _, _ = w.m.planned(g, o, false)
	require.EqualValues(t, 16<<20, bytes)
	require.Equal(t, ringName, name)
}
