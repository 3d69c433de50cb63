package fsm

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// planners builds a world of n members that know other plans than the ring, but for
// the last of them if it is said to be older.
func planners(t *testing.T, n int, older bool) (*world, []ClientID) {
	plans := slices.Repeat([]uint8{1}, n)
	if older {
		plans[n-1] = 0
	}
	return versed(t, plans...)
}

// versed builds a world of members that announced these versions of plans.
func versed(t *testing.T, plans ...uint8) (*world, []ClientID) {
	w := newWorld(t, Config{Switch: true})
	var cs []ClientID
	for _, version := range plans {
		old := w.accepted()
		c := w.connectAt("127.0.0.1:4000")
		x := wire.Ext{Native: true, Switch: true, Early: wire.Early{Eager: true}, Collectives: 1, Plans: version}
		w.send(c, wire.C2MRequestSessionRegistration{P2PPort: 1, Ext: x})
		require.Equal(t, version, want[wire.M2CSessionRegistrationResponse](w, c).Ext.Plans)
		for _, o := range old {
			w.send(o, acceptVote)
		}
		w.round(true)
		cs = append(cs, c)
	}
	w.facts = nil
	return w, cs
}

// meshed has cs ask for a mesh and connect, with ways of this length.
func (w *world) meshed(cs []ClientID, rtt time.Duration) {
	w.t.Helper()
	w.meshedBy(cs, func(int, int) time.Duration { return rtt })
}

func (w *world) meshedBy(cs []ClientID, rtt func(i, k int) time.Duration) {
	w.t.Helper()
	w.all(cs, wire.C2MWantMesh{})
	change := w.preparing(cs)
	for i, c := range cs {
		p := wire.C2MMeshPrepared{Change: change}
		for k, o := range cs {
			if k > i { // one end of each pair is enough
				p.Ways = append(p.Ways, wire.Way{To: w.ids[o], RTT: uint32(rtt(i, k).Microseconds())})
			}
		}
		w.send(c, p)
	}
	w.told(cs, change, wire.MeshDirect)
}

// partly has members that are not all connected with each other afterwards connect, and returns how many
// were to connect with each. closed are pairs of which the first one cannot reach the second.
func (w *world) partly(cs []ClientID, rtt time.Duration, closed ...[2]ClientID) (marked map[wire.UUID]int) {
	w.t.Helper()
	w.all(cs, wire.C2MWantMesh{})
	var change uint64
	marked = map[wire.UUID]int{}
	for _, c := range cs {
		p := want[wire.M2CPrepareMesh](w, c)
		require.LessOrEqual(w.t, len(p.Peers), landmarks)
		change = p.Change
		a := wire.C2MMeshPrepared{Change: change}
		for _, e := range p.Peers {
			marked[e.UUID]++
			if slices.ContainsFunc(closed, func(p [2]ClientID) bool { return p[0] == c && w.ids[p[1]] == e.UUID }) {
				a.FailedPeers = append(a.FailedPeers, e.UUID)
				continue
			}
			a.Ways = append(a.Ways, wire.Way{To: e.UUID, RTT: uint32(rtt.Microseconds())})
		}
		for _, u := range neighbours(w.m.groups[0].ring, w.ids[c]) {
			a.Ways = append(a.Ways, wire.Way{To: u, RTT: uint32(rtt.Microseconds())})
		}
		w.send(c, a)
	}
	w.told(cs, change, wire.MeshNone)
	return marked
}

// switched takes the offer to cs, has them answer, and returns what they are told.
func (w *world) switched(cs []ClientID) (d wire.Direct) {
	w.t.Helper()
	var change uint64
	for _, c := range cs {
		change = want[wire.M2CPrepareRing](w, c).Change
	}
	w.all(cs, wire.C2MRingPrepared{Change: change})
	for i, c := range cs {
		p := want[wire.M2CSwitchRing](w, c)
		require.Equal(w.t, change, p.Change)
		require.Len(w.t, p.Ring, len(cs))
		if i == 0 {
			d = p.Direct
		}
		require.Equal(w.t, d, p.Direct)
	}
	return d
}

// A mesh of distant members is used for small all-reduces: all are told the same, at
// one place, in the ring that they have. A round ends it.
func TestDirectExchangeIsTold(t *testing.T) {
	w, cs := planners(t, 4, false)
	ring := w.m.groups[0].ring
	w.meshed(cs, 100*time.Millisecond)
	d := w.switched(cs)
	require.Equal(t, uint32(300_000), d.RingUS)
	require.Equal(t, uint32(100_000), d.ExchangeUS)
	require.Greater(t, d.Most, uint64(400_000))
	require.Equal(t, ring, w.m.groups[0].ring)
	require.Contains(t, w.factOf("plan").Text, "100ms, to 300ms along the ring")
	w.quiet(cs...)
	w.infos(cs)
	require.Zero(t, w.m.groups[0].mesh.direct)
	w.meshed(cs, 100*time.Millisecond)
	require.Equal(t, d, w.switched(cs))
}

// With rates that differ, members are told of plans for large all-reduces, in the order
// in which they count themselves; not if one of them does not know such plans.
func TestSchemesAreTold(t *testing.T) {
	for _, plans := range []uint8{wire.PlansVersion, wire.SchemePlans - 1} {
		w, cs := versed(t, wire.PlansVersion, wire.PlansVersion, plans, wire.PlansVersion)
		g := w.m.groups[0]
		up := []float64{20, 100, 200, 400}
		w.waysGive(g, func(from, _ int) float64 { return up[from] })
		w.facts = nil
		w.meshed(cs, 40*time.Millisecond)
		d := w.switched(cs)
		require.NotZero(t, d.Most)
		if plans < wire.SchemePlans {
			require.Empty(t, d.Schemes)
			continue
		}
		o, err := plan.ParseOptions([]byte(d.Schemes), 4)
		require.NoError(t, err)
		at := o.For(16 << 20)
		require.Equal(t, "shares", at.Scheme.Name)
		require.Zero(t, at.Scheme.Trees[0].Weight)
		require.Greater(t, at.Scheme.Trees[3].Weight, at.Scheme.Trees[1].Weight)
		require.True(t, g.mesh.exchanged(16<<20))
		require.Equal(t, o.For(d.Most+1) != nil, g.mesh.exchanged(d.Most+1), "between small and large")
		w.infos(cs)
		require.False(t, w.m.groups[0].mesh.exchanged(16<<20))
	}
}

// Nobody is told of it where it spares nothing, or somebody does not know it.
func TestDirectExchangeIsNotTold(t *testing.T) {
	for name, c := range map[string]struct {
		n     int
		older bool
		rtt   time.Duration
	}{
		"near":         {4, false, 300 * time.Microsecond},
		"older member": {4, true, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			w, cs := planners(t, c.n, c.older)
			w.meshed(cs, c.rtt)
			w.quiet(cs...)
		})
	}
	t.Run("a way is not known", func(t *testing.T) {
		w, cs := planners(t, 4, false)
		w.all(cs, wire.C2MWantMesh{})
		w.all(cs, wire.C2MMeshPrepared{Change: w.preparing(cs)})
		for _, c := range cs {
			want[wire.M2CMesh](w, c)
		}
		w.quiet(cs...)
	})
}

// An offer that not all answer in time, because one waits for an operation that it
// has begun eagerly, is repeated when no operation is under way any more.
func TestDirectExchangeIsToldAgain(t *testing.T) {
	w, cs := planners(t, 3, false)
	w.meshed(cs, 100*time.Millisecond)
	for _, c := range cs {
		want[wire.M2CPrepareRing](w, c)
	}
	w.after(prepareTime)
	for _, c := range cs {
		require.Empty(t, want[wire.M2CSwitchRing](w, c).Ring)
	}
	w.quiet(cs...)
	w.sums(cs)
	require.NotZero(t, w.switched(cs).Most)
}

// A member that leaves while it is offered ends the offer, and the next round the mesh.
func TestDirectExchangeOfThoseThatStay(t *testing.T) {
	w, cs := planners(t, 4, false)
	w.meshed(cs, 100*time.Millisecond)
	for _, c := range cs {
		want[wire.M2CPrepareRing](w, c)
	}
	w.leave(cs[3])
	for _, c := range cs[:3] {
		w.drain([]ClientID{c})
	}
	w.infos(cs[:3])
	w.meshed(cs[:3], 100*time.Millisecond)
	require.NotZero(t, w.switched(cs[:3]).Most)
}

// A group that is too large for a mesh tells how far its members are from some of them, and
// connects for plans one by one, the neighbours first. Where that fails another plan
// follows, without the way that is none.
func TestPlansOfALargeGroup(t *testing.T) {
	const n = meshPeers + 4
	w := newWorld(t, Config{Switch: true})
	var cs []ClientID
	for range n {
		old := w.accepted()
		c := w.connectAt("127.0.0.1:4000")
		w.send(c, wire.C2MRequestSessionRegistration{P2PPort: 1, Ext: wire.Ext{Native: true, Switch: true, Early: wire.Early{Eager: true}, Collectives: 1, Plans: wire.PlansVersion}})
		want[wire.M2CSessionRegistrationResponse](w, c)
		for _, o := range old {
			w.send(o, acceptVote)
		}
		w.round(true)
		cs = append(cs, c)
	}
	w.facts = nil
	g := w.m.groups[0]
	require.Len(t, w.partly(cs, 100*time.Millisecond), landmarks)
	w.made()
	require.False(t, g.mesh.untold() && g.change == nil)

	var change uint64
	offered := func() (lists [][]wire.PeerEndpoint) {
		for _, c := range cs {
			p := want[wire.M2CPrepareRing](w, c)
			change = p.Change
			near := neighbours(g.ring, w.ids[c])
			require.Equal(t, near, []wire.UUID{p.Peers[0].UUID, p.Peers[1].UUID})
			lists = append(lists, p.Peers)
		}
		return lists
	}
	lists := offered()
	bad := lists[0][2].UUID
	w.send(cs[0], wire.C2MRingPrepared{Change: change, FailedPeers: []wire.UUID{bad}})
	for _, c := range cs {
		require.Empty(t, want[wire.M2CSwitchRing](w, c).Ring)
	}
	w.quiet(cs...)
	w.sums(cs)
	w.quiet(cs...)
	w.made()
	lists = offered()
	w.all(cs, wire.C2MRingPrepared{Change: change})
	var d wire.Direct
	for _, c := range cs {
		d = want[wire.M2CSwitchRing](w, c).Direct
		require.Zero(t, d.Most)
	}
	o, err := plan.ParseOptions([]byte(d.Schemes), n)
	require.NoError(t, err)
	at := o.For(4)
	require.NotNil(t, at)
	require.LessOrEqual(t, at.Delay, 130*time.Millisecond)
	for i, with := range at.Scheme.Ways(n) {
		c := w.m.uuids[g.roster[i]]
		for _, k := range with {
			require.NotEqual(t, [2]wire.UUID{w.ids[cs[0]], bad}, [2]wire.UUID{c.uuid, g.roster[k]})
			list := lists[slices.Index(cs, c.id)]
			require.True(t, slices.ContainsFunc(list, func(e wire.PeerEndpoint) bool { return e.UUID == g.roster[k] }))
		}
	}
	require.True(t, g.mesh.exchanged(4))
	w.infos(cs)
	require.False(t, g.mesh.exchanged(4))
}

// sums has cs do an all-reduce.
func (w *world) sums(cs []ClientID) {
	w.all(cs, initiate(1))
	w.commenced(cs, 1)
	w.all(cs, complete(1, false))
	w.verdict(cs, 1, false)
	for _, c := range cs {
		want[wire.M2CCollectiveCommsComplete](w, c)
	}
}

// Two distant members exchange in one hop, if both know what that is.
func TestDirectExchangeOfTwoIsTold(t *testing.T) {
	for _, plans := range []uint8{wire.PairPlans, wire.WayPlans} {
		w, cs := versed(t, wire.PairPlans, plans)
		w.meshed(cs, 100*time.Millisecond)
		if plans < wire.PairPlans {
			w.quiet(cs...)
			continue
		}
		d := w.switched(cs)
		require.Equal(t, uint32(100_000), d.RingUS)
		require.Equal(t, uint32(50_000), d.ExchangeUS)
		require.EqualValues(t, 4<<20, d.Most)
	}
}
