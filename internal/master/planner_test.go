package master

import (
	"context"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// longJob returns a job that says when it has begun, and goes on until it is stopped.
func longJob(n uint64, begun, ended chan<- uint64) planJob {
	return planJob{n, func(stopped func() bool) (d wire.Direct) {
		begun <- n
		for !stopped() {
			runtime.Gosched() // it computes
		}
		ended <- n
		return d
	}}
}

// A group has one job for its plans at a time; the one that was asked for last comes next, in the
// place of those that wait. The end of the master ends it, and is not waited for.
func TestPlansOneAtATime(t *testing.T) {
	s, err := New(Options{})
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	s.Snapshot() // it serves

	begun, ended := make(chan uint64, 8), make(chan uint64, 8)
	ask := func(group uint32, j planJob) {
		s.machine.mu.Lock()
		defer s.machine.mu.Unlock()
		s.makePlans(ctx, group, j)
	}
	ask(1, longJob(1, begun, ended))
	require.EqualValues(t, 1, <-begun)
	ask(2, longJob(2, begun, ended))
	require.EqualValues(t, 2, <-begun, "groups do not wait for each other")
	s.machine.mu.Lock()
	s.makePlans(ctx, 1, longJob(3, begun, ended))
	s.makePlans(ctx, 1, longJob(4, begun, ended))
	s.machine.mu.Unlock()
	require.EqualValues(t, 1, <-ended)
	require.EqualValues(t, 4, <-begun)

	done := make(chan struct{})
	ask(1, planJob{5, func(func() bool) wire.Direct { close(done); return wire.Direct{} }})
	<-done
	require.EqualValues(t, 4, <-ended)
	require.Eventually(t, func() bool {
		s.machine.mu.Lock()
		defer s.machine.mu.Unlock()
		return len(s.machine.plannings) == 1
	}, 20*time.Second, time.Millisecond, "nothing is left of a group that has nothing to make")

	ask(1, longJob(6, begun, ended))
	require.EqualValues(t, 6, <-begun)
	ask(2, longJob(7, begun, ended))
	cancel()
	require.NoError(t, <-served)
	require.Empty(t, s.machine.plannings)
}

// A group that is too large for plans in a step gets them from beside the machine, while it goes on.
func TestPlansOfALargeGroup(t *testing.T) {
	const n = 10
	h := serve(t, Options{})
	ext := nativeExt
	ext.HeartbeatTimeout = time.Minute
	ext.Switch, ext.Eager, ext.Collectives, ext.Plans = true, true, 1, wire.PlansVersion
	var rs []*raw
	for range n {
		rs = h.grow(rs, ext)
	}
	for _, r := range rs {
		r.send(wire.C2MWantMesh{})
	}
	for _, r := range rs {
		a := wire.C2MMeshPrepared{Change: recv[wire.M2CPrepareMesh](r).Change}
		for _, o := range rs {
			if o != r {
				a.Ways = append(a.Ways, wire.Way{To: o.uuid, RTT: 100_000})
			}
		}
		r.send(a)
	}
	var first wire.Direct
	together(rs, func(r *raw) {
		require.Equal(t, uint8(wire.MeshDirect), recv[wire.M2CMesh](r).Planner)
		r.send(wire.C2MRingPrepared{Change: recv[wire.M2CPrepareRing](r).Change})
	})
	for i, r := range rs {
		d := recv[wire.M2CSwitchRing](r).Direct
		if i == 0 {
			first = d
		}
		require.Equal(t, first, d)
	}
	require.NotZero(t, first.Most)
	if first.Schemes != "" {
		_, err := plan.ParseOptions([]byte(first.Schemes), n)
		require.NoError(t, err)
	}
	h.reduce(rs, 1)
}
