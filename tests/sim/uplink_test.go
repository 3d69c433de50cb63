package sim

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/contention"
	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
	_ "github.com/gopccl/gopccl/solvers/defaults"
)

// site is a simulated network of hosts whose peers share what leads out and in.
type site struct {
	host    []int
	own     topo.Matrix // what the links can carry by themselves
	out, in []float64
}

func (s *site) network() *contention.Network {
	return contention.Shared(s.own.N, s.own.Mbps, s.host, s.out, s.in)
}

// measured returns the slowest link of a ring while all are in use.
func (s *site) measured(t testing.TB, ring []int) float64 {
	var set []contention.Transfer
	for k, i := range ring {
		set = append(set, contention.Transfer{From: i, To: ring[(k+1)%len(ring)]})
	}
	rates, err := s.network().Rates(context.Background(), set)
	require.NoError(t, err)
	return slices.Min(rates)
}

// optimize lets peers of the site optimize with the real master machine, whose
// probes the network answers: all of a round at once. It returns what the master
// asks its solver, in the order of the peers, and the last rates of single
// links that were measured together with others.
func (s *site) optimize(t testing.TB) (mfsm.Solve, topo.Matrix) {
	var w world
	w.rng = 5
	n := s.own.N
	m := mfsm.New(mfsm.Config{Solver: true, NewUUID: func() (u wire.UUID) { // ascending
		w.count++
		u[0] = byte(w.count)
		return u
	}})
	var solve *mfsm.Solve
	peer := map[wire.UUID]int{}
	inbox := make([][]wire.Packet, n)
	step := func(ev mfsm.Event) {
		for _, e := range m.Step(0, ev) {
			switch e := e.(type) {
			case mfsm.Send:
				i := int(e.Client) - 1
				if r, ok := e.Packet.(wire.M2CSessionRegistrationResponse); ok {
					require.True(t, r.Accepted)
					peer[r.UUID] = i
				}
				inbox[i] = append(inbox[i], e.Packet)
			case mfsm.Solve:
				solve = &e
			}
		}
	}
	say := func(i int, p wire.Packet) { step(mfsm.PacketIn{Client: mfsm.ClientID(i + 1), Packet: p}) }
	for i := range n {
		step(mfsm.Connected{Client: mfsm.ClientID(i + 1), Remote: netip.AddrPortFrom(ip(1+s.host[i]), uint16(1000+i))})
		say(i, wire.C2MRequestSessionRegistration{BenchmarkPort: 1, Ext: wire.Ext{Native: true, Topology: true}})
		for k := range i {
			say(k, wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: true})
		}
		for k := range i + 1 {
			say(k, wire.C2MP2PConnectionsEstablished{Success: true})
		}
	}
	clear(inbox)
	for i := range n {
		say(i, wire.C2MOptimizeTopology{})
	}
	together := topo.NewMatrix(n)
	for {
		var set []contention.Transfer
		var round uint64
		for i := range n {
			for _, p := range inbox[i] {
				if p, ok := p.(wire.M2CProbe); ok {
					set, round = append(set, contention.Transfer{From: i, To: peer[p.To]}), p.Round
				}
			}
			inbox[i] = nil
		}
		if len(set) == 0 {
			break
		}
		rates, err := s.network().Rates(context.Background(), set)
		require.NoError(t, err)
		for _, x := range set {
			say(x.From, wire.C2MProbeState{Round: round, State: wire.ProbeReady})
		}
		for k, x := range set {
			if v, known := together.At(x.From, x.To); !known || rates[k] < v {
				together.Set(x.From, x.To, rates[k])
			}
			say(x.From, wire.C2MProbeState{Round: round, State: wire.ProbeMeasured, Mbps: rates[k]})
		}
	}
	for i := range n {
		say(i, wire.C2MOptimizeTopologyWorkComplete{})
	}
	require.NotNil(t, solve)
	for i, u := range solve.Members {
		require.Equal(t, i, peer[u])
	}
	return *solve, together
}

// rings returns the rings that the best solver makes of links measured alone,
// of links measured together, and of links and what they share.
func (s *site) rings(t testing.TB) (alone, together, shared []int, asked mfsm.Solve) {
	asked, joint := s.optimize(t)
	exact, err := topo.Lookup("exact")
	require.NoError(t, err)
	ring := func(m topo.Matrix) []int {
		sol, err := exact.Solve(context.Background(), topo.Problem{Matrix: m, Start: asked.Start}, func(topo.Solution) {})
		require.NoError(t, err)
		return sol.Ring
	}
	single, err := s.network().Alone(context.Background())
	require.NoError(t, err)
	alone = ring(topo.Matrix{N: s.own.N, Mbps: single})
	together = ring(joint)
	shared = together
	if asked.Sharing != nil {
		sol, err := topo.LookupSharing().SolveShared(context.Background(), topo.Problem{Matrix: asked.Matrix, Start: asked.Start}, asked.Sharing, func(topo.Solution) {})
		require.NoError(t, err)
		shared = sol.Ring
	}
	return alone, together, shared, asked
}

// Two peers behind one uplink of 100 Mbit/s and two elsewhere with a slow link
// between them: by single links it is best to leave the host twice; it is not.
func TestTwoPeersBehindOneUplink(t *testing.T) {
	t.Parallel()
	s := &site{host: []int{0, 0, 1, 2}, own: topo.NewMatrix(4), out: []float64{100, 0, 0}, in: make([]float64, 3)}
	for i := range 4 {
		for j := range 4 {
			s.own.Set(i, j, 100)
		}
	}
	s.own.Set(2, 3, 80)
	s.own.Set(3, 2, 80)
	s.own.Set(0, 1, 80)
	s.own.Set(1, 0, 80)
	alone, together, shared, asked := s.rings(t)
	require.NotNil(t, asked.Sharing)
	require.Equal(t, []float64{100, 0, 0}, asked.Sharing.Out)
	require.Equal(t, 50.0, s.measured(t, alone))  // S3-01
	require.Equal(t, 80.0, s.measured(t, shared)) // S3-02
	t.Logf("slowest link while all are in use: ring of links measured alone %.0f, together %.0f, ours %.0f Mbit/s",
		s.measured(t, alone), s.measured(t, together), s.measured(t, shared))
}

// Random sites: the ring that the master adopts against those that matrices of
// links give, measured with all links in use, and against the best of all rings.
func TestRingsOfSharedHosts(t *testing.T) {
	t.Parallel()
	r := rng(11)
	const cases = 120
	var ofAlone, ofTogether, ofBest []float64
	worse := 0
	for range cases {
		n := 5 + r.n(3)
		hosts := 2 + r.n(n-2)
		s := &site{own: topo.NewMatrix(n), out: make([]float64, hosts), in: make([]float64, hosts)}
		for i := range n {
			s.host = append(s.host, r.n(hosts))
			for j := range n {
				s.own.Set(i, j, float64(20+r.n(180)))
			}
		}
		for i := range n {
			for j := range n {
				if s.host[i] == s.host[j] {
					s.own.Set(i, j, float64(100+r.n(900)))
				}
			}
		}
		for h := range hosts {
			s.out[h], s.in[h] = float64(50+r.n(200)), float64(50+r.n(200))
		}
		alone, together, shared, _ := s.rings(t)
		ours := s.measured(t, shared)
		best := 0.0
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		permute(order, 1, func() { best = max(best, s.measured(t, order)) })
		ofAlone = append(ofAlone, ours/s.measured(t, alone))
		ofTogether = append(ofTogether, ours/s.measured(t, together))
		ofBest = append(ofBest, ours/best)
		if ours < s.measured(t, alone)*(1-1e-9) {
			worse++
		}
	}
	show := func(v []float64) string {
		slices.Sort(v)
		return fmt.Sprintf("median %.2f, worst %.2f, best %.2f, mean %.2f", v[len(v)/2], v[0], v[len(v)-1], mean(v))
	}
	t.Logf("slowest link of our ring, while all are in use, in %d sites", cases)
	t.Logf("against the ring of links measured alone: %s (slower in %d)", show(ofAlone), worse)
	t.Logf("against the ring of links measured together: %s", show(ofTogether))
	t.Logf("against the best of all rings: %s", show(ofBest))
	require.Greater(t, mean(ofAlone), 1.0) // S3-01
	require.Greater(t, mean(ofTogether), 1.0)
	require.Greater(t, ofBest[len(ofBest)/2], 0.9)
}

func permute(a []int, k int, f func()) {
	if k == len(a) {
		f()
		return
	}
	for i := k; i < len(a); i++ {
		a[k], a[i] = a[i], a[k]
		permute(a, k+1, f)
		a[k], a[i] = a[i], a[k]
	}
}

// mean is the geometric one.
func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += math.Log(x)
	}
	return math.Exp(sum / float64(len(v)))
}
