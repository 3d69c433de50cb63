package master

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/wire"
)

// endless answers at once, and then searches until it is stopped.
type endless struct{ began, stopped chan time.Duration }

func (endless) Name() string { return "endless" }

func (e endless) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	until, _ := ctx.Deadline()
	sol, _ := p.Solution([]int{0, 1, 2})
	if time.Until(until) < 10*time.Second {
		return sol, nil
	}
	e.began <- time.Until(until)
	better(sol)
	<-ctx.Done()
	e.stopped <- time.Until(until)
	return sol, nil
}

// The search in the background is stopped when a member leaves.
func TestSearchIsStopped(t *testing.T) {
	e := endless{make(chan time.Duration, 1), make(chan time.Duration, 1)}
	topo.Register(e)
	h := serve(t, Options{Solver: "endless", SearchBudget: time.Hour})
	var rs []*raw
	for range 3 {
		rs = h.grow(rs, wire.Ext{})
	}
	for _, r := range rs {
		r.send(wire.C2MOptimizeTopology{})
	}
	for _, r := range rs {
		for _, q := range recv[wire.M2COptimizeTopologyResponse](r).Requests {
			r.send(wire.C2MReportPeerBandwidth{To: q.To, Mbps: 100})
		}
		r.send(wire.C2MOptimizeTopologyWorkComplete{})
	}
	for _, r := range rs {
		recv[wire.M2COptimizeTopologyComplete](r)
	}
	require.Greater(t, <-e.began, 50*time.Minute)
	require.NoError(t, rs[2].nc.Close())
	require.Greater(t, <-e.stopped, 50*time.Minute) // S1-19
}

// planner plans with what is shared: it knows one ring.
type planner struct{ ring []int }

func (planner) Name() string { return "a test of planning" }

func (p planner) Solve(context.Context, topo.Problem, func(topo.Solution)) (topo.Solution, error) {
	return topo.Solution{}, topo.ErrNoRing
}

func (p planner) SolveShared(_ context.Context, q topo.Problem, s *topo.Sharing, _ func(topo.Solution)) (topo.Solution, error) {
	if len(q.Start) == 0 {
		return topo.Solution{}, topo.ErrNoRing
	}
	return topo.Solution{Ring: p.ring, Optimal: true}, nil
}

// fixed is a solver with one answer.
type fixed struct{ ring []int }

func (fixed) Name() string { return "fixed" }

func (f fixed) Solve(_ context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	s, _ := p.Solution(f.ring)
	better(s)
	return s, nil
}

// Where hosts share what leads out of them, the solver's ring is only the start
// of the one that plans with it, and both are valued with all links in use.
func TestSolverOfSharedHosts(t *testing.T) {
	m := topo.NewMatrix(4)
	for i := range m.Mbps {
		m.Mbps[i] = 100
	}
	sh := &topo.Sharing{Host: []int{0, 0, 1, 1}, Out: []float64{100, 0}, In: []float64{0, 0}}
	for _, c := range []struct{ first, second, want []int }{
		{[]int{0, 2, 1, 3}, []int{0, 1, 2, 3}, []int{0, 1, 2, 3}},
		{[]int{0, 1, 2, 3}, []int{0, 2, 1, 3}, []int{0, 1, 2, 3}},
		{[]int{0, 1, 2, 3}, []int{0, 1, 1, 3}, []int{0, 1, 2, 3}},
	} {
		s := &Server{solver: fixed{c.first}}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		var told []topo.Solution
		got, err := s.askShared(ctx, planner{c.second}, topo.Problem{Matrix: m}, sh, func(s topo.Solution) { told = append(told, s) })
		cancel()
		require.NoError(t, err)
		require.Equal(t, c.want, got.Ring)
		require.Equal(t, 100.0, got.Bottleneck)
		require.Equal(t, got.Ring, told[len(told)-1].Ring)
	}
}
