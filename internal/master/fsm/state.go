package fsm

import (
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/master/fsm/links"
	"github.com/gopccl/gopccl/internal/master/fsm/pace"
	"github.com/gopccl/gopccl/internal/wire"
)

// Phase says whether a registered client was let in (control spec, section 5).
type Phase uint8

// Phases.
const (
	Registered Phase = iota // waits for the accepted peers
	Accepted
)

// State is what a client does or waits for (control spec, section 5).
type State uint8

// States, in the order of the specification.
const (
	Idle State = iota
	VoteAccept
	VoteEstablish
	Connecting
	ConnectFailed
	Waiting
	VoteOptimize
	Optimizing
	VoteOptimizeDone
	VoteSync
	Distribute
	Request
	VoteSyncDone
	Collective

	numStates
)

// OpState is the state of one collective at one client.
type OpState uint8

// States of a collective.
const (
	VoteInit OpState = iota
	Perform
	VoteComplete

	numOpStates
)

var phaseNames = [...]string{"PEER_REGISTERED", "PEER_ACCEPTED"}

var stateNames = [numStates]string{
	"IDLE", "VOTE_ACCEPT_NEW_PEERS", "VOTE_ESTABLISH_P2P_CONNECTIONS", "CONNECTING_TO_PEERS",
	"CONNECTING_TO_PEERS_FAILED", "WAITING_FOR_OTHER_PEERS", "VOTE_OPTIMIZE_TOPOLOGY",
	"OPTIMIZE_TOPOLOGY", "VOTE_COMPLETE_OPTIMIZE_TOPOLOGY", "VOTE_SYNC_SHARED_STATE",
	"DISTRIBUTE_SHARED_STATE", "REQUEST_SHARED_STATE", "VOTE_COMPLETE_SYNC_SHARED_STATE",
	"COLLECTIVE_COMMUNICATIONS_RUNNING",
}

var opStateNames = [...]string{
	"VOTE_INITIATE_COLLECTIVE_COMMS", "PERFORM_COLLECTIVE_COMMS", "VOTE_COMPLETE_COLLECTIVE_COMMS",
}

// String returns the name used in status dumps.
func (p Phase) String() string { return phaseNames[p] }

// String returns the name used in status dumps.
func (s State) String() string { return stateNames[s] }

// String returns the name used in status dumps.
func (s OpState) String() string { return opStateNames[s] }

// votes reports whether a client in s waits for the votes of others.
func (s State) votes() bool {
	return s == VoteAccept || s == VoteEstablish || s == VoteOptimize || s == VoteSync
}

// client is one connection; the fields below uuid are set by registration.
type client struct {
	id     ClientID
	remote netip.AddrPort
	host   netip.Addr    // where it says that others reach it; not valid: at remote
	since  time.Duration // connected at
	seen   time.Duration // last sign of life

	registered bool
	asked      bool   // for the topology, unregistered
	owed       bool   // waits for the topology
	asks       bucket // questions for the topology
	refusals   int    // of registrations
	lines      lines  // about it
	closing    bool
	kind, why  string // fact kind and reason of the end, set when closing

	uuid                        wire.UUID
	phase                       Phase
	state                       State
	waitSince                   time.Duration // when state was entered
	warned                      bool          // the wait in this state was logged
	p2pPort, statePort, bwPort  uint16
	group                       *group
	native                      bool
	beats                       bool      // heartbeats were granted
	inRound, newcomer, reported bool      // part of the round; not accepted before it; reported failure
	vague                       bool      // ... and named none of its neighbours
	stood                       uint64    // the last round that gave it a ring with others, 0: unproven
	against                     []witness // since then
	preflights                  bool      // announced capability Preflight
	tests, trying               int       // newcomers that it was asked to try, that it tries now
	proof                       proof     // of a newcomer
	missed                      int       // times that others, who reach others, could not reach it
	neighbours                  []wire.UUID
	unreachable                 []mark
	strikes                     int           // rounds in a row that found no ring because of it
	slot                        int           // its place in the links of the others of its group
	links                       []link        // by the target's slot
	topology                    bool          // announced capability Topology
	eager                       bool          // announced capability Eager
	scheduled                   bool          // waits for calls to measure
	switches                    bool          // announced capability Switch
	prepared                    uint64        // the change that it has connected for
	rtt                         time.Duration // of the connection to it, the least that was seen

	pending       bool
	pendingSince  time.Duration
	pendingWarned bool

	vote  syncVote
	holds bool // has the state of the last election

	reports bool          // says how many bytes it has moved
	bytes   uint64        // that it has moved
	moved   time.Duration // when it last moved any

	joined bool // counted by its group
	ops    map[uint64]*clientOp
	parts  [numOpStates]int // of ops
}

// link is what is known of the link to another peer.
type link struct {
	known     bool    // measured, or asked for in vain
	mbps      float64 // 0: could not be measured
	deviation float64 // standard error, 0: unknown
	at        time.Duration
}

// mark says that a peer could not be reached, and since which round.
type mark struct {
	to    wire.UUID
	round uint64
}

// clientOp is one collective of one client.
type clientOp struct {
	c     *client
	t     *tagState
	n     uint64 // in the order of the votes
	state OpState
	count uint64
	dtype dtype.Type
	op    dtype.Op
	form  wire.WireForm
	ahead ahead
}

// ahead is what a member that began before the commence has said of its end.
type ahead uint8

const (
	aheadNothing  ahead = iota
	aheadComplete       // its data phase is over
	aheadAborted        // its data phase has failed
)

// group is the state of one peer group.
type group struct {
	id      uint32
	census  *census   // of all groups
	clients []*client // registered, oldest first
	here    headcount // of clients
	members []*client // the accepted ones; see Machine.members
	stale   bool      // members has to be made anew
	natives int       // accepted gopccl peers
	stirred bool      // listed in census.stirred
	lines   lines     // about it
	slots   []*client // see client.slot; nil: free

	ring  []wire.UUID // of the last round; replaced as a whole, packets share it
	pure  bool        // all in it are gopccl peers
	eager bool        // all in it can begin without a commence
	order []wire.UUID // preferred order of the members, nil: by uuid

	known   bool // somebody in it had stood in a ring with others when its last round began
	dropped bool // a participant left while the round ran (quirk Q6)
	again   bool // its part of the last round failed, others did not
	healed  bool // marks were given up since a round succeeded

	inForce    []wire.UUID // the last ring that a round has succeeded with
	search     *job        // the solver that works beside the run
	optimal    bool        // the ring in order is proved to be the best
	chosenRate float64     // slowest link of the ring in order, or when a search began, Mbit/s
	postponed  []wire.UUID // found too soon after the last change
	refused    [][]wire.UUID
	reordered  time.Duration // the last change of order
	watched    time.Duration // the last look at the slowest link
	patience   time.Duration // until a search may cause the next one
	pace       pace.Pace
	trial      *trial
	shares     links.Shares // hosts whose peers share what leads out or in
	change     *change      // the ring that its members connect for

	nextRev     uint64
	print       *fingerprint // of the state of the last synchronisation that succeeded
	resumes     bool         // the group was empty, and has synchronised nothing since
	prevRev     uint64       // nextRev before the running synchronisation
	electing    bool         // a state is handed out: M2C 7 went out, M2C 8 did not
	chosen      *fingerprint // of the state that was elected last
	firstHolder int          // rotates the first distributor
	tags        tagList
	flying      int // tags that are being performed
}

// tagState is one collective of a group.
type tagState struct {
	tag     uint64
	aborted bool
	since   time.Duration
	warned  bool

	ending    time.Duration // when the first member was through with it
	endWarned bool

	performed bool // commenced and not over
	dropped   bool // no longer in its list
	at        int  // in its list
	ops       [numOpStates]int
}

// performing reports whether c works on a collective.
func (c *client) performing() bool { return c.parts[Perform] > 0 }

// blocked reports whether c waits for the votes of others and has nothing else to do.
func (c *client) blocked() bool {
	return c.state.votes() || c.state == Collective && c.parts[Perform]+c.parts[VoteComplete] == 0
}

// op returns what c has of a collective, nil if that is nothing.
func (c *client) op(tag uint64) *clientOp { return c.ops[tag] }

// at is where others reach a port of c.
func (c *client) at(port uint16) netip.AddrPort {
	if c.host.IsValid() {
		return netip.AddrPortFrom(c.host, port)
	}
	return netip.AddrPortFrom(c.remote.Addr().Unmap(), port)
}

// name is how facts and reasons call a client.
func (c *client) name() string {
	if !c.registered {
		return c.remote.String()
	}
	return c.uuid.Short() + " (" + c.remote.String() + ")"
}
