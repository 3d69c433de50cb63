package fsm

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// switcher returns a rig with a live session that can switch rings.
func switcher(t *testing.T, ring ...int) *rig {
	t.Helper()
	r := newRig(t, Config{})
	c := r.register(true, wire.Ext{Topology: true, Switch: true})
	r.in(wire.M2CP2PConnectionInfo{
		GlobalWorldSize: uint64(len(ring)), LocalWorldSize: uint64(len(ring)), NumDistinctGroup: 1,
		LargestGroupSize: uint64(len(ring)), Ext: wire.Ext{GroupNative: true}, Peers: endpoints(ring[1], ring[len(ring)-1]),
	})
	r.step(Established{Round: want[Establish](r).Round})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(ring...)})
	r.ok(c)
	return r
}

// Operations that were commenced stay in their ring, those that were not, and
// those to come, use the new one. Connections go when nothing needs them.
func TestSwitchRing(t *testing.T) {
	r := switcher(t, 1, 2, 3, 4, 5)
	running := r.launch(1)
	r.commence(1)
	require.Equal(t, uids(1, 2, 3, 4, 5), want[StartData](r).Ring)
	voting := r.launch(2)
	r.in(wire.M2CPrepareRing{Change: 7, Peers: endpoints(3, 5)})
	require.Equal(t, PrepareRing{Change: 7, Peers: endpoints(3)}, want[PrepareRing](r), "peer 5 is a neighbour already")
	r.silent()
	r.step(RingPrepared{Change: 6})
	r.silent()
	r.step(RingPrepared{Change: 7})
	r.sent(wire.C2MRingPrepared{Change: 7})
	r.step(RingPrepared{Change: 7})
	r.silent()
	require.Equal(t, uids(1, 2, 3, 4, 5), r.m.View().Ring)
	r.in(wire.M2CSwitchRing{Change: 7, Ring: uids(3, 1, 5, 2, 4)})
	require.Equal(t, SwitchRing{Neighbours: uids(3, 5)}, want[SwitchRing](r))
	_, early := has[Release](r)
	require.False(t, early, "operation 1 uses the connection to peer 2")
	require.Equal(t, uids(3, 1, 5, 2, 4), r.m.View().Ring)
	require.Equal(t, 1, r.m.View().Rank)
	r.commence(2)
	require.Equal(t, uids(3, 1, 5, 2, 4), want[StartData](r).Ring)
	r.step(DataEnded{Op: voting})
	r.abort(2, false)
	r.complete(2)
	_, early = has[Release](r)
	require.False(t, early)
	r.step(DataEnded{Op: running})
	r.abort(1, false)
	r.complete(1)
	require.Equal(t, Release{Keep: uids(3, 5)}, want[Release](r))
	r.ok(r.await(running))
	r.ok(r.await(voting))
	// A round that says that nothing has changed means the ring of the switch.
	r.update()
	r.in(wire.M2CP2PConnectionInfo{Unchanged: true, GlobalWorldSize: 5, LocalWorldSize: 5, NumDistinctGroup: 1, LargestGroupSize: 5, Ext: wire.Ext{GroupNative: true}})
	require.Equal(t, endpoints(3, 5), want[Establish](r).Peers)
}

// A change that is given up leaves everything as it was.
func TestSwitchIsGivenUp(t *testing.T) {
	r := switcher(t, 1, 2, 3, 4, 5)
	// While it is worked on.
	r.in(wire.M2CPrepareRing{Change: 1, Peers: endpoints(3, 4)})
	r.in(wire.M2CSwitchRing{Change: 1})
	require.Equal(t, StopPrepare{Change: 1}, want[StopPrepare](r))
	require.Equal(t, Release{Keep: uids(2, 5)}, want[Release](r))
	r.step(RingPrepared{Change: 1})
	r.silent()
	// When it could not be done.
	r.in(wire.M2CPrepareRing{Change: 2, Peers: endpoints(3, 4)})
	r.step(RingPrepared{Change: 2, Failed: uids(4)})
	r.sent(wire.C2MRingPrepared{Change: 2, FailedPeers: uids(4)})
	r.in(wire.M2CSwitchRing{Change: 2})
	_, stopped := has[StopPrepare](r)
	require.False(t, stopped)
	want[Release](r)
	// When it was not begun here.
	r.in(wire.M2CSwitchRing{Change: 3})
	require.Empty(t, r.fx)
	// By a round.
	r.in(wire.M2CPrepareRing{Change: 4, Peers: endpoints(3, 4)})
	c := r.update()
	r.in(wire.M2CSwitchRing{Change: 4})
	r.round(1, 2, 3, 4, 5)
	r.ok(c)
	require.Equal(t, uids(1, 2, 3, 4, 5), r.m.View().Ring)
	// An order of the same neighbours needs no connection.
	r.in(wire.M2CPrepareRing{Change: 5, Peers: endpoints(5, 2)})
	r.sent(wire.C2MRingPrepared{Change: 5})
}

// Connections of the ring before stay while a new one is prepared.
func TestReleaseKeepsWhatIsPrepared(t *testing.T) {
	r := switcher(t, 1, 2, 3, 4, 5)
	op := r.launch(1)
	r.commence(1)
	r.in(wire.M2CPrepareRing{Change: 1, Peers: endpoints(3, 5)})
	r.step(RingPrepared{Change: 1})
	r.in(wire.M2CSwitchRing{Change: 1, Ring: uids(1, 3, 2, 4, 5)})
	r.in(wire.M2CPrepareRing{Change: 2, Peers: endpoints(2, 5)})
	require.Equal(t, endpoints(2), want[PrepareRing](r).Peers)
	r.step(DataEnded{Op: op})
	r.abort(1, false)
	r.complete(1)
	require.Equal(t, Release{Keep: uids(3, 5, 2, 5)}, want[Release](r))
}

// A packet that a master must not send ends the session.
func TestSwitchAgainstTheRules(t *testing.T) {
	prepare := func(ns ...int) wire.Packet { return wire.M2CPrepareRing{Change: 1, Peers: endpoints(ns...)} }
	ring := func(ns ...int) wire.Packet { return wire.M2CSwitchRing{Change: 1, Ring: uids(ns...)} }
	for i, ps := range [][]wire.Packet{
		{prepare()},
		{prepare(1, 2)},
		{prepare(2, 9)},
		{prepare(2, 2)},
		{wire.M2CPrepareRing{Change: 1, Peers: []wire.PeerEndpoint{{UUID: uid(2)}}}},
		{prepare(3, 4), prepare(3, 4)},
		{ring(1, 2, 3, 4, 5)},
		{prepare(3, 4), ring(1, 3, 2, 5, 4)}, // nothing was said to stand
		{prepare(2, 5), ring(1, 3, 2, 5, 4)}, // others stand
		{prepare(2, 5), ring(2, 3, 4, 5, 6)},
		{prepare(2, 5), ring(1, 2, 3, 5)},
		{prepare(2, 5), ring(1, 2, 3, 3, 5)},
		{prepare(2, 5), ring(1, 2, 3, 6, 5)},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r := switcher(t, 1, 2, 3, 4, 5)
			for _, p := range ps {
				_, over := has[Disconnect](r)
				require.False(t, over)
				r.in(p)
			}
			want[Disconnect](r)
			require.ErrorIs(t, r.m.ended, errs.Protocol)
		})
	}
	for name, p := range map[string]wire.Packet{"prepare": prepare(2, 5), "switch": wire.M2CSwitchRing{Change: 1}} {
		t.Run(name+" without the capability", func(t *testing.T) {
			r := connected(t, true, 1, 2, 3, 4, 5)
			r.in(p)
			want[Disconnect](r)
		})
		t.Run(name+" in a round", func(t *testing.T) {
			r := switcher(t, 1, 2, 3, 4, 5)
			r.update()
			r.in(r.info([]int{1, 2, 3, 4, 5}))
			r.in(p)
			_, over := has[Disconnect](r)
			require.Equal(t, name == "prepare", over, "a change may be given up at any time")
		})
	}
}
