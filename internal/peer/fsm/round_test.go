package fsm

import (
	"errors"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// Control spec, section 13.2, step 1: "Take over the four counters at once."
func TestCountersAreTakenOverAtOnce(t *testing.T) {
	r := connected(t, true, 1, 2)
	r.update()
	r.in(wire.M2CP2PConnectionInfo{GlobalWorldSize: 5, LocalWorldSize: 3, NumDistinctGroup: 2, LargestGroupSize: 4, Peers: endpoints(2, 3)})
	v := r.m.View()
	require.Equal(t, []int{5, 3, 2, 4}, []int{v.GlobalWorldSize, v.LocalWorldSize, v.NumGroups, v.LargestGroupSize})
	require.Equal(t, uids(1, 2), v.Ring)
	require.False(t, v.Native) // the group is not native any more
}

// A PCCL master cannot know who is native, whatever bytes it sends.
func TestNativeNeedsANativeMaster(t *testing.T) {
	r := newRig(t, Config{HeartbeatInterval: 1, HeartbeatTimeout: 1})
	c := r.register(false, wire.Ext{HeartbeatInterval: 1, HeartbeatTimeout: 1})
	_, ok := r.m.Deadline()
	require.False(t, ok)
	p := r.info([]int{1, 2})
	p.Ext.GroupNative = true
	r.in(p)
	r.step(Established{Round: want[Establish](r).Round})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(1, 2)})
	r.ok(c)
	require.False(t, r.m.View().Native)
}

// Control spec, section 13.2, steps 2 to 4.
func TestEstablishAndReport(t *testing.T) {
	r := connected(t, true, 1, 2)
	r.update()
	r.sent(vote1)
	r.in(wire.M2CP2PConnectionInfo{Peers: endpoints(3, 2)})
	e := want[Establish](r)
	require.Equal(t, endpoints(3, 2), e.Peers)
	r.silent()
	r.step(Established{Round: e.Round - 1})
	r.silent() // of an older round
	r.step(Established{Round: e.Round, Failed: uids(3, 3)})
	r.sent(wire.C2MP2PConnectionsEstablished{FailedPeers: uids(3)})
}

// Quirk Q17: connections may have broken although the list is unchanged.
func TestUnchangedListIsEstablishedAgain(t *testing.T) {
	r := connected(t, true, 1, 2)
	c := r.update()
	r.in(wire.M2CP2PConnectionInfo{Unchanged: true, GlobalWorldSize: 2, LocalWorldSize: 2})
	e := want[Establish](r)
	require.Equal(t, endpoints(2), e.Peers)
	r.step(Established{Round: e.Round})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(2, 1)})
	r.ok(c)
	require.Equal(t, 1, r.m.View().Rank)
}

// Control spec, section 7.2: "nothing sent yet" equals the empty list.
func TestUnchangedBeforeAnyListIsEmpty(t *testing.T) {
	r := newRig(t, Config{})
	c := r.register(false, wire.Ext{})
	r.in(wire.M2CP2PConnectionInfo{Unchanged: true, GlobalWorldSize: 1, LocalWorldSize: 1})
	e := want[Establish](r)
	require.Empty(t, e.Peers)
	r.step(Established{Round: e.Round})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(1)})
	r.ok(c)
}

// Control spec, section 13.2, step 5: "success = 0: start over with C2M 2";
// quirk Q6: a round may fail without reason.
// Quirk Q16: the connections are made again, too.
func TestFailedRoundIsRepeatedWithTheSameFlavour(t *testing.T) {
	r := connected(t, true, 1, 2)
	c := r.update()
	for range 3 {
		r.in(r.info([]int{1, 2}))
		r.step(Established{Round: want[Establish](r).Round})
		r.in(wire.M2CP2PConnectionsEstablished{Ring: uids(9)})
		r.sent(vote1)
	}
	r.round(1, 2)
	r.ok(c)
}

// Control spec, section 13.1; quirk Q8: a PCCL master may send two M2C 2. The
// second is not taken for the answer to a later vote, but what it lists counts
// as sent.
func TestSecondConnectionInfoIsDiscarded(t *testing.T) {
	r := connected(t, true, 1, 2)
	c := r.update()
	r.in(r.info([]int{1, 2, 3}))
	e := want[Establish](r)
	r.in(r.info([]int{1, 4}))
	require.True(t, want[Log](r).Warn)
	r.silent()
	r.step(Established{Round: e.Round})
	r.in(wire.M2CP2PConnectionsEstablished{})
	r.sent(vote1)
	r.in(wire.M2CP2PConnectionInfo{Unchanged: true, GlobalWorldSize: 2, LocalWorldSize: 2})
	e = want[Establish](r)
	require.Equal(t, endpoints(4), e.Peers)
	r.step(Established{Round: e.Round})
	r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(1, 4)})
	r.ok(c)
	r.in(r.info([]int{1, 4})) // outside any call
	require.True(t, r.m.View().Connected)
}

// Everything a broken master can say in a round ends the session with a reason.
func TestBadRounds(t *testing.T) {
	info := func(l ...wire.PeerEndpoint) wire.M2CP2PConnectionInfo { return wire.M2CP2PConnectionInfo{Peers: l} }
	for name, p := range map[string]wire.M2CP2PConnectionInfo{
		"self in list":      info(endpoints(1)...),
		"duplicate in list": info(endpoints(2, 2)...),
		"no address":        info(wire.PeerEndpoint{UUID: uid(2), Addr: netip.AddrPort{}}),
		"absurd counter":    {GlobalWorldSize: math.MaxUint64},
	} {
		t.Run(name, func(t *testing.T) {
			r := connected(t, true, 1, 2)
			c := r.update()
			r.in(p)
			r.failed(c, errs.UpdateTopologyFailed, errs.Protocol)
			want[Disconnect](r)
		})
	}
	for name, ring := range map[string][]wire.UUID{
		"without self": uids(2, 3), "self twice": uids(1, 2, 1), "other twice": uids(1, 2, 2), "empty": nil,
	} {
		t.Run("ring "+name, func(t *testing.T) {
			r := connected(t, true, 1, 2)
			c := r.update()
			r.in(r.info([]int{1, 2}))
			r.step(Established{Round: want[Establish](r).Round})
			r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: ring})
			r.failed(c, errs.UpdateTopologyFailed, errs.Protocol)
			want[Disconnect](r)
		})
	}
	// Control spec, section 7.3: the master must not do this; quirk Q55.
	t.Run("success after a reported failure", func(t *testing.T) {
		r := connected(t, true, 1, 2)
		c := r.update()
		r.in(r.info([]int{1, 2}))
		r.step(Established{Round: want[Establish](r).Round, Failed: uids(2)})
		r.in(wire.M2CP2PConnectionsEstablished{Success: true, Ring: uids(1, 2)})
		r.failed(c, errs.UpdateTopologyFailed, errs.Protocol)
	})
}

// Control spec, section 13.3: optimize topology.
func TestOptimize(t *testing.T) {
	requests := wire.M2COptimizeTopologyResponse{Requests: []wire.BandwidthRequest{
		{From: uid(1), To: uid(2), Addr: addr(2)},
		{From: uid(2), To: uid(3), Addr: addr(1)},
		{From: uid(1), To: uid(3), Addr: addr(3)},
		{From: uid(1), To: uid(2), Addr: addr(2)},
	}}
	for _, native := range []bool{true, false} {
		r := connected(t, native, 1, 2, 3)
		c := r.optimize()
		r.sent(wire.C2MOptimizeTopology{})
		r.in(requests)
		// "Requests whose from is not the own uuid are ignored."
		require.Equal(t, []wire.BandwidthRequest{requests.Requests[0], requests.Requests[2]}, want[Probe](r).Requests)
		for _, bad := range []float64{0, -1, math.NaN(), math.Inf(1)} {
			r.step(Measured{Call: c, To: uid(2), Mbps: bad})
			r.silent()
		}
		r.step(Measured{Call: c, To: uid(9), Mbps: 1})
		r.silent()
		r.step(Measured{Call: c, To: uid(3), Mbps: 42})
		r.sent(wire.C2MReportPeerBandwidth{To: uid(3), Mbps: 42})
		r.step(Measured{Call: c, To: uid(3), Mbps: 43})
		r.silent() // one value per edge
		r.step(ProbesDone{Call: c})
		if native {
			r.sent(wire.C2MOptimizeTopologyWorkComplete{})
		} else { // quirk Q9
			r.sent(wire.C2MReportPeerBandwidth{To: uid(2), Mbps: fallbackMbps}, wire.C2MOptimizeTopologyWorkComplete{})
		}
		r.in(wire.M2COptimizeTopologyComplete{}) // "repeat if success = 0"
		r.sent(wire.C2MOptimizeTopology{})
		r.in(wire.M2COptimizeTopologyResponse{}) // every edge is known by now
		r.sent(wire.C2MOptimizeTopologyWorkComplete{})
		r.in(wire.M2COptimizeTopologyComplete{Success: true})
		r.sent(vote0)
		r.round(3, 1, 2)
		r.ok(c)
		require.Equal(t, 1, r.m.View().Rank)
	}
}

// Probes that the master schedules: connect, say so, send when told, report.
func TestScheduledProbes(t *testing.T) {
	r := connected(t, true, 1, 2)
	c := calledForProbes(r)
	r.silent()
	call := func(round uint64) {
		t.Helper()
		r.in(wire.M2CProbe{Round: round, To: uid(2), Addr: addr(2)})
		r.sent(wire.C2MProbeState{Round: round, State: wire.ProbeHeard})
		require.Equal(t, PrepareProbe{Call: c, Round: round, To: uid(2), Addr: addr(2)}, want[PrepareProbe](r))
	}
	call(1)
	r.step(ProbeReady{Round: 7})
	r.silent()
	r.step(ProbeReady{Round: 1})
	r.sent(wire.C2MProbeState{Round: 1, State: wire.ProbeReady})
	r.in(wire.M2CProbeGo{Round: 9})
	require.Empty(t, r.fx, "another round's start")
	r.in(wire.M2CProbeGo{Round: 1, Delay: 1500})
	require.Equal(t, SendProbe{Call: c, Round: 1, Delay: 1500 * time.Microsecond}, want[SendProbe](r))
	r.step(Probed{Round: 1, Mbps: 80, Deviation: 2, Late: 30 * time.Microsecond})
	r.sent(wire.C2MProbeState{Round: 1, State: wire.ProbeMeasured, Mbps: 80, Deviation: 2, Late: 30})

	for round, tc := range map[uint64]struct {
		busy bool
		want wire.ProbeState
	}{2: {true, wire.ProbeBusy}, 3: {false, wire.ProbeFailed}} {
		call(round)
		r.step(ProbeReady{Round: round, Busy: tc.busy, Err: errors.New("no")})
		r.sent(wire.C2MProbeState{Round: round, State: tc.want})
		r.step(ProbeReady{Round: round})
		r.silent()
	}
	for round, ev := range map[uint64]Probed{4: {Err: errors.New("cut")}, 5: {}, 6: {Mbps: math.Inf(1)}} {
		call(round)
		r.step(ProbeReady{Round: round})
		r.in(wire.M2CProbeGo{Round: round})
		ev.Round = round
		r.step(ev)
		r.sent(wire.C2MProbeState{Round: round, State: wire.ProbeFailed})
	}
	// The master gives a probe up and calls for the next one.
	call(10)
	r.in(wire.M2CProbe{Round: 11, To: uid(2), Addr: addr(2)})
	r.sent(wire.C2MProbeState{Round: 11, State: wire.ProbeHeard})
	require.Equal(t, StopProbe{Call: c}, want[StopProbe](r))
	r.step(ProbeReady{Round: 10, Err: errors.New("stopped")})
	require.Equal(t, uint64(11), want[PrepareProbe](r).Round)
	// It ends the measurements while one is under way.
	r.in(wire.M2CProbesDone{})
	want[StopProbe](r)
	r.step(Probed{Round: 11, Err: errors.New("stopped")})
	r.sent(wire.C2MProbeState{Round: 11, State: wire.ProbeFailed}, wire.C2MOptimizeTopologyWorkComplete{})
	r.in(wire.M2COptimizeTopologyComplete{Success: true})
	r.round(2, 1)
	r.ok(c)
}

// The end of the session while a scheduled probe runs: the call is answered
// when the probe has ended.
func TestEndDuringScheduledProbe(t *testing.T) {
	for _, working := range []bool{false, true} {
		r := connected(t, true, 1, 2)
		c := calledForProbes(r)
		if working {
			r.in(wire.M2CProbe{Round: 1, To: uid(2), Addr: addr(2)})
		}
		r.step(MasterGone{Err: errors.New("reset")})
		_, stopped := has[StopProbe](r)
		require.Equal(t, working, stopped)
		if working {
			r.unanswered(c)
			r.step(ProbeReady{Round: 1, Err: errors.New("stopped")})
		}
		r.failed(c, errs.TopologyOptimizationFailed)
	}
}

// A master that never announced the capability cannot schedule.
func TestUnannouncedSchedule(t *testing.T) {
	r := newRig(t, Config{})
	r.register(true, wire.Ext{})
	r.round(1, 2)
	calledForProbes(r)
	want[Probe](r)
	r.in(wire.M2CProbe{Round: 1, To: uid(2), Addr: addr(2)})
	want[Disconnect](r)
}

// Rates of links are reported to a master that takes such reports.
func TestLinkReports(t *testing.T) {
	for _, native := range []bool{true, false} {
		r := connected(t, native, 1, 2)
		r.step(LinkUsed{To: uid(2), Mbps: 80, Busy: 0.9})
		if native {
			r.sent(wire.C2MLinkReport{To: uid(2), Mbps: 80, Busy: 0.9})
		} else {
			r.silent()
		}
		r.step(MasterGone{})
		r.step(LinkUsed{To: uid(2), Mbps: 80, Busy: 0.9})
		r.silent()
	}
	r := newRig(t, Config{})
	r.step(LinkUsed{To: uid(2), Mbps: 80, Busy: 0.9})
	r.silent()
}

// So is what connections gave, to a master that plans by it.
func TestRatesAreReported(t *testing.T) {
	seen := wire.C2MRates{Up: 20, Down: 100, Pairs: []wire.PathRate{{To: uid(2), Mbps: 20}}}
	for _, plans := range []uint8{wire.RatePlans, wire.SchemePlans} {
		r := newRig(t, Config{})
		r.register(true, wire.Ext{Switch: true, Collectives: 1, Plans: plans})
		r.round(1, 2)
		r.step(RatesSeen{Rates: seen})
		if plans == wire.RatePlans {
			r.sent(seen)
		} else {
			r.silent()
		}
		r.step(MasterGone{})
		r.step(RatesSeen{Rates: seen})
		r.silent()
	}
}

func TestOptimizeAlone(t *testing.T) {
	r := connected(t, true, 1)
	r.failed(r.optimize(), errs.InvalidUsage)
	r.silent()
}

// Control spec, section 13.3: synchronize shared state.
func TestSync(t *testing.T) {
	vote := wire.C2MSyncSharedState{Revision: 5, Entries: []wire.StateEntry{{Key: "w", Hash: 7, DType: 10}, {Key: "b", Hash: 7, DType: 10}}}
	start := func(t *testing.T, native bool) (*rig, CallID) {
		r := connected(t, native, 1, 2)
		c := r.sync("w", "b")
		// "The window opens before the vote"; quirk Q20: num_elements is 0.
		require.Equal(t, []Effect{Serve{Call: c}, Send{Packet: vote}}, r.fx)
		return r, c
	}
	outdated := wire.M2CSyncSharedState{
		IsOutdated: true, Distributor: addr(2), Keys: []string{"w", "w"}, Hashes: []uint64{1, 2},
		HashTypes: []wire.HashType{0, 0},
		Ext:       wire.Ext{Distributors: []netip.AddrPort{addr(2), addr(3), {}, addr(3)}},
	}
	t.Run("up to date", func(t *testing.T) {
		r, c := start(t, true)
		r.in(wire.M2CSyncSharedState{})
		r.sent(wire.C2MDistSharedStateComplete{})
		r.unanswered(c)
		r.in(wire.M2CSyncSharedStateComplete{})
		require.Equal(t, SyncResult{Revision: 5}, r.ok(c).Sync)
	})
	t.Run("outdated", func(t *testing.T) {
		r, c := start(t, true)
		r.in(outdated)
		// Quirk Q53: keys may come twice.
		require.Equal(t, Fetch{
			Call: c, Distributors: []netip.AddrPort{addr(2), addr(3)},
			Keys: []string{"w"}, Hashes: []uint64{1}, HashTypes: []wire.HashType{0},
		}, want[Fetch](r))
		r.silent()
		r.step(Fetched{Call: c, Revision: 8})
		r.sent(wire.C2MDistSharedStateComplete{})
		r.in(wire.M2CSyncSharedStateComplete{})
		require.Equal(t, SyncResult{Revision: 8, Outdated: true}, r.ok(c).Sync)
	})
	t.Run("nothing dirty, but the revision is fetched", func(t *testing.T) {
		r, c := start(t, false)
		r.in(wire.M2CSyncSharedState{IsOutdated: true, Distributor: addr(2)})
		require.Equal(t, Fetch{Call: c, Distributors: []netip.AddrPort{addr(2)}}, want[Fetch](r))
	})
	t.Run("transfer failed, native master", func(t *testing.T) {
		r, c := start(t, true)
		r.in(outdated)
		r.step(Fetched{Call: c, Err: errors.New("reset")})
		r.sent(wire.C2MDistSharedStateComplete{Ext: wire.Ext{Failed: true}})
		r.in(wire.M2CSyncSharedStateComplete{})
		require.ErrorContains(t, r.failed(c, errs.TransferFailed), "reset")
		require.True(t, r.m.View().Connected)
		r.sync("w")
		require.NotEmpty(t, r.lastSent)
	})
	t.Run("transfer failed, PCCL master", func(t *testing.T) {
		r, c := start(t, false)
		r.in(outdated)
		r.step(Fetched{Call: c, Err: errors.New("reset")})
		r.silent()
		want[Disconnect](r)
		require.ErrorContains(t, r.failed(c, errs.InvalidUsage, errs.TransferFailed), "reset")
	})
	t.Run("no distributor", func(t *testing.T) {
		nobody := []netip.AddrPort{
			netip.AddrPortFrom(netip.IPv4Unspecified(), 0), netip.AddrPortFrom(netip.IPv4Unspecified(), 48149),
			netip.AddrPortFrom(addr(2).Addr(), 0),
			{},
		}
		for i, a := range nobody {
			native := i != 0
			r, c := start(t, native)
			r.in(wire.M2CSyncSharedState{IsOutdated: true, Distributor: a})
			if native {
				r.sent(wire.C2MDistSharedStateComplete{Ext: wire.Ext{Failed: true}})
				r.in(wire.M2CSyncSharedStateComplete{})
				r.failed(c, errs.TransferFailed, errs.NoSharedStateAvailable)
			} else {
				r.failed(c, errs.InvalidUsage, errs.TransferFailed, errs.NoSharedStateAvailable)
			}
		}
	})
	t.Run("kicked", func(t *testing.T) {
		r, c := start(t, true)
		r.step(MasterGone{})
		r.failed(c, errs.InvalidUsage, errs.MasterLost)
	})
	t.Run("a key nobody asked for", func(t *testing.T) {
		r, c := start(t, true)
		r.in(wire.M2CSyncSharedState{IsOutdated: true, Distributor: addr(2), Keys: []string{"z"}, Hashes: []uint64{0}, HashTypes: []wire.HashType{0}})
		r.failed(c, errs.InvalidUsage, errs.Protocol)
	})
	t.Run("lists of different lengths", func(t *testing.T) {
		r, c := start(t, true)
		r.in(wire.M2CSyncSharedState{IsOutdated: true, Distributor: addr(2), Keys: []string{"w"}})
		r.failed(c, errs.InvalidUsage, errs.Protocol)
	})
}

// Quirk Q71 and control spec, section 3: refused locally, nothing is sent.
func TestSyncRefusals(t *testing.T) {
	r := connected(t, true, 1, 2)
	r.failed(r.sync(), errs.InvalidArgument)
	r.silent()
	r.failed(r.sync("w", "w"), errs.InvalidArgument)
	c := r.newCall()
	r.step(CallSync{Call: c, Strategy: 3, Entries: []wire.StateEntry{{Key: "w"}}})
	r.failed(c, errs.InvalidArgument)
	r.silent()
}

// Control spec, section 4.1: entries that may differ carry hash 0, type 0.
func TestSyncEntriesThatMayDiffer(t *testing.T) {
	r := connected(t, true, 1, 2)
	c := r.newCall()
	r.step(CallSync{Call: c, Entries: []wire.StateEntry{{Key: "x", Hash: 7, HashType: wire.HashCRC32, AllowInequality: true}}})
	r.sent(wire.C2MSyncSharedState{Entries: []wire.StateEntry{{Key: "x", AllowInequality: true}}})
}
