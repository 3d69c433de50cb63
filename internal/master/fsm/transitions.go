package fsm

import (
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/wire"
)

// rule is one row of the table of legal packets (control spec, section 5.2).
type rule struct {
	packet   wire.ID
	accepted bool    // the sender must be accepted
	from     []State // legal states of the sender; nil: any
	to       []State // what the packet leads to; nil: the state stays
}

// rules are the legal packets of registered clients; whatever is not listed
// costs the sender its connection. Conditions on tags, revisions and pending
// queries come on top. doc.go draws them.
var rules = []rule{
	{wire.C2MRequestEstablishP2PConnections{}.ID(), true, []State{Idle, ConnectFailed}, []State{VoteAccept, VoteEstablish}},
	{wire.C2MP2PConnectionsEstablished{}.ID(), false, []State{Connecting}, []State{Waiting, ConnectFailed}},
	{wire.C2MCheckPeersPending{}.ID(), true, nil, nil},
	{wire.C2MOptimizeTopology{}.ID(), true, []State{Idle}, []State{VoteOptimize}},
	{wire.C2MReportPeerBandwidth{}.ID(), false, nil, nil},
	{wire.C2MOptimizeTopologyWorkComplete{}.ID(), true, []State{Optimizing}, []State{VoteOptimizeDone}},
	{wire.C2MSyncSharedState{}.ID(), true, []State{Idle}, []State{VoteSync}},
	{wire.C2MDistSharedStateComplete{}.ID(), true, []State{Distribute, Request}, []State{VoteSyncDone}},
	{wire.C2MCollectiveCommsInitiate{}.ID(), true, []State{Idle, Collective}, []State{Collective}},
	{wire.C2MCollectiveCommsComplete{}.ID(), true, []State{Collective}, nil},
	{wire.C2MResult{}.ID(), true, []State{Collective}, nil},
	{wire.C2MHeartbeat{}.ID(), false, nil, nil},
	{wire.C2MProbeState{}.ID(), true, nil, nil},
	{wire.C2MLinkReport{}.ID(), true, nil, nil},
	{wire.C2MRates{}.ID(), true, nil, nil},
	{wire.C2MRingPrepared{}.ID(), true, nil, nil},
	{wire.C2MPreflightDone{}.ID(), false, nil, nil},
	{wire.C2MWantMesh{}.ID(), true, nil, nil},
	{wire.C2MLeave{}.ID(), true, []State{Idle}, nil},
	{wire.C2MFarewell{}.ID(), false, nil, nil},
	{wire.C2MLinkEnded{}.ID(), false, nil, nil},
	{wire.C2MMeshPrepared{}.ID(), true, nil, nil},
}

// conclusion is a transition that no packet of the client makes, but what it has
// waited for.
type conclusion struct {
	why      string
	from, to State
}

// conclusions are all of them. doc.go draws them.
var conclusions = []conclusion{
	{"let in", Idle, Connecting},
	{"let in", ConnectFailed, Connecting},
	{"all voted", VoteAccept, Connecting},
	{"all voted", VoteEstablish, Connecting},
	{"ring stands", Waiting, Idle},
	{"no ring", Waiting, ConnectFailed},
	{"all voted", VoteOptimize, Optimizing},
	{"solved", VoteOptimizeDone, Idle},
	{"elected", VoteSync, Distribute},
	{"elected", VoteSync, Request},
	{"all done", VoteSyncDone, Idle},
	{"all released", Collective, Idle},
}

// legal reports whether a registered client may send packet id.
func legal(id wire.ID, phase Phase, state State) bool {
	for _, r := range rules {
		if r.packet == id && (!r.accepted || phase == Accepted) && (r.from == nil || slices.Contains(r.from, state)) {
			return true
		}
	}
	return false
}

// leads reports whether the tables have a transition between two states.
func leads(from, to State) bool {
	return from == to ||
		slices.ContainsFunc(rules, func(r rule) bool { return slices.Contains(r.from, from) && slices.Contains(r.to, to) }) ||
		slices.ContainsFunc(conclusions, func(c conclusion) bool { return c.from == from && c.to == to })
}

// set moves c to a state that the tables lead to.
func (c *client) set(s State, now time.Duration) {
	if invariants.Enabled {
		invariants.Check(!c.joined || leads(c.state, s), "client %d goes from %v to %v", c.id, c.state, s)
	}
	c.put(s, now)
}

// put sets the state of c and counts it.
func (c *client) put(s State, now time.Duration) {
	if c.joined {
		c.group.count(c, -1)
		defer c.group.count(c, 1)
	}
	c.state, c.wait = s, wait{since: now}
}
