package fsm

import (
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/master/fsm/links"
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

// client is one connection; the fields from uuid on are set by registration.
type client struct {
	id        ClientID
	remote    netip.AddrPort
	since     time.Duration // connected at
	seen      time.Duration // last sign of life
	listens   listeners
	questions questions
	refusals  int   // of registrations
	lines     lines // about it
	closing   bool
	end       ending // why, when closing

	registered bool
	uuid       wire.UUID
	phase      Phase
	state      State
	wait       wait // in state
	group      *group
	joined     bool // counted by its group
	native     bool
	can        abilities
	progress   progress

	pending query     // whether peers are pending
	round   roundPart // in the round that runs
	record  record
	trial   trialPart
	place   place
	ways    ways
	probe   probePart // in the optimization that runs
	vote    syncVote  // in the synchronisation that runs
	ops     opParts
}

// wait is the time since when a client or a collective waits, and whether that was
// logged.
type wait struct {
	since  time.Duration
	warned bool
}

// listeners are where others reach a client.
type listeners struct {
	host                  netip.Addr // that it has announced; not valid: where its connection comes from
	p2p, state, bandwidth uint16     // ports
	as                    Identity   // whom others have to meet there
}

// questions are those for the topology, which strangers may ask as well.
type questions struct {
	once bool // asked, unregistered
	owed bool // waits for the answer
	pace bucket
}

// ending is why a connection ends.
type ending struct {
	kind  string // of the fact
	why   string
	quiet bool // it has left, and no collective needs it

	untold bool // its connection stands, and it has not heard of it
}

// abilities are what a client has announced and was granted: none for PCCL peers.
type abilities struct {
	heartbeat   bool
	preflight   bool // tries whether it reaches others
	topology    bool // measures when it is told to
	eager       bool // begins a collective without the commence
	switchRing  bool // connects for a better ring beside its collectives
	collectives bool // other than all-reduce
	plans       bool // all-reduces in other ways than the ring
	forward     bool // gets a result from the master that it could not compute
	leave       bool // goes on with a ring without a member that leaves
	schemes     bool // knows other plans for large all-reduces
	rates       bool // says what its connections gave
	ways        bool // needs no mesh for plans, and has such for small all-reduces
	pairs       bool // has an exchange of one hop in a group of two
	resume      bool // goes on with its session at another master
	revocations bool // takes revocation lists
	plain       bool // takes members without a certificate
}

// progress is what a client says of the bytes that it has moved.
type progress struct {
	told  bool // it says something
	bytes uint64
	at    time.Duration // when it last moved any
}

// query is a question that all have to ask before one is answered.
type query struct {
	open bool
	wait wait
}

// roundPart is a client's part in the round that runs; the zero value is none.
type roundPart struct {
	in       bool
	newcomer bool // not accepted before it
	reported bool // a failure
	vague    bool // ... that names none of its neighbours
	kept     bool // its address is outside because of it
}

// record is what rounds have shown of a client. A ring with others clears it.
type record struct {
	stood   uint64    // the last round that gave it such a ring, 0: unproven
	against []witness // since then
	missed  int       // times that others, who reach others, could not reach it
	strikes int       // rounds in a row that found no ring because of it
}

// trialPart is a client's part in the trials of newcomers: as the newcomer, and as
// a member that tries others.
type trialPart struct {
	proof  proof
	asked  int // newcomers that it was asked to try
	trying int // ... that it tries now
}

// place is where a client is connected.
type place struct {
	neighbours []wire.UUID // in the ring in force
	prepared   uint64      // the change that it has connected for
	meshed     uint64      // the mesh that it has connected for
	ways       []wire.Way  // to the other members, when it had
	unreached  []wire.UUID // members that it could not be connected with since the round

	parted    bool // it has said that it ends the session
	away      bool // its connection has ended, and it may come back
	lives     bool // ... and has tried to
	awaySince time.Duration
	awayUntil time.Duration
	// apart: it comes from a run of newcomers that has given way, whose revisions mean nothing.
	apart bool
	// lostUntil is how long the word of a neighbour counts that it has lost it.
	lostUntil time.Duration
	lostAnew  bool          // ... by one that had connected to it in the round under way
	calm      time.Duration // it is not taken back once more before
}

// ways are what is known of the connections to the others of the group.
type ways struct {
	slot        int             // its place in the links of the others
	links       []link          // by the target's slot
	gave        []wire.C2MRates // what it said of its connections, oldest first
	unreachable []mark
}

// probePart is a client's part in the scheduled measurements of an optimization.
type probePart struct {
	scheduled bool          // waits for calls to measure
	rtt       time.Duration // of the connection to it, the least that was seen
}

// opParts are a client's parts in collectives.
type opParts struct {
	by map[uint64]*clientOp // tag
	in [numOpStates]int     // how many of them are in each state
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
	call  wire.Call
	ahead ahead
	why   string // of aheadAborted: the arguments of two members do not agree
	told  bool   // it has heard the verdict, from an earlier master

	forward bool // its caller wants it finished forward
	holding
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
	slots   []*client // see ways.slot; nil: free

	ring   []wire.UUID // of the last round; replaced as a whole, packets share it
	pure   bool        // all in it are gopccl peers
	eager  bool        // all in it can begin without a commence
	order  []wire.UUID // preferred order of the members, nil: by uuid
	roster []wire.UUID // members as collectives count them, of the last round; replaced as a whole
	left   int         // those who have left between two collectives since
	lacks  string      // why they have no collectives but all-reduce, "": they do
	round  groupRound

	inForce timedRing  // the last ring that a round has succeeded with
	before  *timedRing // the one that it replaced, while the two are compared
	search  search
	shares  links.Shares // hosts whose peers share what leads out or in
	change  *change      // the ring that its members connect for
	mesh    mesh
	learned learner

	state  sharedState
	tags   tagList
	flying int // tags that are being performed
}

// groupRound is what the last round of a group began with, and has left to do.
type groupRound struct {
	known   bool // a member had stood in a ring with others when it began
	dropped bool // a participant left while it ran (quirk Q6)
	again   bool // it failed here, and not in other groups
	lost    bool // newcomers have cost it; until it has been repeated
	healed  bool // marks were given up since a round succeeded
}

// tagState is one collective of a group.
type tagState struct {
	tag     uint64
	seq     uint64 // of the last commence
	aborted bool
	wait    wait // for votes
	ending  wait // since the first member was through with it

	performed bool // commenced and not over
	decided   bool // some have heard the verdict
	forward
	dropped bool // no longer in its list
	at      int  // in its list
	ops     [numOpStates]int
}

// performing reports whether c works on a collective.
func (c *client) performing() bool { return c.ops.in[Perform] > 0 }

// blocked reports whether c waits for the votes of others and has nothing else to do.
func (c *client) blocked() bool {
	return c.state.votes() || c.state == Collective && c.ops.in[Perform]+c.ops.in[VoteComplete] == 0
}

// op returns what c has of a collective, nil if that is nothing.
func (c *client) op(tag uint64) *clientOp { return c.ops.by[tag] }

// at is where others reach a port of c.
func (c *client) at(port uint16) netip.AddrPort {
	if c.listens.host.IsValid() {
		return netip.AddrPortFrom(c.listens.host, port)
	}
	return netip.AddrPortFrom(c.remote.Addr().Unmap(), port)
}

// name is how facts and reasons call a client.
func (c *client) name() string {
	if !c.registered {
		return c.remote.String()
	}
	if who := c.listens.as.Name; who != "" {
		return who + "/" + c.uuid.Short() + " (" + c.remote.String() + ")"
	}
	return c.uuid.Short() + " (" + c.remote.String() + ")"
}
