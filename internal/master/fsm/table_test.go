package fsm

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/diagram"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// lawful is the table of control spec, section 5.2, written down once more, by
// packet: which phases, which states.
var lawful = map[wire.ID]struct {
	registered []State
	accepted   []State
}{
	2:  {nil, []State{Idle, ConnectFailed}},
	3:  {[]State{Connecting}, []State{Connecting}},
	4:  {nil, everyState()},
	5:  {nil, []State{Idle}},
	6:  {everyState(), everyState()},
	7:  {nil, []State{Optimizing}},
	8:  {nil, []State{Idle}},
	9:  {nil, []State{Distribute, Request}},
	10: {nil, []State{Idle, Collective}},
	11: {nil, []State{Collective}},
	64: {everyState(), everyState()},
	65: {nil, everyState()},
	66: {nil, everyState()},
	68: {nil, everyState()},
	71: {everyState(), everyState()},
	73: {everyState(), everyState()},
	74: {everyState(), everyState()},
	76: {nil, everyState()},
	89: {nil, everyState()}, // 88 only in groups that announced it
}

func everyState() (all []State) {
	for s := range numStates {
		all = append(all, s)
	}
	return all
}

var everyPacket = []wire.Packet{
	wire.C2MRequestSessionRegistration{},
	acceptVote, establishVote, connected,
	wire.C2MP2PConnectionsEstablished{},
	wire.C2MCheckPeersPending{},
	wire.C2MOptimizeTopology{},
	wire.C2MReportPeerBandwidth{Mbps: 1},
	wire.C2MOptimizeTopologyWorkComplete{},
	wire.C2MSyncSharedState{},
	wire.C2MDistSharedStateComplete{},
	initiate(1), complete(1, false),
	wire.C2MHeartbeat{},
	wire.C2MProbeState{State: wire.ProbeReady},
	wire.C2MRingPrepared{},
	wire.C2MPreflightDone{},
	wire.C2MWantMesh{},
	wire.C2MLeave{},
	wire.C2MFarewell{},
	wire.C2MLinkEnded{},
	wire.C2MMeshPrepared{},
	wire.C2MLinkReport{Mbps: 1, Busy: 1},
	wire.C2MRates{},
	wire.M2CHeartbeat{},
	wire.P2PHello{},
	nil,
}

// Every packet in every phase and state: the legal ones of section 5.2 are
// taken, all others cost the connection; the master goes on in every case.
func TestEveryTransition_Section5_2(t *testing.T) {
	for _, phase := range []Phase{Registered, Accepted} {
		for _, state := range everyState() {
			for i, p := range everyPacket {
				name := fmt.Sprintf("%v/%v/%d %T", phase, state, i, p)
				if phase == Registered && state > Waiting {
					// Cannot come about; the table is asked all the same.
					if p != nil && p.Proto() == wire.C2M {
						require.Equal(t, slices.Contains(lawful[p.ID()].registered, state), legal(p.ID(), phase, state), name) // S2-17
					}
					continue
				}
				w := newWorld(t, Config{})
				cs := w.members(2, false)
				c := w.m.conns[cs[0]]
				if phase == Registered {
					c.letOut()
				}
				c.put(state, 0)
				switch state {
				case Connecting, Waiting:
					c.round.in, w.m.round.active = true, true
				case Collective:
					c.group.addOp(c, c.group.tags.add(1, 0), clientOp{})
					c.op(1).to(Perform, 0)
				}
				if pkt, ok := p.(wire.C2MCollectiveCommsInitiate); ok && state == Collective {
					pkt.Tag = 2
					p = pkt
				}
				may := false
				if p != nil && p.Proto() == wire.C2M {
					row := lawful[p.ID()].accepted
					if phase == Registered {
						row = lawful[p.ID()].registered
					}
					may = slices.Contains(row, state)
				}
				w.send(cs[0], p)
				if may {
					require.NotContains(t, w.closed, cs[0], name)
				} else {
					require.Contains(t, w.closed, cs[0], name) // S1-10
				}
				require.NotContains(t, w.closed, cs[1], name) // S2-11
			}
		}
	}
}

// The diagrams of doc.go are the tables.
func TestDiagram(t *testing.T) {
	names := map[string]State{
		"Idle": Idle, "VoteAccept": VoteAccept, "VoteEstablish": VoteEstablish, "Connecting": Connecting,
		"ConnectFailed": ConnectFailed, "Waiting": Waiting, "VoteOptimize": VoteOptimize, "Optimizing": Optimizing,
		"VoteOptimizeDone": VoteOptimizeDone, "VoteSync": VoteSync, "Distribute": Distribute, "Request": Request,
		"VoteSyncDone": VoteSyncDone, "Collective": Collective,
	}
	require.Len(t, names, int(numStates))
	drawn, ops := map[conclusion]bool{}, []diagram.Edge{}
	source, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	for _, e := range diagram.Read(string(source)) {
		require.NotEqual(t, "?", e.From, "%v", e)
		from, ok := names[e.From]
		to, ok2 := names[e.To]
		require.Equal(t, ok, ok2, "%v", e)
		if ok {
			require.False(t, drawn[conclusion{e.Label, from, to}], "%v is drawn twice", e)
			drawn[conclusion{e.Label, from, to}] = true
		} else if strings.HasPrefix(e.From, "Vote") || e.From == "Perform" {
			ops = append(ops, e)
		}
	}
	want := map[conclusion]bool{}
	for _, c := range conclusions {
		want[c] = true
	}
	for _, r := range rules {
		for _, from := range r.from {
			for _, to := range r.to {
				if from != to {
					want[conclusion{fmt.Sprint(r.packet), from, to}] = true
				}
			}
		}
	}
	require.Equal(t, want, drawn)
	require.Equal(t, []diagram.Edge{
		{From: "VoteInit", Label: "all voted", To: "Perform"}, {From: "Perform", Label: "11", To: "VoteComplete"}, {From: "VoteComplete", Label: "all complete", To: "released"},
	}, ops)
	require.Equal(t, []OpState{VoteInit, Perform, VoteComplete}, []OpState{0, 1, 2})
}

// Packets that are legal by state, and still not: conditions of section 5.2.
func TestLegalStateButNotLegal_Section5_2(t *testing.T) {
	for name, tc := range map[string]struct {
		ps   []wire.Packet
		kick string
	}{
		"second pending query":     {[]wire.Packet{wire.C2MCheckPeersPending{}, wire.C2MCheckPeersPending{}}, "twice"},
		"same tag twice":           {[]wire.Packet{initiate(1), initiate(1)}, "twice"},
		"complete unknown tag":     {[]wire.Packet{initiate(1), complete(2, false)}, "without being performed"},
		"complete before commence": {[]wire.Packet{initiate(1), complete(1, false)}, "without being performed"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			cs := w.members(2, false)
			for _, p := range tc.ps {
				w.quiet(cs[0])
				w.send(cs[0], p)
			}
			w.isClosed(cs[0], tc.kick)
		})
	}
}

// The names of phases and states are those of the original.
func TestNames(t *testing.T) {
	require.Equal(t, "PEER_REGISTERED", Registered.String())
	require.Equal(t, "PEER_ACCEPTED", Accepted.String())
	require.Equal(t, "IDLE", Idle.String())
	require.Equal(t, "VOTE_ACCEPT_NEW_PEERS", VoteAccept.String())
	require.Equal(t, "COLLECTIVE_COMMUNICATIONS_RUNNING", Collective.String())
	require.Equal(t, "VOTE_INITIATE_COLLECTIVE_COMMS", VoteInit.String())
	require.Equal(t, "PERFORM_COLLECTIVE_COMMS", Perform.String())
	require.Equal(t, "VOTE_COMPLETE_COLLECTIVE_COMMS", VoteComplete.String()) // S2-11
	seen := map[string]bool{}
	for _, s := range everyState() {
		require.NotEmpty(t, s.String())
		require.False(t, seen[s.String()])
		seen[s.String()] = true
	}
}

// The content of a status dump.
func TestSnapshot(t *testing.T) {
	w := newWorld(t, Config{})
	cs := w.members(3, true)
	waiting := w.join(3, false)
	stranger := w.connectAt("127.0.0.1:9")
	w.send(cs[0], initiate(4))
	w.send(cs[1], wire.C2MCheckPeersPending{})
	s := w.m.Snapshot()
	require.Equal(t, 1, s.Unregistered)
	require.Len(t, s.Clients, 4)
	require.Equal(t, []OpInfo{{plan.AllReduce, 4, VoteInit}}, s.Clients[0].Collectives) // S2-10
	require.Equal(t, Collective, s.Clients[0].State)
	require.True(t, s.Clients[1].Pending)
	require.Equal(t, waiting, s.Clients[3].ID)
	require.Equal(t, Registered, s.Clients[3].Phase)
	require.Equal(t, []GroupInfo{
		{ID: 0, Members: 3, Ring: []wire.UUID{w.ids[cs[0]], w.ids[cs[1]], w.ids[cs[2]]}},
		{ID: 3, Waiting: 1},
	}, s.Groups)
	w.leave(stranger)
	require.Zero(t, w.m.Snapshot().Unregistered)
}
