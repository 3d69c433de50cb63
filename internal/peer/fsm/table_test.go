package fsm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// reach brings a machine into one state; busy is the call in progress, 0 none.
type reach struct {
	name string
	go_  func(t *testing.T) (r *rig, busy CallID)
}

// calledForProbes brings r into an optimization with scheduled probes.
func calledForProbes(r *rig) CallID {
	c := r.optimize()
	r.in(wire.M2COptimizeTopologyResponse{
		Requests: []wire.BandwidthRequest{{From: uid(1), To: uid(2), Addr: addr(2)}}, Ext: wire.Ext{Topology: true},
	})
	return c
}

func states() []reach { return statesAs(Config{}, wire.Ext{Topology: true}) }

// statesAs are those of such a peer, to which the master has granted that.
func statesAs(cfg Config, granted wire.Ext) []reach {
	live := func(f func(r *rig) CallID) func(t *testing.T) (*rig, CallID) {
		return func(t *testing.T) (*rig, CallID) {
			r := connectedAs(t, cfg, granted, true, 1, 2)
			return r, f(r)
		}
	}
	return []reach{
		{"fresh", func(t *testing.T) (*rig, CallID) { return newRig(t, cfg), 0 }},
		{"register", func(t *testing.T) (*rig, CallID) {
			r := newRig(t, cfg)
			c := r.newCall()
			r.step(CallConnect{Call: c})
			return r, c
		}},
		{"waiting to be let in", func(t *testing.T) (*rig, CallID) {
			r := newRig(t, cfg)
			return r, r.register(true, granted)
		}},
		{"idle", live(func(r *rig) CallID { return 0 })},
		{"vote", live(func(r *rig) CallID { return r.update() })},
		{"establish", live(func(r *rig) CallID {
			c := r.update()
			r.in(r.info([]int{1, 2}))
			return c
		})},
		{"ring", live(func(r *rig) CallID {
			c := r.update()
			r.in(r.info([]int{1, 2}))
			r.step(Established{Round: want[Establish](r).Round})
			return c
		})},
		{"requests", live(func(r *rig) CallID { return r.optimize() })},
		{"probing", live(func(r *rig) CallID {
			c := r.optimize()
			r.in(wire.M2COptimizeTopologyResponse{Requests: []wire.BandwidthRequest{{From: uid(1), To: uid(2), Addr: addr(2)}}})
			return c
		})},
		{"called for probes", live(calledForProbes)},
		{"connecting to probe", live(func(r *rig) CallID {
			c := calledForProbes(r)
			r.in(wire.M2CProbe{Round: 1, To: uid(2), Addr: addr(2)})
			return c
		})},
		{"ready to probe", live(func(r *rig) CallID {
			c := calledForProbes(r)
			r.in(wire.M2CProbe{Round: 1, To: uid(2), Addr: addr(2)})
			r.step(ProbeReady{Round: 1})
			return c
		})},
		{"sending", live(func(r *rig) CallID {
			c := calledForProbes(r)
			r.in(wire.M2CProbe{Round: 1, To: uid(2), Addr: addr(2)})
			r.step(ProbeReady{Round: 1})
			r.in(wire.M2CProbeGo{Round: 1})
			return c
		})},
		{"optimized", live(func(r *rig) CallID {
			c := r.optimize()
			r.in(wire.M2COptimizeTopologyResponse{})
			return c
		})},
		{"election", live(func(r *rig) CallID { return r.sync("w") })},
		{"fetching", live(func(r *rig) CallID {
			c := r.sync("w")
			r.in(wire.M2CSyncSharedState{IsOutdated: true, Distributor: addr(2)})
			return c
		})},
		{"synced", live(func(r *rig) CallID {
			c := r.sync("w")
			r.in(wire.M2CSyncSharedState{})
			return c
		})},
		{"op voting", live(func(r *rig) CallID { r.launch(1); return 0 })},
		{"op running", live(func(r *rig) CallID { r.launch(1); r.commence(1); return 0 })},
		{"op reported", live(func(r *rig) CallID {
			op := r.launch(1)
			r.commence(1)
			r.step(DataEnded{Op: op})
			return 0
		})},
		{"op judged", live(func(r *rig) CallID {
			op := r.launch(1)
			r.commence(1)
			r.step(DataEnded{Op: op})
			r.abort(1, false)
			return 0
		})},
		{"op settled", live(func(r *rig) CallID { r.succeed(r.launch(1), 1); return 0 })},
		{"repair", live(func(r *rig) CallID {
			op := r.launch(1)
			w := r.await(op)
			r.fail(op, 1)
			return w
		})},
		{"over", live(func(r *rig) CallID { r.step(MasterGone{}); return 0 })},
	}
}

// Legal states are few and written down. Every call in every state is
// answered as this table says: "" goes ahead, else the code of the refusal.
func TestEveryCallInEveryState(t *testing.T) {
	const (
		goes = errs.Code(-1)
		no   = errs.InvalidUsage
		busy = errs.Busy
		pend = errs.PendingAsyncOps
	)
	kicked := map[string]errs.Code{
		"connect": no, "update": errs.UpdateTopologyFailed, "pending": no, "optimize": errs.TopologyOptimizationFailed,
		"sync": no, "reduce": errs.RankConnectionLost, "await": errs.RankConnectionLost, "close": goes,
	}
	row := func(connect, update, pending, optimize, sync, reduce, await errs.Code) map[string]errs.Code {
		return map[string]errs.Code{
			"connect": connect, "update": update, "pending": pending, "optimize": optimize,
			"sync": sync, "reduce": reduce, "await": await, "close": goes,
		}
	}
	fresh := row(goes, no, no, no, no, no, no)
	connecting := row(busy, no, no, no, no, no, no)
	changing := row(no, busy, goes, busy, busy, busy, no)
	operating := row(no, pend, goes, pend, pend, goes, goes)
	table := map[string]map[string]errs.Code{
		"fresh": fresh, "register": connecting, "waiting to be let in": connecting,
		"idle": row(no, goes, goes, goes, goes, goes, no),
		"vote": changing, "establish": changing, "ring": changing,
		"requests": changing, "probing": changing, "optimized": changing,
		"called for probes": changing, "connecting to probe": changing, "ready to probe": changing, "sending": changing,
		"election": changing, "fetching": changing, "synced": changing, "repair": changing,
		"op voting": operating, "op running": operating, "op reported": operating, "op judged": operating,
		"op settled": operating, "over": kicked,
	}
	require.Len(t, table, len(states()))
	for _, s := range states() {
		for call, code := range table[s.name] {
			t.Run(s.name+"/"+call, func(t *testing.T) {
				r, _ := s.go_(t)
				c := r.newCall()
				switch call {
				case "connect":
					r.step(CallConnect{Call: c})
				case "update":
					r.step(CallUpdate{Call: c})
				case "pending":
					r.step(CallPending{Call: c})
				case "optimize":
					r.step(CallOptimize{Call: c})
				case "sync":
					ask := r.newCall()
					r.step(AskSync{Call: ask})
					require.Len(t, r.fx, 1, "a question has no effect")
					require.Equal(t, code != goes, r.dones[ask].Err != nil)
					r.step(CallSync{Call: c, Entries: []wire.StateEntry{{Key: "w"}}})
				case "reduce":
					r.step(CallCollective{Call: c, Op: 50, Tag: 50, DType: dtype.Float32, RedOp: dtype.Sum})
				case "await":
					r.step(CallAwait{Call: c, Op: 1})
				case "close":
					r.step(CallClose{Call: c})
				}
				if code == goes {
					if d, done := r.dones[c]; done {
						require.NoError(t, d.Err)
					}
				} else {
					r.failed(c, code)
					require.Len(t, r.fx, 1, "a refused call has no other effect") // S2-17
				}
				drain(t, r)
			})
		}
	}
}

// drain ends the session and checks that everything is answered.
func drain(t *testing.T, r *rig) {
	t.Helper()
	r.step(MasterGone{Err: errors.New("reset")})
	for op := range r.open {
		r.step(DataEnded{Op: op, Err: errors.New("reset")})
	}
	if f := r.m.flow; f != nil {
		r.step(Fetched{Call: f.call, Err: errors.New("reset")})
		r.step(ProbesDone{Call: f.call})
		r.step(Probed{Round: f.working, Err: errors.New("reset")})
	}
	for _, op := range slices.Clone(r.m.ops) {
		if !op.awaited {
			r.await(op.id)
		}
	}
	for c := CallID(1); c <= r.call; c++ {
		require.Contains(t, r.dones, c, "call %d was never answered", c)
	}
	for op := OpID(1); op <= r.op; op++ {
		require.Contains(t, r.finishes, op, "operation %d was never finished", op)
	}
}

func everyPacket() []wire.Packet {
	return []wire.Packet{
		wire.M2CSessionRegistrationResponse{Accepted: true, UUID: uid(1), Ext: wire.Ext{Native: true}},
		wire.M2CP2PConnectionInfo{Unchanged: true},
		wire.M2CP2PConnectionsEstablished{},
		wire.M2CPeersPendingResponse{},
		wire.M2COptimizeTopologyResponse{},
		wire.M2COptimizeTopologyComplete{},
		wire.M2CSyncSharedState{},
		wire.M2CSyncSharedStateComplete{},
		wire.M2CCollectiveCommsCommence{Tag: 1},
		wire.M2CCollectiveCommsComplete{Tag: 1},
		wire.M2CCollectiveCommsAbort{Tag: 1, Aborted: true},
		wire.M2CHeartbeat{},
		wire.M2CPeerDropped{UUID: uid(2)},
		wire.M2CNames{Members: []wire.NamedMember{{UUID: uid(2), Name: "two"}}},
		wire.M2CRevocations{DER: "\x30\x00"},
		wire.M2CProbe{Round: 9, To: uid(2), Addr: addr(2)},
		wire.M2CProbeGo{Round: 1},
		wire.M2CProbesDone{},
		wire.M2CPrepareRing{Change: 1, Peers: endpoints(2)},
		wire.M2CSwitchRing{Change: 1},
		wire.M2CPrepareMesh{Change: 1},
		wire.M2CMesh{Change: 1},
		wire.C2MHeartbeat{},
		wire.P2PHello{},
		nil,
	}
}

// Every packet in every state. One that is not in the table ends the session with a
// protocol error and answers every call.
// Quirks Q61 and Q63.
func TestEveryPacketInEveryState(t *testing.T) {
	const always, scheduled = "64 65 90 2", "64 65 90 2 66 67 68"
	legal := map[string]string{
		"fresh": "", "register": "1 64", "waiting to be let in": always,
		"idle": always, "vote": always, "establish": always, "ring": always + " 3",
		"requests": always + " 5", "probing": always, "optimized": always + " 6",
		"called for probes": scheduled, "connecting to probe": scheduled, "ready to probe": scheduled, "sending": scheduled,
		"election": always + " 7", "fetching": always, "synced": always + " 8",
		"op voting": always + " 9", "op running": always + " 11", "op reported": always + " 11 10",
		"op judged": always + " 10", "op settled": always, "repair": always, "over": "*",
	}
	for _, s := range states() {
		for _, p := range everyPacket() {
			t.Run(fmt.Sprintf("%s/%T", s.name, p), func(t *testing.T) {
				r, busy := s.go_(t)
				r.in(p)
				ok := legal[s.name] == "*"
				var id int
				for _, w := range strings.Fields(legal[s.name]) {
					_, _ = fmt.Sscan(w, &id)
					ok = ok || p != nil && p.Proto() == wire.M2C && int(p.ID()) == id
				}
				_, gone := has[Disconnect](r)
				require.Equal(t, !ok, gone) // S2-17
				if gone && busy != 0 && len(r.m.ops) == 0 && r.m.flow == nil {
					require.ErrorIs(t, r.dones[busy].Err, errs.Protocol)
				}
				if gone {
					require.ErrorIs(t, r.m.ended, errs.Protocol)
				}
				drain(t, r)
			})
		}
	}
}

// The answer to a pending query is legal only if one is out.
func TestPendingAnswerNobodyAskedFor(t *testing.T) {
	r := connected(t, true, 1, 2)
	r.in(wire.M2CPeersPendingResponse{})
	want[Disconnect](r)
	require.ErrorIs(t, r.m.ended, errs.Protocol)
}
