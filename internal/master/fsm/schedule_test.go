package fsm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/master/fsm/links"
	"github.com/gopccl/gopccl/internal/wire"
)

// optimizing builds a world of n peers that announced the capability and lets
// all vote to optimize.
func optimizing(t testing.TB, cfg Config, n int) (*world, []ClientID) {
	w := newWorld(t, cfg)
	var cs []ClientID
	for range n {
		cs = append(cs, w.capable())
	}
	w.facts = nil
	w.optimize(cs)
	return w, cs
}

// capable lets a peer in that announced the capability.
func (w *world) capable() ClientID {
	old := w.accepted()
	c := w.connectAt(fmt.Sprintf("127.0.0.1:%d", 40000+w.next))
	w.send(c, wire.C2MRequestSessionRegistration{BenchmarkPort: 3, Ext: wire.Ext{Native: true, Topology: true}})
	require.True(w.t, want[wire.M2CSessionRegistrationResponse](w, c).Ext.Topology)
	for _, o := range old {
		w.send(o, acceptVote)
	}
	w.round(true)
	return c
}

func (w *world) optimize(cs []ClientID) (asked int) {
	w.t.Helper()
	w.solves = nil
	for _, c := range cs {
		w.send(c, wire.C2MOptimizeTopology{})
	}
	for _, c := range cs {
		p := want[wire.M2COptimizeTopologyResponse](w, c)
		require.Equal(w.t, len(p.Requests) > 0, p.Ext.Topology)
		asked += len(p.Requests)
	}
	return asked
}

// probes plays scheduled probes of cs to their end and returns the edges of
// every round.
func (w *world) probes(cs []ClientID, mbps func(e links.Edge) float64) (rounds [][]links.Edge) {
	w.t.Helper()
	for {
		var called []ClientID
		var round []links.Edge
		var n uint64
		for _, c := range cs {
			if len(w.inbox[c]) == 0 {
				continue
			}
			p, ok := w.inbox[c][0].(wire.M2CProbe)
			if !ok {
				continue
			}
			w.pop(c)
			require.True(w.t, n == 0 || n == p.Round)
			n = p.Round
			called = append(called, c)
			round = append(round, links.Edge{From: w.ids[c], To: p.To})
			w.send(c, wire.C2MProbeState{Round: n, State: wire.ProbeHeard})
		}
		if len(called) == 0 {
			return rounds
		}
		for _, c := range called {
			w.quiet(c)
			w.send(c, wire.C2MProbeState{Round: n, State: wire.ProbeReady})
		}
		for _, c := range called {
			require.Equal(w.t, n, want[wire.M2CProbeGo](w, c).Round, "all are ready, all begin")
		}
		for i, c := range called {
			w.send(c, wire.C2MProbeState{Round: n, State: wire.ProbeMeasured, Mbps: mbps(round[i]), Deviation: 1, Late: uint32(i)})
		}
		rounds = append(rounds, round)
	}
}

func flat(links.Edge) float64 { return 100 }

// n peers need n-1 rounds, each a perfect matching; a newcomer costs
// its own 2(n-1) edges, and nothing is measured twice.
func TestProbesAreScheduled(t *testing.T) {
	const n = 16
	w, cs := optimizing(t, Config{Solver: true}, n)
	rounds := w.probes(cs, flat)
	require.Len(t, rounds, n-1)
	for _, r := range rounds {
		require.Len(t, r, n)
	}
	for _, c := range cs {
		want[wire.M2CProbesDone](w, c)
		w.quiet(c)
		w.send(c, wire.C2MOptimizeTopologyWorkComplete{})
	}
	require.Contains(t, w.factOf("probes").Text, "240 links measured in 15 rounds")
	require.Len(t, w.solves, 1)
	rate, _ := w.solves[0].Matrix.At(3, 11)
	require.Equal(t, 100.0, rate)
	w.step(Solved{Job: w.solves[0].Job, Ring: w.solves[0].Members})
	optimized(w, cs)

	cs = append(cs, w.capable())
	require.Equal(t, 2*n, w.optimize(cs))
	rounds = w.probes(cs, flat)
	require.Len(t, rounds, n)
	newcomer, measured := w.ids[cs[n]], 0
	for _, r := range rounds {
		for _, e := range r {
			require.True(t, e.From == newcomer || e.To == newcomer)
			measured++
		}
	}
	require.Equal(t, 2*n, measured) // S1-15
}

// Peers at different distances are told to wait so that all begin together; the
// differences that remain are reported.
func TestProbesStartTogether(t *testing.T) {
	w, cs := optimizing(t, Config{}, 3)
	var n uint64
	for i, c := range cs {
		n = want[wire.M2CProbe](w, c).Round
		w.now += time.Duration(i) * 10 * time.Millisecond // 0, 10, 30 ms after the call
		w.send(c, wire.C2MProbeState{Round: n, State: wire.ProbeHeard})
	}
	for _, c := range cs {
		w.send(c, wire.C2MProbeState{Round: n, State: wire.ProbeReady})
	}
	var delays []uint32
	for _, c := range cs {
		delays = append(delays, want[wire.M2CProbeGo](w, c).Delay)
	}
	require.Equal(t, []uint32{15000, 10000, 0}, delays) // S3-05
	for i, c := range cs {
		w.send(c, wire.C2MProbeState{Round: n, State: wire.ProbeMeasured, Mbps: 1, Late: uint32(100 + 1200*i)})
	}
	w.probes(cs, flat)
	require.Contains(t, w.factOf("probes").Text, "within 2.4ms")
}

// Targets that somebody else measures are tried again later, not for ever.
func TestBusyTargets(t *testing.T) {
	w, cs := optimizing(t, Config{}, 2)
	tries := 0
	var pauses []time.Duration
	for {
		began := w.now
		answered := false
		for _, c := range cs {
			if len(w.inbox[c]) > 0 {
				if p, ok := w.pop(c).(wire.M2CProbe); ok {
					state := wire.ProbeBusy
					if c == cs[1] {
						state = wire.ProbeFailed
					}
					w.send(c, wire.C2MProbeState{Round: p.Round, State: state})
					answered = true
				}
			}
		}
		if !answered {
			break
		}
		tries++
		due, ok := w.m.Deadline()
		if !ok {
			break
		}
		pauses = append(pauses, due-began)
		w.after(due - began)
	}
	const ms = time.Millisecond
	require.Equal(t, []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, busyPause, busyPause}, pauses[:7])
	require.Equal(t, busyPause, slices.Max(pauses))
	require.InDelta(t, float64(busyPatience/busyPause), tries, 6)
	require.Contains(t, w.factOf("probes").Text, "0 links measured")
}

// A peer that is not ready, or not done, in time, is not waited for.
func TestSlowProbes(t *testing.T) {
	w, cs := optimizing(t, Config{}, 3)
	n := want[wire.M2CProbe](w, cs[0]).Round
	want[wire.M2CProbe](w, cs[1])
	want[wire.M2CProbe](w, cs[2])
	w.send(cs[0], wire.C2MProbeState{Round: n, State: wire.ProbeReady})
	w.send(cs[1], wire.C2MProbeState{Round: n, State: wire.ProbeReady})
	w.after(readyTime - 1)
	w.quiet(cs...)
	w.after(1)
	want[wire.M2CProbeGo](w, cs[0])
	want[wire.M2CProbeGo](w, cs[1])
	w.quiet(cs...)
	w.send(cs[2], wire.C2MProbeState{Round: n, State: wire.ProbeReady})
	w.quiet(cs[2])
	w.send(cs[0], wire.C2MProbeState{Round: n, State: wire.ProbeMeasured, Mbps: 5})
	w.after(sendTime)
	require.Len(t, w.probes(cs, flat), 1)
	for _, c := range cs {
		want[wire.M2CProbesDone](w, c)
	}
}

// A peer that leaves is not waited for, nor is its target.
func TestLeaveDuringProbes(t *testing.T) {
	w, cs := optimizing(t, Config{}, 4)
	for i, c := range cs {
		p := want[wire.M2CProbe](w, c)
		if i != 1 {
			w.send(c, wire.C2MProbeState{Round: p.Round, State: wire.ProbeReady})
		}
	}
	w.quiet(cs...)
	w.leave(cs[1])
	rest := slices.Delete(slices.Clone(cs), 1, 2)
	for i, c := range rest {
		want[wire.M2CPeerDropped](w, c)
		if i == 0 { // its target is gone
			continue
		}
		p := want[wire.M2CProbeGo](w, c)
		w.send(c, wire.C2MProbeState{Round: p.Round, State: wire.ProbeMeasured, Mbps: 3})
	}
	require.Len(t, w.probes(rest, flat), 2)
	for _, c := range rest {
		want[wire.M2CProbesDone](w, c)
	}
	w, cs = optimizing(t, Config{}, 3)
	for _, c := range cs {
		w.leave(c)
	}
	require.Nil(t, w.m.probes)
}

// In a mixed world PCCL peers measure the old way, from their whole list.
func TestMixedProbes(t *testing.T) {
	w := newWorld(t, Config{})
	cs := []ClientID{w.capable(), w.member(0, false), w.capable()}
	for _, c := range cs {
		w.send(c, wire.C2MOptimizeTopology{})
	}
	for i, c := range cs {
		p := want[wire.M2COptimizeTopologyResponse](w, c)
		require.Len(t, p.Requests, 2)
		require.Equal(t, i != 1, p.Ext.Topology)
	}
	for _, to := range []int{0, 2} {
		w.send(cs[1], wire.C2MReportPeerBandwidth{To: w.ids[cs[to]], Mbps: 7})
	}
	w.send(cs[1], wire.C2MOptimizeTopologyWorkComplete{})
	require.Len(t, w.probes(cs, flat), 2)
	w.quiet(cs[1])
	for _, c := range []ClientID{cs[0], cs[2]} {
		want[wire.M2CProbesDone](w, c)
		w.send(c, wire.C2MOptimizeTopologyWorkComplete{})
	}
	for _, c := range cs {
		want[wire.M2COptimizeTopologyComplete](w, c)
	}
}

// Two peers behind one uplink: measured together each gets half, alone the
// whole of it, and the master says so. Where each has its own, it does not.
func TestSharedUplinkIsSeen(t *testing.T) {
	for _, shared := range []bool{true, false} {
		w := newWorld(t, Config{})
		var cs []ClientID
		host := map[wire.UUID]string{}
		for i := range 5 {
			old := w.accepted()
			ip := []string{"10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.3"}[i]
			c := w.connectAt(fmt.Sprintf("%s:%d", ip, 1000+i))
			w.send(c, wire.C2MRequestSessionRegistration{BenchmarkPort: 3, Ext: wire.Ext{Native: true, Topology: true}})
			want[wire.M2CSessionRegistrationResponse](w, c)
			for _, o := range old {
				w.send(o, acceptVote)
			}
			w.round(true)
			host[w.ids[c]] = ip
			cs = append(cs, c)
		}
		w.facts = nil
		w.optimize(cs)
		alone := 0
		for {
			var round []links.Edge
			var called []ClientID
			var n uint64
			out := map[string]int{}
			for _, c := range cs {
				if len(w.inbox[c]) == 0 {
					continue
				}
				if p, ok := w.inbox[c][0].(wire.M2CProbe); ok {
					w.pop(c)
					n, round, called = p.Round, append(round, links.Edge{From: w.ids[c], To: p.To}), append(called, c)
					if host[w.ids[c]] != host[p.To] {
						out[host[w.ids[c]]]++
					}
				}
			}
			if len(round) == 0 {
				break
			}
			if w.m.probes.stage > stageTogether {
				alone++
				hosts := map[string]bool{}
				for _, e := range round {
					require.False(t, hosts["from "+host[e.From]] || hosts["to "+host[e.To]], "alone from and to its hosts")
					hosts["from "+host[e.From]], hosts["to "+host[e.To]] = true, true
				}
			}
			for _, c := range called {
				w.send(c, wire.C2MProbeState{Round: n, State: wire.ProbeReady})
			}
			for i, c := range called {
				want[wire.M2CProbeGo](w, c)
				mbps := 10000.0
				if from := host[round[i].From]; from != host[round[i].To] {
					mbps = 100
					if shared && from == "10.0.0.1" {
						mbps /= float64(out[from])
					}
				}
				w.send(c, wire.C2MProbeState{Round: n, State: wire.ProbeMeasured, Mbps: mbps})
			}
		}
		require.Positive(t, alone)
		require.LessOrEqual(t, alone, map[bool]int{false: 2, true: 4}[shared], "hosts are looked at together")
		var said []string
		for _, f := range w.facts {
			if f.Kind == "shared" {
				said = append(said, f.Text)
			}
		}
		if !shared {
			require.Empty(t, said)
			continue
		}
		require.Len(t, said, 1)
		require.Contains(t, said[0], "10.0.0.1")
		require.Contains(t, said[0], "100 Mbit/s alone, 50 together") // S3-02
	}
}

// A peer that is cut off from all others, and not from the master, costs one
// round of probes and not one for each of them.
func TestCutOffPeerCostsOneRoundOfProbes(t *testing.T) {
	withIsland, measured := probeWithIsland(t, 0)
	require.Equal(t, 1, withIsland)
	require.Equal(t, 7*6, measured, "all links of the others are measured")
}

// So does one that is cut off while the links are being measured, but for a
// second round, which shows that it was not its partner's fault.
func TestCutOffMeanwhile(t *testing.T) {
	for after := 1; after < 5; after++ {
		withIsland, measured := probeWithIsland(t, after)
		require.Equal(t, 2, withIsland, "cut off after %d rounds", after)
		require.Equal(t, 7*6+2*after, measured, "all links of the others are measured")
	}
}

// probeWithIsland runs an optimization of eight peers of which one is cut off
// after some rounds of probes. It returns how many rounds had to wait for it from
// then on, and how many links were measured.
func probeWithIsland(t *testing.T, after int) (withIsland, measured int) {
	w, cs := optimizing(t, Config{}, 8)
	island := cs[3]
	for round := 0; ; round++ {
		ready := map[ClientID]uint64{}
		failed, asked := false, 0
		for _, c := range cs {
			if len(w.inbox[c]) == 0 {
				continue
			}
			p, ok := w.inbox[c][0].(wire.M2CProbe)
			if !ok {
				continue
			}
			w.pop(c)
			asked++
			if round >= after && (c == island || p.To == w.ids[island]) {
				failed = true
				w.send(c, wire.C2MProbeState{Round: p.Round, State: wire.ProbeFailed})
				continue
			}
			w.send(c, wire.C2MProbeState{Round: p.Round, State: wire.ProbeReady})
			ready[c] = p.Round
		}
		if asked == 0 {
			break
		}
		if failed {
			withIsland++
		}
		for _, c := range cs {
			if n := ready[c]; n > 0 {
				want[wire.M2CProbeGo](w, c)
				measured++
			}
		}
		for _, c := range cs {
			if n := ready[c]; n > 0 {
				w.send(c, wire.C2MProbeState{Round: n, State: wire.ProbeMeasured, Mbps: 100, Deviation: 1})
			}
		}
	}
	for _, c := range cs {
		want[wire.M2CProbesDone](w, c)
	}
	return withIsland, measured
}
