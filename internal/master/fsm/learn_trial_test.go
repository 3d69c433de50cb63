package fsm

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// A ring that took much longer than a trial is not timed again: windows do not make that much of it.
func TestTrialBehindAHopelessRing(t *testing.T) {
	w, cs := gathered(t, 4, wire.PlansVersion)
	w.reduced(cs, largeOp, 26*time.Second, 20, 20, 20, 20)
	w.meshed(cs, 40*time.Millisecond)
	require.Equal(t, plan.TrialName, w.planOf(w.switched(cs), 4))
	for _, took := range []time.Duration{10 * time.Second, 9 * time.Second, 9 * time.Second} {
		w.reduced(cs, largeOp, took, 20, 20, 20, 20)
		w.settled(cs)
		require.Equal(t, plan.TrialName, w.inForce(largeOp))
	}
}

// All-reduces of less than LeastTrial are a trial only where the ring has carried far less than most of
// its members can send: where it has carried about that, a trial costs more than it may bring.
func TestTrialsOfLessAreForSlowRings(t *testing.T) {
	const bytes = 3 << 19
	// The last one shows nothing: there is nothing that plans could be made of.
	const fits = time.Second // links of 20 Mbit/s carry it in that
	for name, took := range map[string][]time.Duration{
		"as fast as its members":  {fits, fits, fits},
		"its first fills windows": {3 * fits, fits, fits},
	} {
		t.Run(name, func(t *testing.T) {
			w, cs := untried(t, 4, wire.PlansVersion, 12*time.Millisecond)
			for _, d := range took {
				w.reduced(cs, bytes, d, 20, 20, 20, 0)
				w.settled(cs)
				require.Empty(t, w.inForce(bytes))
			}
		})
	}
	t.Run("slow", func(t *testing.T) {
		w, cs := untried(t, 4, wire.PlansVersion, 12*time.Millisecond)
		w.reduced(cs, bytes, 3*fits, 20, 20, 20, 0)
		w.settled(cs)
		require.Empty(t, w.inForce(bytes))
		w.reduced(cs, bytes, 3*fits, 20, 20, 20, 0)
		w.settled(cs)
		require.Equal(t, plan.TrialName, w.inForce(bytes))
		require.Empty(t, w.inForce(bytes-1))
		for range 4 {
			w.reduced(cs, bytes, fits, 20, 20, 20, 0)
			w.settled(cs)
			require.Equal(t, plan.TrialName, w.inForce(bytes), "it is faster than the ring")
		}
	})
	t.Run("only one member is fast", func(t *testing.T) {
		w, cs := untried(t, 4, wire.PlansVersion, 12*time.Millisecond)
		for range 3 {
			w.reduced(cs, bytes, fits, 20, 20, 300, 0)
			w.settled(cs)
			require.Empty(t, w.inForce(bytes))
		}
	})
}

// A group that is too large for all to be connected has trials, too: its members connect for them.
// What is not known of delays is taken over others.
func TestTrialOfManyMembers(t *testing.T) {
	w, cs := gathered(t, plan.MostMeshed+1, wire.PlansVersion)
	w.partly(cs, 40*time.Millisecond)
	w.settled(cs)
	require.Empty(t, w.inForce(plan.LeastTrial), "they do not connect for what they may never do")
	mbps := slices.Repeat([]float64{20}, len(cs))
	w.reduced(cs, plan.LeastLarge, 3*time.Second, mbps...)
	w.settled(cs)
	require.Equal(t, plan.TrialName, w.inForce(plan.LeastLarge), "a ring of many members is of delays")
	w.reduced(cs, plan.LeastLarge, time.Second, mbps...)
	w.settled(cs)
	require.Equal(t, plan.TrialName, w.inForce(plan.LeastLarge), "it was faster than the ring")
}

// What all-reduces that are hardly large have shown leaves larger ones their trial, and is forgotten with
// the first of these. From then on they say nothing.
func TestLargerOnesDecide(t *testing.T) {
	const small = 3 << 19
	w, cs := untried(t, 4, wire.PlansVersion, 40*time.Millisecond)
	l := &w.m.groups[0].learned
	for range 2 {
		w.reduced(cs, small, 3*time.Second, 20, 100, 200, 400)
		w.settled(cs)
		require.Equal(t, plan.TrialName, w.inForce(largeOp))
	}
	require.Equal(t, "shares", w.inForce(small))
	l.barOne("shares", small, time.Second, w.m.now)
	w.reduced(cs, largeOp, 10*time.Second, 20, 100, 200, 400)
	w.settled(cs)
	require.Equal(t, "shares", w.inForce(largeOp))
	require.Empty(t, l.barred(w.m.now))
	require.LessOrEqual(t, l.calm, leastCalm, "changes for smaller ones do not keep others waiting")
	for range 3 {
		w.reduced(cs, small, time.Minute, 20, 100, 200, 400)
		w.settled(cs)
		require.Equal(t, "shares", w.inForce(largeOp))
		require.EqualValues(t, largeOp, l.bytes)
	}
}

// Where one member cannot reach another the trial is one without that way.
func TestTrialWithoutAWay(t *testing.T) {
	w, cs := gathered(t, 4, wire.PlansVersion)
	g := w.m.groups[0]
	from, to := w.m.uuids[g.ring[0]].id, w.m.uuids[g.ring[2]].id
	w.partly(cs, 40*time.Millisecond, [2]ClientID{from, to})
	w.settled(cs)
	w.reduced(cs, plan.LeastTrial, 3*time.Second)
	w.settled(cs)
	require.Equal(t, plan.TrialName, w.inForce(plan.LeastTrial))
	at := slices.Index(g.roster, g.ring[0])
	require.NotContains(t, g.mesh.large.For(plan.LeastTrial).Scheme.Ways(4)[at], slices.Index(g.roster, g.ring[2]))
}

// settled has cs take what they are offered, if there is something.
func (w *world) settled(cs []ClientID) {
	w.t.Helper()
	for len(w.asked) > 0 {
		w.step(w.makes())
	}
	if len(w.inbox[cs[0]]) > 0 {
		w.switched(cs)
	}
	w.quiet(cs...)
}

// inForce returns the name of the plan for so many bytes; "": there is none.
func (w *world) inForce(bytes uint64) string {
	if at := w.m.groups[0].mesh.large.For(bytes); at != nil {
		return at.Scheme.Name
	}
	return ""
}
