package master

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/wire"
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

// S1-19: the search in the background is stopped when a member leaves.
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
	require.Greater(t, <-e.stopped, 50*time.Minute)
}
