package fsm

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/wire"
)

// measured lets all optimize and report rate(i, j), then takes the Solve effects.
func measured(w *world, cs []ClientID, rate func(i, j int) float64) []Solve {
	w.t.Helper()
	w.solves = nil
	for _, c := range cs {
		w.send(c, wire.C2MOptimizeTopology{})
	}
	for i, c := range cs {
		want[wire.M2COptimizeTopologyResponse](w, c)
		for j, o := range cs {
			if i != j {
				w.send(c, wire.C2MReportPeerBandwidth{To: w.ids[o], Mbps: rate(i, j)})
			}
		}
		w.send(c, wire.C2MOptimizeTopologyWorkComplete{})
	}
	return w.solves
}

func optimized(w *world, cs []ClientID) []wire.UUID {
	w.t.Helper()
	for _, c := range cs {
		require.Equal(w.t, wire.M2COptimizeTopologyComplete{Success: true}, want[wire.M2COptimizeTopologyComplete](w, c))
		w.send(c, establishVote)
	}
	return w.round(true)[cs[0]]
}

// backwards makes the ring against the sorted one the fast one.
func backwards(n int) func(i, j int) float64 {
	return func(i, j int) float64 {
		if (i+n-1)%n == j {
			return 1000
		}
		return 10
	}
}

// Quirk Q4: the ring found is that of the next round, and stays as long as the
// members do; newcomers wait outside while it is found.
func TestRingIsApplied_Q4(t *testing.T) {
	w := newWorld(t, Config{Solver: true})
	cs := w.members(4, false)
	n := w.join(0, false)
	solves := measured(w, cs, backwards(4))
	require.Len(t, solves, 1)
	s := solves[0]
	require.Equal(t, []int{0, 1, 2, 3}, s.Start)
	rate, ok := s.Matrix.At(2, 1)
	require.True(t, ok)
	require.Equal(t, 1000.0, rate)
	w.quiet(cs...)
	ring := slices.Clone(s.Members)
	slices.Reverse(ring)
	w.step(Solved{Job: s.Job, Ring: ring})
	require.Equal(t, ring, optimized(w, cs)) // S1-20
	w.quiet(n)
	for _, c := range cs {
		w.send(c, establishVote)
	}
	require.Equal(t, ring, w.round(true)[cs[0]])
	// A newcomer is put in, the rest keeps its order.
	for _, c := range cs {
		w.send(c, acceptVote)
	}
	grown := w.round(true)[cs[0]]
	require.Len(t, grown, 5)
	require.Equal(t, ring, slices.DeleteFunc(slices.Clone(grown), func(u wire.UUID) bool { return u == w.ids[n] }))
	// A peer that leaves is taken out.
	w.leave(cs[1])
	for _, c := range []ClientID{cs[0], cs[2], cs[3], n} {
		w.send(c, establishVote)
	}
	left := slices.DeleteFunc(grown, func(u wire.UUID) bool { return u == w.ids[cs[1]] })
	require.Equal(t, left, w.round(true)[cs[0]])
}

// A ring that is hardly better, worse, or no ring of the members is not taken.
func TestRingIsKept_Q9(t *testing.T) {
	for name, tc := range map[string]struct {
		rate   func(i, j int) float64
		answer func(s Solve) Solved
	}{
		"within noise": {
			func(i, j int) float64 { return 100 + 4*backwards(3)(i, j)/1000 },
			func(s Solve) Solved {
				return Solved{Job: s.Job, Ring: []wire.UUID{s.Members[0], s.Members[2], s.Members[1]}}
			},
		},
		"worse": {
			func(i, j int) float64 { return 1010 - backwards(3)(i, j) },
			func(s Solve) Solved {
				return Solved{Job: s.Job, Ring: []wire.UUID{s.Members[0], s.Members[2], s.Members[1]}}
			},
		},
		"stranger": {backwards(3), func(s Solve) Solved { return Solved{Job: s.Job, Ring: []wire.UUID{{9}, s.Members[2], s.Members[1]}} }},
		"twice": {backwards(3), func(s Solve) Solved {
			return Solved{Job: s.Job, Ring: []wire.UUID{s.Members[0], s.Members[0], s.Members[1]}}
		}},
		"too short": {backwards(3), func(s Solve) Solved { return Solved{Job: s.Job, Ring: s.Members[:2]} }},
		"no ring":   {func(int, int) float64 { return math.NaN() }, func(s Solve) Solved { return Solved{Job: s.Job, Err: topo.ErrNoRing} }},
		"late job":  {backwards(3), func(s Solve) Solved { return Solved{Job: s.Job, Err: topo.ErrNoRing} }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{Solver: true})
			cs := w.members(3, false)
			s := measured(w, cs, tc.rate)[0]
			w.step(Solved{Job: s.Job + 7})
			w.quiet(cs...)
			w.step(tc.answer(s))
			w.step(Solved{Job: s.Job, Ring: s.Members})
			require.Equal(t, s.Members, optimized(w, cs))
		})
	}
}

// Impossible values are ignored and named.
func TestImpossibleBandwidths_Q10(t *testing.T) {
	for _, v := range []float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		w := newWorld(t, Config{Solver: true})
		cs := w.members(3, false)
		s := measured(w, cs, func(i, j int) float64 { return v })[0]
		for i := range 3 {
			for j := range 3 {
				_, ok := s.Matrix.At(i, j)
				require.False(t, ok) // S1-14
			}
		}
		require.Contains(t, w.factOf("bandwidth").Text, w.ids[cs[0]].Short())
	}
}

// The wait for the solver is bounded; its late answer means nothing.
func TestSolverIsBounded(t *testing.T) {
	w := newWorld(t, Config{Solver: true})
	cs := w.members(3, false)
	s := measured(w, cs, backwards(3))[0]
	w.after(4 * time.Second)
	w.quiet(cs...)
	w.after(time.Second)
	require.Equal(t, s.Members, optimized(w, cs))
	ring := slices.Clone(s.Members)
	slices.Reverse(ring)
	w.step(Solved{Job: s.Job, Ring: ring})
	for _, c := range cs {
		w.send(c, establishVote)
	}
	require.Equal(t, s.Members, w.round(true)[cs[0]])
}

// Members that leave while the solver runs: the rest is answered, the ring
// does not fit any more.
func TestLeaveWhileSolving(t *testing.T) {
	w := newWorld(t, Config{Solver: true})
	cs := w.members(4, false)
	s := measured(w, cs, backwards(4))[0]
	w.leave(cs[3])
	w.quiet(cs[:3]...)
	ring := slices.Clone(s.Members)
	slices.Reverse(ring)
	w.step(Solved{Job: s.Job, Ring: ring})
	require.Equal(t, s.Members[:3], optimized(w, cs[:3]))

	// Everybody leaves: the machine forgets the job.
	s = measured(w, cs[:3], backwards(3))[0]
	for _, c := range cs[:3] {
		w.leave(c)
	}
	w.step(Solved{Job: s.Job, Ring: s.Members})
	n := w.member(0, false)
	w.send(n, wire.C2MOptimizeTopology{})
	want[wire.M2COptimizeTopologyResponse](w, n)
	w.send(n, wire.C2MOptimizeTopologyWorkComplete{})
	want[wire.M2COptimizeTopologyComplete](w, n)
}

// Two groups are solved apart; groups of one or two have nothing to solve.
func TestSolvePerGroup(t *testing.T) {
	w := newWorld(t, Config{Solver: true})
	var cs []ClientID
	for i := range 8 {
		cs = append(cs, w.member(uint32(i/3), false))
	}
	solves := measured(w, cs, func(i, j int) float64 { return float64(1 + i + j) })
	require.Len(t, solves, 2)
	require.Equal(t, []uint32{0, 1}, []uint32{solves[0].Group, solves[1].Group})
	w.step(Solved{Job: solves[1].Job})
	w.quiet(cs...)
	w.step(Solved{Job: solves[0].Job})
	for _, c := range cs {
		want[wire.M2COptimizeTopologyComplete](w, c)
	}
}
