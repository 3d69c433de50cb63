package fsm

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/master/fsm/links"
	"github.com/gopccl/gopccl/internal/master/fsm/pace"
	"github.com/gopccl/gopccl/internal/master/fsm/rings"
	"github.com/gopccl/gopccl/internal/wire"
)

var background = Config{Solver: true, Background: true}

// choose optimizes cs with the rates and lets the solver choose the ring.
func (w *world) choose(cs []ClientID, rate func(i, j int) float64, optimal bool, pick func(s Solve) []wire.UUID) {
	w.t.Helper()
	s := measured(w, cs, rate)
	require.Len(w.t, s, 1)
	w.step(Solved{Job: s[0].Job, Ring: pick(s[0]), Optimal: optimal})
	optimized(w, cs)
}

func sorted(s Solve) []wire.UUID { return s.Members }

func reversed(us []wire.UUID) []wire.UUID {
	r := slices.Clone(us)
	slices.Reverse(r)
	return r
}

// pending lets all ask and returns the answer, which is the same for all.
func (w *world) pending(cs []ClientID) bool {
	w.t.Helper()
	for _, c := range cs {
		w.send(c, wire.C2MCheckPeersPending{})
	}
	answer := want[wire.M2CPeersPendingResponse](w, cs[0])
	for _, c := range cs[1:] {
		require.Equal(w.t, answer, want[wire.M2CPeersPendingResponse](w, c))
	}
	return answer.PeersPending
}

// update lets all vote for an accept round.
func (w *world) update(cs []ClientID) []wire.UUID {
	w.t.Helper()
	for _, c := range cs {
		w.send(c, acceptVote)
	}
	return w.round(true)[cs[0]]
}

// lastSolve is the last search that was begun.
func (w *world) lastSolve() Solve {
	w.t.Helper()
	require.NotEmpty(w.t, w.solves)
	return w.solves[len(w.solves)-1]
}

// The solver goes on after its quick answer; peers that ask whether a
// round is due are told so when it has found a better ring, PCCL's like ours.
func TestSearchInTheBackground(t *testing.T) {
	for _, native := range []bool{true, false} {
		w := newWorld(t, background)
		cs := w.members(5, native)
		w.choose(cs, backwards(5), false, sorted)
		s := w.lastSolve()
		require.True(t, s.Background)
		require.Equal(t, []int{0, 1, 2, 3, 4}, s.Start)
		w.after(restless)
		require.False(t, w.pending(cs))
		w.step(Solved{Job: s.Job, Ring: reversed(s.Members), More: true})
		require.True(t, w.pending(cs))
		require.Equal(t, reversed(s.Members), w.update(cs)) // S1-19
		require.False(t, w.pending(cs))
		// Worse ones change nothing.
		w.step(Solved{Job: s.Job, Ring: s.Members, More: true})
		require.False(t, w.pending(cs))
		w.step(Solved{Job: s.Job, Ring: reversed(s.Members), Optimal: true})
		require.Equal(t, reversed(s.Members), w.update(cs))
		w.step(Solved{Job: s.Job, Ring: s.Members})
		require.Nil(t, w.m.groups[0].search.job)
	}
}

// A ring that is proved to be the best ends the search before it begins.
func TestNoSearchForTheOptimum(t *testing.T) {
	w := newWorld(t, background)
	cs := w.members(4, true)
	w.choose(cs, backwards(4), true, sorted)
	require.False(t, w.lastSolve().Background)
}

// The search ends when the members change, and its answers mean nothing.
func TestSearchEndsWithTheMembers(t *testing.T) {
	for _, leave := range []bool{true, false} {
		w := newWorld(t, background)
		cs := w.members(5, true)
		w.choose(cs, backwards(5), false, sorted)
		s := w.lastSolve()
		w.stopped = nil
		if leave {
			w.leave(cs[4])
			cs = cs[:4]
			for _, c := range cs {
				want[wire.M2CPeerDropped](w, c)
			}
		} else {
			cs = append(cs, w.member(0, true))
		}
		require.Equal(t, []uint64{s.Job}, w.stopped) // S1-19
		w.after(restless)
		w.step(Solved{Job: s.Job, Ring: reversed(s.Members), More: true})
		require.False(t, w.pending(cs))
	}
	// A newcomer that gives up before it was let in changes nothing.
	w := newWorld(t, background)
	cs := w.members(4, true)
	w.choose(cs, backwards(4), false, sorted)
	w.stopped = nil
	w.leave(w.join(0, true))
	require.Empty(t, w.stopped)
}

// A ring that is found too soon after the last change waits.
func TestRestlessSearch(t *testing.T) {
	w := newWorld(t, background)
	cs := w.members(4, true)
	w.choose(cs, backwards(4), false, sorted)
	s := w.lastSolve()
	w.step(Solved{Job: s.Job, Ring: reversed(s.Members), More: true})
	require.False(t, w.pending(cs))
	require.Equal(t, s.Members, w.update(cs))
	w.after(restless)
	require.True(t, w.pending(cs))
	require.Equal(t, reversed(s.Members), w.update(cs))
}

// reduce lets all reduce count floats, which takes so long.
func (w *world) reduce(cs []ClientID, count uint64, took time.Duration) {
	w.t.Helper()
	for _, c := range cs {
		p := initiate(7)
		p.Count = count
		w.send(c, p)
	}
	w.now += took
	for _, c := range cs {
		want[wire.M2CCollectiveCommsCommence](w, c)
		w.send(c, complete(7, false))
	}
	for _, c := range cs {
		want[wire.M2CCollectiveCommsAbort](w, c)
		want[wire.M2CCollectiveCommsComplete](w, c)
	}
}

// A ring with which collectives take longer than before is taken back, and
// not tried again while the members stay.
func TestWorseRingGoesBack(t *testing.T) {
	for name, tc := range map[string]struct {
		took time.Duration
		back bool
	}{
		"slower": {130 * time.Millisecond, true}, "as before": {109 * time.Millisecond, false}, "faster": {30 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, background)
			cs := w.members(4, true)
			w.choose(cs, backwards(4), false, sorted)
			s := w.lastSolve()
			w.after(restless)
			for range pace.Enough {
				w.reduce(cs, 1<<20, 100*time.Millisecond)
				w.reduce(cs, 10, time.Hour) // too little to say anything
			}
			w.after(restless)
			w.step(Solved{Job: s.Job, Ring: reversed(s.Members), More: true})
			require.Equal(t, reversed(s.Members), w.update(cs))
			for range pace.Enough {
				require.False(t, w.pending(cs))
				w.reduce(cs, 3<<20, time.Hour) // other work
				w.reduce(cs, 1<<20, tc.took)
			}
			require.Equal(t, tc.back, w.pending(cs))
			ring := w.update(cs)
			if !tc.back {
				require.Equal(t, reversed(s.Members), ring)
				return
			}
			require.True(t, rings.SameCycle(s.Members, ring))
			w.after(calm)
			w.step(Solved{Job: s.Job, Ring: append(reversed(s.Members)[2:], reversed(s.Members)[:2]...), More: true})
			require.False(t, w.pending(cs))
			// The old ring is not judged against the one that was worse.
			for range 2 * pace.Enough {
				w.reduce(cs, 1<<20, time.Second)
			}
			require.False(t, w.pending(cs))
		})
	}
}

// A link that has become slow is known from the collectives: the ring changes
// without any probe.
func TestRingFollowsTheLinks(t *testing.T) {
	w := newWorld(t, background)
	var cs []ClientID
	for range 4 {
		cs = append(cs, w.capable())
	}
	w.optimize(cs)
	w.probes(cs, flat)
	for _, c := range cs {
		want[wire.M2CProbesDone](w, c)
		w.send(c, wire.C2MOptimizeTopologyWorkComplete{})
	}
	w.step(Solved{Job: w.lastSolve().Job, Ring: w.lastSolve().Members, Optimal: true})
	optimized(w, cs)
	w.solves = nil
	w.after(restless)
	report := func(mbps, busy float64) {
		for range 20 {
			w.now += watchEvery
			w.send(cs[1], wire.C2MLinkReport{To: w.ids[cs[2]], Mbps: mbps, Busy: busy})
		}
	}
	report(10, 0.1) // it was not at work: it may have more
	require.Empty(t, w.solves)
	report(95, 0.9)
	require.Empty(t, w.solves, "within the noise")
	for _, bad := range []wire.C2MLinkReport{
		{To: w.ids[cs[2]], Mbps: math.NaN(), Busy: 1},
		{To: w.ids[cs[2]], Mbps: 1, Busy: math.NaN()},
		{To: w.ids[cs[2]], Mbps: -1, Busy: 1},
		{To: w.ids[cs[1]], Mbps: 1, Busy: 1},
		{Mbps: 1, Busy: 1},
		{To: w.ids[cs[2]], Mbps: 1, Busy: 2},
	} {
		w.send(cs[1], bad)
	}
	require.Empty(t, w.solves)
	report(20, 0.9)
	require.NotEmpty(t, w.solves)
	s := w.lastSolve()
	rate, _ := s.Matrix.At(1, 2)
	require.Less(t, rate, 80.0)
	w.step(Solved{Job: s.Job, Ring: reversed(s.Members), Optimal: true})
	require.True(t, w.pending(cs))
	require.Equal(t, reversed(s.Members), w.update(cs)) // S2-57
	// A link that gave more than was known is known to have more.
	w.send(cs[2], wire.C2MLinkReport{To: w.ids[cs[1]], Mbps: 400, Busy: 0.2})
	require.Equal(t, 400.0, w.m.conns[cs[2]].link(w.m.conns[cs[1]]).mbps)
}

// Links that nothing was heard of for long are measured again.
func TestOldLinksAreMeasuredAgain(t *testing.T) {
	w, cs := optimizing(t, Config{MaxLinkAge: time.Hour}, 3)
	finish := func() {
		for _, c := range cs {
			w.send(c, wire.C2MOptimizeTopologyWorkComplete{})
		}
		for _, c := range cs {
			for len(w.inbox[c]) > 0 {
				w.pop(c)
			}
			w.send(c, establishVote)
		}
		w.round(true)
	}
	require.Len(t, w.probes(cs, flat), 2)
	finish()
	w.now += 30 * time.Minute
	require.Zero(t, w.optimize(cs))
	finish()
	w.send(cs[0], wire.C2MLinkReport{To: w.ids[cs[1]], Mbps: 90, Busy: 1})
	w.now += 30 * time.Minute
	require.Equal(t, 5, w.optimize(cs))
}

// Rings never flap: the links are as they are, every measurement is off by up
// to a fifth and repeated every few minutes, and somebody looks for a better ring all day.
func TestRingsDoNotFlap(t *testing.T) {
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		const n = 6
		truth := topo.NewMatrix(n)
		for i := range truth.Mbps {
			truth.Mbps[i] = 100 + 900*rnd.Float64()
		}
		noisy := func(i, j int) float64 { v, _ := truth.At(i, j); return v * (0.8 + 0.4*rnd.Float64()) }
		w := newWorld(t, background)
		var cs []ClientID
		for range n {
			cs = append(cs, w.capable())
		}
		for _, c := range cs {
			w.send(c, wire.C2MOptimizeTopology{})
		}
		at := map[wire.UUID]int{}
		for i, c := range cs {
			at[w.ids[c]] = i
			want[wire.M2COptimizeTopologyResponse](w, c)
		}
		w.probes(cs, func(e links.Edge) float64 { return noisy(at[e.From], at[e.To]) })
		for _, c := range cs {
			want[wire.M2CProbesDone](w, c)
			w.send(c, wire.C2MOptimizeTopologyWorkComplete{})
		}
		s := w.lastSolve()
		w.step(Solved{Job: s.Job, Ring: bestRing(s)})
		ring := optimized(w, cs)
		took := func(ring []wire.UUID) time.Duration {
			var idx []int
			for _, u := range ring {
				idx = append(idx, at[u])
			}
			b, _, _ := truth.Value(idx)
			return time.Duration(float64(time.Hour) / b * (0.97 + 0.06*rnd.Float64()))
		}
		first := took(ring)
		changes := 0
		for w.now < 24*time.Hour {
			w.after(4 * time.Minute)
			w.reduce(cs, 1<<20, took(ring)/1000)
			for i, c := range cs {
				for k, o := range cs {
					if k != i {
						w.send(c, wire.C2MReportPeerBandwidth{To: w.ids[o], Mbps: noisy(i, k)})
					}
				}
			}
			g := w.m.groups[0]
			if g.search.job == nil { // look, whether there is a reason or not
				w.m.out = nil
				w.m.search(g)
				w.solves = append(w.solves, w.m.out[0].(Solve))
			}
			s := w.lastSolve()
			w.step(Solved{Job: s.Job, Ring: bestRing(s)})
			if w.pending(cs) {
				now := w.update(cs)
				if !rings.SameCycle(now, ring) {
					changes++
				}
				ring = now
			}
		}
		require.LessOrEqual(t, changes, 20, "seed %d", seed)
		require.LessOrEqual(t, float64(took(ring)), 1.3*float64(first), "seed %d", seed)
	}
}

// bestRing tries all rings.
func bestRing(s Solve) []wire.UUID {
	p := topo.Problem{Matrix: s.Matrix}
	var best topo.Solution
	ring := []int{0}
	var try func()
	try = func() {
		if len(ring) == s.Matrix.N {
			if sol, ok := p.Solution(slices.Clone(ring)); ok && p.Objective.Better(sol, best) {
				best = sol
			}
			return
		}
		for i := range s.Matrix.N {
			if !slices.Contains(ring, i) {
				ring = append(ring, i)
				try()
				ring = ring[:len(ring)-1]
			}
		}
	}
	try()
	var us []wire.UUID
	for _, i := range best.Ring {
		us = append(us, s.Members[i])
	}
	return us
}
