package fsm

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/wire"
)

// TestRandomEvents throws calls, packets (mostly plausible ones) and results
// at the machine. It must never panic, answer a call twice, finish an
// operation twice or under a running data phase; at the end of the session
// everything is answered and finished.
func TestRandomEvents(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		native := rapid.Bool().Draw(rt, "native")
		cfg := Config{HeartbeatInterval: time.Second, HeartbeatTimeout: 4 * time.Second, RegisterTimeout: 5 * time.Second, MaxWithPCCL: 2}
		if rapid.Bool().Draw(rt, "resumes") {
			cfg.ReattachTimeout = 10 * time.Second
		}
		x := &chance{rt: rt, launches: map[CallID]OpID{}, r: newRig(rt, cfg)}
		r := x.r
		r.step(CallConnect{Call: x.call()})
		ext := wire.Ext{Native: native, Topology: rapid.Bool().Draw(rt, "topology"), HeartbeatInterval: time.Second, HeartbeatTimeout: 4 * time.Second}
		ext.Resuming.Resume = cfg.ReattachTimeout > 0
		r.in(wire.M2CSessionRegistrationResponse{Accepted: true, UUID: uid(1), Ext: ext})
		r.watch = x.watch
		n := rapid.IntRange(1, 80).Draw(rt, "steps")
		for range n {
			r.now += time.Duration(rapid.IntRange(0, 900).Draw(rt, "ms")) * time.Millisecond
			switch k := rapid.IntRange(0, 28).Draw(rt, "event"); {
			case k <= 10:
				x.trainer(k)
			case k <= 19 || k == 26:
				x.master(k)
			case k >= 27:
				x.masters(k, ext)
			default:
				x.work(k)
			}
			if at, ok := r.m.Deadline(); ok && at <= r.now {
				r.step(Tick{})
				at, ok = r.m.Deadline()
				require.True(rt, !ok || at > r.now, "a tick that moves nothing")
			}
		}
		endAll(rt, r, x.known)
		for _, id := range x.launched {
			require.Contains(rt, r.finishes, id, "operation was never finished")
		}
		require.Len(rt, r.finishes, len(x.launched))
	})
}

// chance draws events for a rig, and remembers what later ones may refer to.
type chance struct {
	rt *rapid.T
	r  *rig

	known           []CallID
	launches        map[CallID]OpID
	launched        []OpID // those that were not refused
	probes, fetches []CallID
	rounds          []uint64
}

func (x *chance) call() CallID {
	c := x.r.newCall()
	x.known = append(x.known, c)
	return c
}

func (x *chance) anyOp() OpID {
	if len(x.launched) == 0 {
		return 99
	}
	return rapid.SampledFrom(x.launched).Draw(x.rt, "op")
}

// watch notes what the effects of a step allow.
func (x *chance) watch() {
	if _, lost := has[Reattach](x.r); x.r.m.status == statusDetached && !lost {
		require.Empty(x.rt, x.r.lastSent, "sent to no master")
	}
	for _, e := range x.r.fx {
		switch e := e.(type) {
		case Done:
			if op, ok := x.launches[e.Call]; ok && e.Err == nil {
				x.launched = append(x.launched, op)
			}
		case Establish:
			x.rounds = append(x.rounds, e.Round)
		case Probe:
			x.probes = append(x.probes, e.Call)
		case Fetch:
			x.fetches = append(x.fetches, e.Call)
		}
	}
}

// trainer makes a call.
func (x *chance) trainer(k int) {
	rt, r := x.rt, x.r
	switch k {
	case 0:
		r.step(CallUpdate{Call: x.call()})
	case 1:
		r.step(CallPending{Call: x.call()})
	case 2:
		r.step(CallOptimize{Call: x.call()})
	case 3:
		r.step(CallSync{Call: x.call(), Entries: []wire.StateEntry{{Key: "w"}}})
	case 4, 5, 6:
		c := x.call()
		r.op++
		x.launches[c] = r.op
		tag := rapid.Uint64Range(1, 3).Draw(rt, "tag")
		r.step(CallCollective{Call: c, Op: r.op, Tag: tag, Count: 1, DType: dtype.Int8, RedOp: dtype.Sum})
	case 7, 8:
		r.step(CallAwait{Call: x.call(), Op: x.anyOp()})
	case 9:
		if len(x.known) > 0 && rapid.IntRange(0, 3).Draw(rt, "rarely") == 0 {
			r.step(CallCancel{Call: rapid.SampledFrom(x.known).Draw(rt, "call"), Op: x.anyOp()})
		}
	case 10:
		if rapid.IntRange(0, 9).Draw(rt, "rarely") == 0 {
			r.step(CallClose{Call: x.call()})
		}
	}
}

// master sends a packet.
func (x *chance) master(k int) {
	rt, r := x.rt, x.r
	switch k {
	case 11, 12, 13:
		// Something the machine waits for, if it waits.
		r.in(plausible(rt, r))
	case 14, 15, 16:
		for _, op := range r.m.ops {
			if op.state == opVoting {
				r.in(wire.M2CCollectiveCommsCommence{Tag: op.vote.Tag, SeqNr: 1})
				break
			}
		}
	case 17:
		for _, op := range r.m.ops {
			if op.state >= opRunning && !op.heard && op.state != opSettled {
				r.abort(op.vote.Tag, rapid.Bool().Draw(rt, "aborted"))
				break
			}
		}
	case 18, 19:
		for _, op := range r.m.ops {
			if op.state == opReported {
				r.complete(op.vote.Tag)
				break
			}
		}
	case 26:
		if rapid.IntRange(0, 5).Draw(rt, "rarely") == 0 {
			r.in(rapid.SampledFrom(everyPacket()).Draw(rt, "packet"))
		} else {
			r.in(wire.M2CHeartbeat{})
		}
	}
}

// masters ends one and finds another.
func (x *chance) masters(k int, ext wire.Ext) {
	r := x.r
	if k == 27 {
		if r.m.resume.granted && rapid.Bool().Draw(x.rt, "rarely") {
			r.step(MasterGone{Err: errors.New("reset")})
		}
		return
	}
	ext.Resuming.Term = r.m.resume.term + 1
	if rapid.IntRange(0, 9).Draw(x.rt, "rarely") == 0 {
		r.step(NotAttached{})
		return
	}
	r.step(Attached{Packet: wire.M2CSessionRegistrationResponse{Accepted: true, UUID: uid(1), Ext: ext}})
	if len(r.lastSent) == 0 {
		return
	}
	p := r.lastSent[0].(wire.C2MReport)
	raw := wire.AppendBody(nil, p)
	require.Equal(x.rt, raw, wire.AppendBody(nil, r.m.report()), "it is a function of the state")
	back, err := wire.Decode(wire.C2M, p.ID(), raw)
	require.NoError(x.rt, err)
	require.Equal(x.rt, raw, wire.AppendBody(nil, back))
	if rapid.IntRange(0, 3).Draw(x.rt, "rarely") > 0 {
		r.in(wire.M2CResumed{})
		r.silent()
	}
}

// work reports the result of something that the machine has begun.
func (x *chance) work(k int) {
	rt, r := x.rt, x.r
	switch k {
	case 20, 21:
		for _, id := range x.launched {
			if r.open[id] {
				var err error
				if rapid.Bool().Draw(rt, "failed") {
					err = errors.New("lost")
				}
				r.step(DataEnded{Op: id, Err: err})
				break
			}
		}
	case 22:
		if len(x.rounds) > 0 {
			r.step(Established{Round: x.rounds[len(x.rounds)-1]})
		}
	case 23:
		if len(x.probes) > 0 {
			r.step(Measured{Call: x.probes[len(x.probes)-1], To: uid(2), Mbps: 3})
			r.step(ProbesDone{Call: x.probes[len(x.probes)-1]})
		}
	case 24:
		if len(x.fetches) > 0 {
			r.step(Fetched{Call: x.fetches[len(x.fetches)-1]})
		}
	case 25:
		if f := r.m.flow; f != nil && f.working != 0 {
			if !f.sending && rapid.Bool().Draw(rt, "ready") {
				r.step(ProbeReady{Round: f.working, Err: rapid.SampledFrom([]error{nil, errors.New("refused")}).Draw(rt, "err")})
			} else {
				r.step(Probed{Round: f.working, Mbps: 3})
			}
		}
		r.step(Tick{})
	}
}

// endAll ends the session and checks that every call is answered.
func endAll(t tb, r *rig, known []CallID) {
	r.m.resume.granted = false
	r.step(PacketIn{}) // of no kind: it ends a session with a master
	r.now += time.Hour // ... and this one without
	r.step(Tick{})
	for id := OpID(1); id <= r.op; id++ {
		if r.open[id] {
			r.step(DataEnded{Op: id, Err: errors.New("reset")})
		}
	}
	if f := r.m.flow; f != nil {
		r.step(Fetched{Call: f.call, Err: errors.New("reset")})
		r.step(ProbesDone{Call: f.call})
		r.step(Probed{Round: f.working, Err: errors.New("reset")})
	}
	for _, c := range known {
		require.Contains(t, r.dones, c, "call was never answered")
	}
}

func plausible(rt *rapid.T, r *rig) wire.Packet {
	if f := r.m.flow; f != nil {
		switch f.step {
		case stepInfo:
			p := r.info([]int{1, 2})
			p.Ext.GroupNative = rapid.Bool().Draw(rt, "group native")
			return p
		case stepRing:
			return wire.M2CP2PConnectionsEstablished{
				Success: !f.failed && rapid.IntRange(0, 3).Draw(rt, "success") > 0, Ring: uids(1, 2),
			}
		case stepRequests:
			return wire.M2COptimizeTopologyResponse{
				Requests: []wire.BandwidthRequest{{From: uid(1), To: uid(2), Addr: addr(2)}},
				Ext:      wire.Ext{Topology: rapid.Bool().Draw(rt, "scheduled")},
			}
		case stepProbing:
			if f.scheduled {
				n := rapid.Uint64Range(1, 3).Draw(rt, "round")
				return rapid.SampledFrom([]wire.Packet{
					wire.M2CProbe{Round: n, To: uid(2), Addr: addr(2)}, wire.M2CProbeGo{Round: n}, wire.M2CProbesDone{},
				}).Draw(rt, "call")
			}
		case stepOptimized:
			return wire.M2COptimizeTopologyComplete{Success: rapid.Bool().Draw(rt, "success")}
		case stepElection:
			if rapid.Bool().Draw(rt, "outdated") {
				return wire.M2CSyncSharedState{IsOutdated: true, Distributor: addr(2)}
			}
			return wire.M2CSyncSharedState{}
		case stepSynced:
			return wire.M2CSyncSharedStateComplete{}
		}
	}
	if r.m.asking {
		return wire.M2CPeersPendingResponse{}
	}
	return wire.M2CHeartbeat{}
}
