package fsm

import (
	"slices"

	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/wire"
)

// status is that of the session. It only ever moves forward, but that a session which
// has lost its master may find one again.
type status uint8

const (
	statusFresh    status = iota // nothing was sent yet
	statusLive                   // between the registration and the end
	statusDetached               // ... without a master
	statusOver                   // ended; work that was begun is still being unwound
)

// step is where the phase-changing call in progress stands.
type step uint8

const (
	stepNone       step = iota
	stepRegister        // C2M 1 is out
	stepInfo            // waiting to be let in, or C2M 2 is out
	stepConnecting      // an Establish effect is being carried out
	stepRing            // C2M 3 is out
	stepRequests        // C2M 5 is out
	stepProbing         // a Probe effect is being carried out, or the master calls for probes
	stepOptimized       // C2M 7 is out
	stepElection        // C2M 8 is out
	stepFetching        // a Fetch effect is being carried out
	stepSynced          // C2M 9 is out
	numSteps
)

// stepNames appear in errors as the phase of the call.
var stepNames = [numSteps]string{
	"idle", "register", "vote", "establish", "ring", "optimize vote",
	"probe", "optimize", "election", "fetch", "sync complete",
}

// move is a transition between two steps: by a packet of the master, or for
// another reason, which is then in why.
type move struct {
	packet   wire.ID
	why      string
	from, to step
}

// moves are all of them; doc.go draws them. The packets are the legal answers:
// no other one moves a step on. Packets that belong to no step, and connection
// infos outside of one, have rules of their own.
var moves = []move{
	{0, "CallConnect", stepNone, stepRegister},
	{wire.M2CSessionRegistrationResponse{}.ID(), "", stepRegister, stepInfo},

	{0, "CallUpdate", stepNone, stepInfo},
	{0, "repair", stepNone, stepInfo},
	{wire.M2CP2PConnectionInfo{}.ID(), "", stepInfo, stepConnecting},
	{0, "Established", stepConnecting, stepRing},
	{wire.M2CP2PConnectionsEstablished{}.ID(), "", stepRing, stepNone},
	{wire.M2CP2PConnectionsEstablished{}.ID(), "", stepRing, stepInfo},
	{0, "startOver", stepConnecting, stepInfo},
	{0, "startOver", stepRing, stepInfo},

	{0, "CallOptimize", stepNone, stepRequests},
	{wire.M2COptimizeTopologyResponse{}.ID(), "", stepRequests, stepProbing},
	{wire.M2COptimizeTopologyResponse{}.ID(), "", stepRequests, stepOptimized},
	{0, "measured", stepProbing, stepOptimized},
	{wire.M2COptimizeTopologyComplete{}.ID(), "", stepOptimized, stepInfo},
	{wire.M2COptimizeTopologyComplete{}.ID(), "", stepOptimized, stepRequests},

	{0, "CallSync", stepNone, stepElection},
	{wire.M2CSyncSharedState{}.ID(), "", stepElection, stepFetching},
	{wire.M2CSyncSharedState{}.ID(), "", stepElection, stepSynced},
	{0, "startOver", stepElection, stepNone},
	{0, "Fetched", stepFetching, stepSynced},
	{wire.M2CSyncSharedStateComplete{}.ID(), "", stepSynced, stepNone},
}

// waitsFor reports whether packet id is what moves a step on.
func (s step) waitsFor(id wire.ID) bool {
	return slices.ContainsFunc(moves, func(m move) bool { return m.from == s && m.packet == id && id != 0 })
}

// leadsTo reports whether there is a transition to another step.
func (s step) leadsTo(to step) bool {
	return slices.ContainsFunc(moves, func(m move) bool { return m.from == s && m.to == to })
}

// to moves the call on.
func (f *flow) to(s step) {
	if invariants.Enabled {
		invariants.Check(f.step.leadsTo(s), "%s goes from %q to %q", kindNames[f.kind], stepNames[f.step], stepNames[s])
	}
	f.step = s
}

// opState is the life of a collective at its peer.
type opState uint8

const (
	opQueued   opState = iota // C2M 10 waits for other operations to end
	opHeld                    // eager: the data phase runs, C2M 10 is held back
	opVoting                  // C2M 10 is out
	opAhead                   // eager: C2M 11 is out, M2C 9 did not come
	opRunning                 // M2C 9 came, the data phase runs
	opReported                // C2M 11 is out
	opSettled                 // the verdict is known, Finish was emitted
	numOpStates
)

// opMove is a transition of a collective, like move.
type opMove struct {
	packet   wire.ID
	why      string
	from, to opState
}

// opMoves are all of them but one: the end of the session settles every
// collective. doc.go draws them.
var opMoves = []opMove{
	{0, "room", opQueued, opVoting},
	{0, "begins eagerly", opQueued, opHeld},
	{0, "let go", opHeld, opVoting},
	{0, "DataEnded", opHeld, opAhead},
	{0, "DataEnded", opVoting, opAhead},
	{wire.M2CCollectiveCommsCommence{}.ID(), "", opVoting, opRunning},
	{wire.M2CCollectiveCommsCommence{}.ID(), "", opVoting, opReported}, // canceled meanwhile
	{wire.M2CCollectiveCommsCommence{}.ID(), "", opAhead, opReported},
	{0, "DataEnded", opRunning, opReported},
	{wire.M2CCollectiveCommsComplete{}.ID(), "", opReported, opSettled},
}

// to moves the collective on.
func (op *operation) to(s opState) {
	if invariants.Enabled {
		known := slices.ContainsFunc(opMoves, func(m opMove) bool { return m.from == op.state && m.to == s })
		invariants.Check(known || s == opSettled, "operation %d goes from state %d to %d", op.id, op.state, s)
	}
	op.state = s
}
