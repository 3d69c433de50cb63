package fsm

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

var upTo32 = wire.Direct{Most: 32, RingUS: 90_000, ExchangeUS: 30_000}

// planner returns a rig in a group with other plans, whose mesh stands.
func planner(t *testing.T, epoch uint64, ring ...int) *rig {
	t.Helper()
	r := newRig(t, Config{EagerBytes: 1024})
	c := r.register(true, wire.Ext{Switch: true, Collectives: 1, Plans: 1})
	r.eagerRound(epoch, ring...)
	r.ok(c)
	r.in(wire.M2CPrepareMesh{Change: 4})
	e := want[PrepareMesh](r)
	require.Equal(t, uids(2, 3), e.Ways, "round trips are asked for where nobody is to be connected, too")
	r.step(MeshPrepared{Change: 4, Ways: []wire.Way{{To: uid(2), RTT: 30_000}}})
	r.sent(wire.C2MMeshPrepared{Change: 4, Ways: []wire.Way{{To: uid(2), RTT: 30_000}}})
	r.in(wire.M2CMesh{Change: 4, Planner: wire.MeshDirect})
	return r
}

// What is commenced behind the switch uses the mesh if it is small and not
// quantized, whenever it was launched; a round ends that.
func TestDirectExchange(t *testing.T) {
	r := planner(t, 0, 1, 2, 3)
	r.launch(1) // 8 elements of 4 bytes
	r.commence(1)
	require.False(t, want[StartData](r).Mesh)
	r.launch(2)
	r.in(wire.M2CPrepareRing{Change: 6, Peers: endpoints(2, 3)})
	r.in(wire.M2CSwitchRing{Change: 6, Ring: uids(1, 2, 3), Direct: upTo32})
	require.Equal(t, upTo32, r.m.View().Direct)
	r.commence(2)
	s := want[StartData](r)
	require.True(t, s.Mesh)
	require.Equal(t, uids(1, 2, 3), s.Members)
	for tag, c := range map[uint64]CallCollective{
		3: {Count: 9, DType: dtype.Float32},
		4: {Count: 1 << 62, DType: dtype.Float64},
		5: {Count: 8, DType: dtype.Float32, Form: wire.FormOf("minmax", dtype.Uint8)},
	} {
		c.Call, c.Op, c.Tag, c.RedOp = r.newCall(), OpID(100+tag), tag, dtype.Sum
		r.step(c)
		r.commence(tag)
		require.False(t, want[StartData](r).Mesh, "%d", tag)
	}
	r = planner(t, 0, 1, 2, 3)
	r.in(wire.M2CPrepareRing{Change: 6, Peers: endpoints(2, 3)})
	r.in(wire.M2CSwitchRing{Change: 6, Ring: uids(1, 2, 3), Direct: upTo32})
	r.update()
	r.round(1, 2, 3)
	require.Zero(t, r.m.View().Direct)
	r.launch(1)
	r.commence(1)
	require.False(t, want[StartData](r).Mesh)
}

// No all-reduce begins eagerly between the offer and the switch, and the answer waits
// for those that have: all members go the same way.
func TestDirectExchangeIsEager(t *testing.T) {
	r := planner(t, 9, 1, 2, 3)
	r.launch(1)
	require.False(t, want[StartData](r).Mesh)
	r.in(wire.M2CPrepareRing{Change: 6, Peers: endpoints(2, 3)})
	_, answered := has[Send](r)
	require.True(t, answered, "the vote goes")
	r.launch(2)
	r.isEager(false)
	r.commence(1)
	r.sent(wire.C2MRingPrepared{Change: 6})
	r.in(wire.M2CSwitchRing{Change: 6, Ring: uids(1, 2, 3), Direct: upTo32})
	r.launch(3)
	r.isEager(true)
	require.True(t, want[StartData](r).Mesh)
}

// All-reduces take the plan that their size has, whatever is said of small ones, and begin
// eagerly if they are small; a round ends that.
func TestSchemes(t *testing.T) {
	o := plan.Options{List: []plan.Option{{From: 16, Scheme: plan.Direct(3, []uint32{0, 1, 2})}, {From: 64}}}
	for _, c := range []struct {
		bytes       uint64
		mesh, large bool
	}{{8, true, false}, {16, true, true}, {60, true, true}, {64, false, false}} {
		r := planner(t, 9, 1, 2, 3)
		r.in(wire.M2CPrepareRing{Change: 6, Peers: endpoints(2, 3)})
		r.in(wire.M2CSwitchRing{Change: 6, Ring: uids(1, 2, 3), Direct: wire.Direct{Most: 20, Schemes: string(o.Encode())}})
		r.step(CallCollective{Call: r.newCall(), Op: 100, Tag: 1, Count: c.bytes / 4, DType: dtype.Float32, RedOp: dtype.Sum})
		r.isEager(true)
		s := want[StartData](r)
		require.Equal(t, c.mesh, s.Mesh)
		require.Equal(t, c.large, s.Large != nil, "%d bytes", c.bytes)
		if c.large {
			require.Equal(t, o.List[0].Scheme.Trees, s.Large.Scheme.Trees)
		}
	}
	// Without a mesh the ring has to be prepared with those whom plans need.
	for _, ways := range []bool{true, false} {
		r := newRig(t, Config{EagerBytes: 1024})
		c := r.register(true, wire.Ext{Switch: true, Collectives: 1, Plans: wire.WayPlans})
		r.eagerRound(9, 1, 2, 4, 3)
		r.ok(c)
		r.in(wire.M2CMesh{Change: 4, Planner: wire.MeshNone})
		owner := slices.Index(r.m.View().Members, uid(4))
		up := slices.Repeat([]int{owner}, 4)
		up[owner] = -1
		star := plan.Options{List: []plan.Option{{Scheme: &plan.Scheme{Name: "star", Trees: []plan.Tree{{Weight: 1, Up: up, Down: up}}}}}}
		p := wire.M2CPrepareRing{Change: 6, Peers: endpoints(2, 3)}
		if ways {
			p.Peers = endpoints(2, 3, 4)
		}
		r.in(p)
		if ways {
			e := want[PrepareRing](r)
			require.Equal(t, endpoints(4), e.Ways)
			r.step(RingPrepared{Change: 6})
		}
		r.in(wire.M2CSwitchRing{Change: 6, Ring: uids(1, 2, 4, 3), Direct: wire.Direct{Schemes: string(star.Encode())}})
		if !ways {
			require.ErrorIs(t, r.m.ended, errs.Protocol)
			continue
		}
		require.Equal(t, uids(2, 3, 4), want[SwitchRing](r).Neighbours)
		require.Equal(t, uids(2, 3, 4), want[Release](r).Keep)
		r.launch(1)
		r.isEager(true)
		s := want[StartData](r)
		require.True(t, s.Mesh)
		require.Equal(t, "star", s.Large.Scheme.Name)
		require.Zero(t, r.m.View().Direct.Most)
	}

	r := planner(t, 0, 1, 2, 3)
	r.in(wire.M2CPrepareRing{Change: 6, Peers: endpoints(2, 3)})
	r.in(wire.M2CSwitchRing{Change: 6, Ring: uids(1, 2, 3), Direct: wire.Direct{Schemes: string(o.Encode())}})
	require.NotNil(t, r.m.View().Large)
	r.update()
	r.round(1, 2, 3)
	require.Nil(t, r.m.View().Large)
}

// A master whose plans are none ends the session.
func TestWrongSchemes(t *testing.T) {
	o := plan.Options{List: []plan.Option{{From: 16, Scheme: plan.Direct(3, nil)}}}
	o.List[0].Scheme.Trees[1].Up = []int{2, -1, 0}
	for name, schemes := range map[string]string{"a cycle": string(o.Encode()), "cut": string(o.Encode())[:9]} {
		r := planner(t, 0, 1, 2, 3)
		r.in(wire.M2CPrepareRing{Change: 6, Peers: endpoints(2, 3)})
		r.in(wire.M2CSwitchRing{Change: 6, Ring: uids(1, 2, 3), Direct: wire.Direct{Schemes: schemes}})
		want[Disconnect](r)
		require.ErrorIs(t, r.m.ended, errs.Protocol, name)
	}
}

// A peer with a distant neighbour asks for a mesh behind the round; not where nobody
// could use it.
func TestDistantPeersAskForAMesh(t *testing.T) {
	for name, c := range map[string]struct {
		far, asks bool
		master    wire.Ext
		ring      []int
	}{
		"far":          {true, true, wire.Ext{Switch: true, Collectives: 1, Plans: 1}, []int{1, 2, 3}},
		"near":         {false, false, wire.Ext{Switch: true, Collectives: 1, Plans: 1}, []int{1, 2, 3}},
		"two":          {true, true, wire.Ext{Switch: true, Collectives: 1, Plans: wire.PairPlans}, []int{1, 2}},
		"two, older":   {true, false, wire.Ext{Switch: true, Collectives: 1, Plans: wire.WayPlans}, []int{1, 2}},
		"older master": {true, false, wire.Ext{Switch: true, Collectives: 1}, []int{1, 2, 3}},
		"no switch":    {true, false, wire.Ext{Collectives: 1, Plans: 1}, []int{1, 2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{})
			call := r.register(true, c.master)
			r.in(r.info(c.ring))
			r.step(Established{Round: want[Establish](r).Round, Far: c.far})
			r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(c.ring...)})
			asks := false
			for _, e := range r.fx {
				if s, ok := e.(Send); ok && s.Packet == (wire.C2MWantMesh{}) {
					asks = true
				}
			}
			require.Equal(t, c.asks, asks)
			r.ok(call)
		})
	}
}

// A master that tells of a direct exchange without a mesh ends the session.
func TestDirectExchangeNeedsAMesh(t *testing.T) {
	r := newRig(t, Config{})
	c := r.register(true, wire.Ext{Switch: true, Collectives: 1, Plans: 1})
	r.round(1, 2, 3)
	r.ok(c)
	r.in(wire.M2CPrepareRing{Change: 6, Peers: endpoints(2, 3)})
	r.in(wire.M2CSwitchRing{Change: 6, Ring: uids(1, 2, 3), Direct: upTo32})
	want[Disconnect](r)
	require.ErrorIs(t, r.m.ended, errs.Protocol)
}

// Two members are told of an exchange without anybody to connect with.
func TestDirectExchangeOfTwo(t *testing.T) {
	r := newRig(t, Config{EagerBytes: 1024})
	c := r.register(true, wire.Ext{Switch: true, Collectives: 1, Plans: wire.PairPlans})
	r.eagerRound(9, 1, 2)
	r.ok(c)
	r.in(wire.M2CPrepareMesh{Change: 4})
	require.Equal(t, uids(2), want[PrepareMesh](r).Ways)
	r.step(MeshPrepared{Change: 4, Ways: []wire.Way{{To: uid(2), RTT: 30_000}}})
	r.sent(wire.C2MMeshPrepared{Change: 4, Ways: []wire.Way{{To: uid(2), RTT: 30_000}}})
	r.in(wire.M2CMesh{Change: 4, Planner: wire.MeshDirect})
	r.in(wire.M2CPrepareRing{Change: 6, Peers: endpoints(2)})
	r.sent(wire.C2MRingPrepared{Change: 6})
	r.in(wire.M2CSwitchRing{Change: 6, Ring: uids(1, 2), Direct: upTo32})
	r.launch(1)
	r.isEager(true)
	require.True(t, want[StartData](r).Mesh)
}
