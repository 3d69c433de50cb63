package fsm

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// Control spec, section 13.3: connect.
func TestConnectRegistersAndWaitsToBeLetIn(t *testing.T) {
	r := newRig(t, Config{
		Group: 3, P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 4,
		HeartbeatInterval: 2 * time.Second, HeartbeatTimeout: 8 * time.Second,
	})
	c := r.newCall()
	r.step(CallConnect{Call: c})
	r.sent(wire.C2MRequestSessionRegistration{
		P2PPort: 1, SharedStatePort: 2, BenchmarkPort: 4, PeerGroup: 3,
		Ext: wire.Ext{Native: true, HeartbeatInterval: 2 * time.Second, HeartbeatTimeout: 8 * time.Second, Topology: true, Switch: true, Preflight: true, Collectives: 1, Plans: wire.PlansVersion, Early: wire.Early{Forward: wire.ForwardVersion}},
	})
	r.in(wire.M2CSessionRegistrationResponse{Accepted: true, UUID: uid(1), Ext: wire.Ext{Native: true, RoundBound: 12 * time.Second}})
	r.silent()
	r.unanswered(c)
	r.native = true
	r.round(1, 2)
	r.ok(c)
	require.Equal(t, View{facts: facts{
		Connected: true, UUID: uid(1), GlobalWorldSize: 2, LocalWorldSize: 2, NumGroups: 1,
		LargestGroupSize: 2, Rank: 0, Native: true, MasterNative: true,
		RoundBound: 12 * time.Second, Lacks: "the master is an older gopccl",
	}, Ring: uids(1, 2)}, r.m.View())
}

// A preflight goes on beside everything, before the peer is let in as well as
// after; its answer goes out in every state, and not after the end.
func TestPreflight(t *testing.T) {
	r := newRig(t, Config{P2PPort: 1})
	try := func(n uint64) {
		r.in(wire.M2CPreflight{Number: n, Peers: endpoints(2, 3)})
		require.Equal(t, Preflight{Number: n, Peers: endpoints(2, 3)}, want[Preflight](r))
		r.silent()
	}
	r.step(CallConnect{Call: r.newCall()})
	r.in(wire.M2CSessionRegistrationResponse{Accepted: true, UUID: uid(1), Ext: wire.Ext{Native: true}})
	try(7)
	try(8)
	r.step(Preflighted{Number: 8, Failed: uids(3)})
	r.sent(wire.C2MPreflightDone{Number: 8, FailedPeers: uids(3)})
	r.native = true
	r.round(1, 2)
	r.step(Preflighted{Number: 7})
	r.sent(wire.C2MPreflightDone{Number: 7})
	try(9)
	update := r.newCall()
	r.step(CallUpdate{Call: update})
	r.step(Preflighted{Number: 9})
	r.sent(wire.C2MPreflightDone{Number: 9})
	for n := range uint64(maxPreflights) {
		try(10 + n)
	}
	r.in(wire.M2CPreflight{Number: 100, Peers: endpoints(2)}) // more than it can do
	r.silent()
	r.step(Preflighted{Number: 10})
	r.sent(wire.C2MPreflightDone{Number: 10})
	try(101)
	r.in(wire.M2CPreflight{Number: 102, Peers: make([]wire.PeerEndpoint, maxPreflights+1)})
	r.failed(update, errs.UpdateTopologyFailed, errs.Protocol)
	r.step(Preflighted{Number: 11})
	r.silent()

	// A PCCL master has no business with it.
	r = newRig(t, Config{})
	c := r.newCall()
	r.step(CallConnect{Call: c})
	r.in(wire.M2CSessionRegistrationResponse{Accepted: true, UUID: uid(1)})
	r.in(wire.M2CPreflight{Number: 1})
	r.failed(c, errs.MasterConnectionFailed, errs.Protocol)
}

func TestConnectRetriesAFailedRoundWithAcceptVotes(t *testing.T) {
	r := newRig(t, Config{})
	c := r.register(false, wire.Ext{})
	r.in(r.info([]int{1, 2}))
	r.step(Established{Round: want[Establish](r).Round})
	r.in(wire.M2CP2PConnectionsEstablished{})
	r.sent(vote1)
	r.round(1, 2)
	r.ok(c)
}

func TestConnectRefusals(t *testing.T) {
	t.Run("twice", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		c := r.newCall()
		r.step(CallConnect{Call: c})
		r.failed(c, errs.InvalidUsage)
		r.silent()
	})
	t.Run("while connecting", func(t *testing.T) {
		r := newRig(t, Config{})
		r.register(true, wire.Ext{})
		c := r.newCall()
		r.step(CallConnect{Call: c})
		r.failed(c, errs.Busy)
	})
	t.Run("after the connection was lost", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		r.step(MasterGone{})
		c := r.newCall()
		r.step(CallConnect{Call: c})
		r.failed(c, errs.InvalidUsage, errs.MasterLost)
	})
	t.Run("registration refused", func(t *testing.T) {
		r := newRig(t, Config{})
		c := r.newCall()
		r.step(CallConnect{Call: c})
		r.in(wire.M2CSessionRegistrationResponse{UUID: uid(1), Ext: wire.Ext{Reason: "full", ReasonCode: uint16(errs.InvalidUsage)}})
		e := r.failed(c, errs.MasterConnectionFailed, errs.InvalidUsage)
		require.ErrorContains(t, e, "full")
		want[Disconnect](r)
	})
	t.Run("no answer", func(t *testing.T) {
		r := newRig(t, Config{RegisterTimeout: 5 * time.Second})
		r.now = time.Hour
		c := r.newCall()
		r.step(CallConnect{Call: c})
		at, ok := r.m.Deadline()
		require.True(t, ok)
		require.Equal(t, time.Hour+5*time.Second, at)
		r.now = at - 1
		r.step(Tick{})
		r.unanswered(c)
		r.now = at
		r.step(Tick{})
		r.failed(c, errs.MasterConnectionFailed, errs.Timeout)
		want[Disconnect](r)
		_, ok = r.m.Deadline()
		require.False(t, ok)
	})
	t.Run("the wait to be let in has no bound of its own", func(t *testing.T) {
		r := newRig(t, Config{RegisterTimeout: time.Second})
		r.register(true, wire.Ext{})
		_, ok := r.m.Deadline()
		require.False(t, ok)
	})
}

// Quirk Q65: gopccl peers keep each other informed that they live.
func TestHeartbeats(t *testing.T) {
	start := func(t *testing.T) *rig {
		r := newRig(t, Config{HeartbeatInterval: time.Second, HeartbeatTimeout: 4 * time.Second})
		// The granted values rule.
		c := r.register(true, wire.Ext{HeartbeatInterval: 2 * time.Second, HeartbeatTimeout: 8 * time.Second})
		r.round(1, 2)
		r.ok(c)
		return r
	}
	t.Run("sent at the granted interval", func(t *testing.T) {
		r := start(t)
		for k := 1; k <= 3; k++ {
			at, ok := r.m.Deadline()
			require.True(t, ok)
			require.Equal(t, time.Duration(k)*2*time.Second, at)
			r.now = at
			r.step(Tick{})
			r.sent(wire.C2MHeartbeat{})
		}
	})
	t.Run("a silent master ends the session", func(t *testing.T) {
		r := start(t)
		c := r.update()
		for r.dones[c].Err == nil {
			at, ok := r.m.Deadline()
			require.True(t, ok)
			require.LessOrEqual(t, at, 8*time.Second)
			r.now = at
			r.step(Tick{})
		}
		require.Equal(t, 8*time.Second, r.now)
		e := r.failed(c, errs.UpdateTopologyFailed, errs.MasterLost)
		require.ErrorContains(t, e, "no sign of life for 8s")
		require.Equal(t, hintReconnect, e.Hint)
	})
	t.Run("every packet is a sign of life", func(t *testing.T) {
		r := start(t)
		for k := 0; k < 20; k++ {
			r.now += 2 * time.Second
			r.step(Tick{})
			r.in(wire.M2CHeartbeat{})
		}
		require.True(t, r.m.View().Connected)
	})
	t.Run("a stopped process reads first and judges later", func(t *testing.T) {
		r := start(t)
		r.now = time.Minute
		r.step(Tick{})
		require.True(t, r.m.View().Connected)
		at, _ := r.m.Deadline()
		require.Equal(t, time.Minute+2*time.Second, at)
		r.now = at
		r.step(Tick{})
		require.False(t, r.m.View().Connected)
	})
	t.Run("a stopped process that reads goes on", func(t *testing.T) {
		r := start(t)
		r.now = time.Minute
		r.step(Tick{})
		r.in(wire.M2CHeartbeat{})
		r.now += 2 * time.Second
		r.step(Tick{})
		require.True(t, r.m.View().Connected)
	})
	t.Run("none with a PCCL master", func(t *testing.T) {
		r := newRig(t, Config{HeartbeatInterval: time.Second, HeartbeatTimeout: 4 * time.Second})
		r.register(false, wire.Ext{})
		_, ok := r.m.Deadline()
		require.False(t, ok)
	})
}

func TestMasterGone(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code errs.Code
	}{
		"closed without a word": {nil, errs.MasterLost},
		"end of stream":         {fmt.Errorf("read: %w", io.EOF), errs.MasterLost},
		"reset":                 {errors.New("connection reset by peer"), errs.MasterLost},
	} {
		t.Run(name, func(t *testing.T) {
			r := connected(t, true, 1, 2)
			u := r.update()
			p := r.newCall()
			r.step(CallPending{Call: p})
			r.step(MasterGone{Err: c.err})
			r.failed(u, errs.UpdateTopologyFailed, c.code)
			r.failed(p, errs.InvalidUsage, c.code)
			// Quirk Q37: the connections to other peers go at once.
			want[Disconnect](r)
			require.False(t, r.m.View().Connected)
			r.step(MasterGone{})
			require.Empty(t, r.fx)
			r.step(CallCancel{Call: p}) // answered calls cannot be canceled
			r.step(CallCancel{Call: u})
			require.Empty(t, r.fx)
		})
	}
}

// Control spec, section 13.5: results after the loss of the master.
func TestCallsAfterTheEnd(t *testing.T) {
	r := connected(t, true, 1, 2)
	op := r.launch(1)
	r.step(MasterGone{Err: errors.New("reset")})
	r.failed(r.update(), errs.UpdateTopologyFailed, errs.MasterLost)
	r.failed(r.optimize(), errs.TopologyOptimizationFailed, errs.MasterLost)
	r.failed(r.sync("w"), errs.InvalidUsage, errs.MasterLost)
	r.failed(r.await(op), errs.RankConnectionLost, errs.MasterLost)
	p := r.newCall()
	r.step(CallPending{Call: p})
	r.failed(p, errs.InvalidUsage, errs.MasterLost)
	c := r.newCall()
	r.step(CallCollective{Call: c, Op: 77, Tag: 1})
	r.failed(c, errs.RankConnectionLost, errs.MasterLost)
}

func TestClose(t *testing.T) {
	t.Run("idle, twice", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		for range 2 {
			c := r.newCall()
			r.step(CallClose{Call: c})
			r.ok(c)
		}
		r.failed(r.update(), errs.UpdateTopologyFailed, errs.Closed)
	})
	t.Run("fresh", func(t *testing.T) {
		r := newRig(t, Config{})
		c := r.newCall()
		r.step(CallClose{Call: c})
		r.ok(c)
		r.failed(r.update(), errs.UpdateTopologyFailed, errs.Closed)
	})
	t.Run("answered when nothing touches memory any more", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		a, b := r.launch(1), r.launch(2)
		wa := r.await(a)
		r.commence(1)
		r.commence(2)
		c := r.newCall()
		r.step(CallClose{Call: c})
		want[AbortData](r)
		want[Disconnect](r)
		r.unanswered(c)
		r.unanswered(wa)
		r.step(DataEnded{Op: a, Err: errors.New("aborted")})
		r.failed(wa, errs.RankConnectionLost, errs.Closed)
		r.unanswered(c)
		r.step(DataEnded{Op: b})
		r.ok(c)
		require.Equal(t, map[OpID]bool{a: true, b: true}, r.finishes)
		r.failed(r.await(b), errs.RankConnectionLost, errs.Closed)
	})
	t.Run("while fetching and probing", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		s := r.sync("w")
		r.in(wire.M2CSyncSharedState{IsOutdated: true, Distributor: addr(2)})
		c := r.newCall()
		r.step(CallClose{Call: c})
		want[StopFetch](r)
		r.unanswered(s)
		r.unanswered(c)
		r.step(Fetched{Call: s})
		r.failed(s, errs.InvalidUsage, errs.Closed)
		r.ok(c)

		r = connected(t, true, 1, 2)
		o := r.optimize()
		r.in(wire.M2COptimizeTopologyResponse{Requests: []wire.BandwidthRequest{{From: uid(1), To: uid(2), Addr: addr(2)}}})
		c = r.newCall()
		r.step(CallClose{Call: c})
		want[StopProbe](r)
		r.unanswered(o)
		r.unanswered(c)
		r.step(ProbesDone{Call: o})
		r.failed(o, errs.TopologyOptimizationFailed, errs.Closed)
		r.ok(c)
	})
}

func TestPeerDroppedIsShown(t *testing.T) {
	r := connected(t, true, 1, 2, 3)
	r.in(wire.M2CPeerDropped{UUID: uid(3), Addr: addr(3), Reason: "fell silent"})
	l := want[Log](r)
	require.Equal(t, uid(3), l.Peer)
	require.Contains(t, l.Text, "fell silent")
	require.Equal(t, uid(3).String()+" (10.0.0.3:48150)", r.m.View().LastDropped)
}

// The master says why it drops this peer, and then closes: the error says it.
func TestDroppedWithAReason(t *testing.T) {
	r := connected(t, true, 1, 2)
	c := r.update()
	r.in(wire.M2CPeerDropped{UUID: r.m.View().UUID, Reason: "shared state revision 7 where 3 is the next"})
	require.Empty(t, r.m.View().LastDropped)
	r.unanswered(c)
	r.step(MasterGone{Err: io.EOF})
	e := r.failed(c, errs.UpdateTopologyFailed, errs.Kicked)
	require.Contains(t, e.Error(), "the master dropped this peer: shared state revision 7 where 3 is the next")
}
