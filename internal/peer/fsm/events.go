package fsm

import (
	"net/netip"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// CallID names one pending API call, OpID one collective operation. Both are
// drawn by the shell, increasing, never reused.
type (
	CallID uint64
	OpID   uint64
)

// Event is an input of Machine.Step.
type Event interface{ event() }

// Calls of the API. Each is answered by exactly one Done effect with its CallID.
type (
	// CallConnect registers the peer; the TCP connection to the master stands.
	CallConnect struct{ Call CallID }
	// CallUpdate votes to accept newcomers.
	CallUpdate struct{ Call CallID }
	// CallPending asks whether newcomers, or a better ring, wait; may overlap with collectives.
	CallPending struct{ Call CallID }
	// CallOptimize measures bandwidths and adopts a new ring.
	CallOptimize struct{ Call CallID }
	// AskSync asks whether a CallSync with these arguments would be taken now;
	// Done comes at once and nothing has changed. Describing a shared state takes
	// time and reads the tensors, which a call that is refused must not do.
	AskSync struct {
		Call     CallID
		Strategy wire.Strategy
		Torn     bool
	}
	// CallSync synchronises the shared state that the shell holds for Call. Torn
	// says that it is a mixture of two states, which may only receive.
	CallSync struct {
		Call     CallID
		Revision uint64
		Strategy wire.Strategy
		Torn     bool
		Entries  []wire.StateEntry
	}
	// CallCollective launches a collective. Done comes at once: nil if launched.
	CallCollective struct {
		Call  CallID
		Op    OpID
		Tag   uint64
		Count uint64
		DType dtype.Type
		RedOp dtype.Op
		Form  wire.WireForm // told to a gopccl master
		Vote  wire.Call     // what else the members have to agree on; zero: an all-reduce
		// Sends is the most bytes that this peer sends in it over a ring, and Direct over a
		// mesh; not of an all-reduce.
		Sends, Direct uint64
		Far           bool // the master is far away: it begins now whatever its size
		Forward       bool // an all-reduce is to be answered without its verdict, where that is possible
	}
	// CallAwait waits for the verdict of a launched operation and, where one is
	// due and no other operation is un-awaited, for the round that repairs the ring.
	CallAwait struct {
		Call CallID
		Op   OpID
	}
	// CallCancel says that the caller of Call gave up. Votes cannot be taken back:
	// a phase-changing call ends the session, an operation (Op of a
	// CallCollective/CallAwait) is aborted for all peers, unless this one has reported
	// that it is through: its verdict is no longer this peer's and is the answer.
	// The answer of a CallPending that was given up is the next one's.
	CallCancel struct {
		Call CallID
		Op   OpID // the operation to abort, 0 if Call is a phase-changing call
	}
	// CallMesh waits until the master has said whether there is a mesh, and asks for one.
	CallMesh struct{ Call CallID }
	// CallLeave leaves the run between two collectives of the others. No operation of
	// this peer may be without a verdict.
	CallLeave struct{ Call CallID }
	// CallClose leaves the run.
	CallClose struct{ Call CallID }
)

// Events from outside.
type (
	// PacketIn is a packet from the master. Every packet is a sign of life.
	PacketIn struct{ Packet wire.Packet }
	// Alive says that bytes of an unfinished packet of the master arrived: a large one on a slow link is
	// no silence.
	Alive struct{}
	// MasterGone says that the master connection ended or sent garbage.
	MasterGone struct{ Err error }
	// Attached is the answer to Hello of a Reattach effect. Broken are peers whose
	// connections to this one have ended, at either end.
	Attached struct {
		Packet wire.M2CSessionRegistrationResponse
		Broken []wire.UUID
	}
	// LinkEnded says that a peer has ended all connections from or to this one. Incoming: only
	// those that it had opened, which it may have closed because it needed them no more.
	LinkEnded struct {
		Peer     wire.UUID
		Incoming bool
	}
	// NotAttached says that a Reattach effect came to nothing.
	NotAttached struct{ Err error }
	// Established says that the work of an Establish effect is done; Failed names
	// peers that could not be reached (at least one means failure).
	Established struct {
		Round  uint64
		Failed []wire.UUID
		Far    bool // a neighbour is far away
	}
	// DataEnded says that the data phase of a started operation ended and its
	// buffers are no longer touched. Err nil: complete. Also the answer to
	// AbortData.
	DataEnded struct {
		Op  OpID
		Err error
	}
	// Fetched says that the work of a Fetch effect is done.
	Fetched struct {
		Call     CallID
		Revision uint64
		Err      error
	}
	// Measured is one bandwidth of a Probe effect; ProbesDone says that all are
	// through.
	Measured struct {
		Call CallID
		To   wire.UUID
		Mbps float64
	}
	ProbesDone struct{ Call CallID }
	// ProbeReady says that the connections of a PrepareProbe effect stand, or, with
	// an Err, that they do not, and that nothing more follows. Busy says that the
	// target is taken.
	ProbeReady struct {
		Round uint64
		Busy  bool
		Err   error
	}
	// Probed says that the work of a SendProbe or StopProbe effect is done.
	Probed struct {
		Round           uint64
		Mbps, Deviation float64
		Late            time.Duration
		Err             error
	}
	// RingPrepared says that the work of a PrepareRing effect is done; Failed names
	// peers that could not be reached.
	RingPrepared struct {
		Change uint64
		Failed []wire.UUID
	}
	// MeshPrepared says that the work of a PrepareMesh effect is done; Failed names
	// members that could not be reached.
	MeshPrepared struct {
		Change uint64
		Failed []wire.UUID
		Ways   []wire.Way // as PrepareMesh asks for them
	}
	// Preflighted says that the work of a Preflight effect is done; Failed names
	// peers that could not be reached.
	Preflighted struct {
		Number uint64
		Failed []wire.UUID
	}
	// LinkUsed is what the link to the next peer gave in operations, and the share
	// of their time in which it was at work.
	LinkUsed struct {
		To         wire.UUID
		Mbps, Busy float64
	}
	// RatesSeen is what the connections to distant peers gave at most.
	RatesSeen struct{ Rates wire.C2MRates }
	// Tick says that time passed; it is due when Machine.Deadline is reached.
	Tick struct{}
)

func (CallConnect) event()    {}
func (CallUpdate) event()     {}
func (CallPending) event()    {}
func (CallOptimize) event()   {}
func (AskSync) event()        {}
func (CallSync) event()       {}
func (CallCollective) event() {}
func (CallAwait) event()      {}
func (CallCancel) event()     {}
func (CallLeave) event()      {}
func (CallClose) event()      {}
func (CallMesh) event()       {}
func (PacketIn) event()       {}
func (MasterGone) event()     {}
func (Alive) event()          {}
func (Attached) event()       {}
func (LinkEnded) event()      {}
func (NotAttached) event()    {}
func (Established) event()    {}
func (DataEnded) event()      {}
func (Fetched) event()        {}
func (Measured) event()       {}
func (ProbesDone) event()     {}
func (ProbeReady) event()     {}
func (Probed) event()         {}
func (RingPrepared) event()   {}
func (MeshPrepared) event()   {}
func (Preflighted) event()    {}
func (LinkUsed) event()       {}
func (RatesSeen) event()      {}
func (Tick) event()           {}

// Effect is an output of Machine.Step, to be carried out in order.
type Effect interface{ effect() }

// Effects.
type (
	// Send writes the packet to the master.
	Send struct{ Packet wire.Packet }
	// Establish makes sure that a live send pool to every listed peer exists
	// (repairing broken ones), and then drops connections from and to peers neither
	// listed nor in Keep, who had a mesh; an Established event follows. It ends the work
	// of a PrepareRing. When that event was taken, neighbours may begin eagerly in Epoch,
	// if it is not 0.
	Establish struct {
		Round uint64
		Epoch uint64
		Peers []wire.PeerEndpoint
		Keep  []wire.UUID
	}
	// RoundOver says that the round has succeeded, so that no neighbour makes its
	// pool anew until the next Establish. Operations that neighbours began
	// eagerly in epochs before Epoch are over; 0: they begin nothing eagerly.
	RoundOver struct{ Epoch uint64 }
	// StartData begins the data phase; ring and own uuid are as captured at launch.
	// A DataEnded event follows, exactly one per StartData. Eager: the sequence
	// number is not known yet, CommenceData follows; until then it may send Ahead bytes of
	// frames, 0: all of its data. Epoch names the round since
	// which neighbours may begin eagerly, 0: they may not, because the group does
	// not or because the last operation with this tag has failed since.
	StartData struct {
		Op     OpID
		Tag    uint64
		Seq    uint64
		Epoch  uint64
		Eager  bool
		Ahead  uint64
		Ring   []wire.UUID
		Self   wire.UUID
		Native bool // all members of the group are gopccl peers
		// Vote is what was voted for in collectives other than all-reduce. Of these, and
		// of an all-reduce with Mesh: the group in the order in which they count it. Mesh:
		// all of it is connected with each other and the operation uses that.
		Vote    wire.Call
		Members []wire.UUID
		Mesh    bool
		// Large is the plan of a large all-reduce with Mesh; nil: the direct exchange.
		Large *plan.Option
	}
	// SkipData says that the operation with this number has begun elsewhere and
	// will not here; its frames are stale.
	SkipData struct{ Seq uint64 }
	// CommenceData is the sequence number of an operation that began eagerly; its
	// data phase may be over.
	CommenceData struct {
		Op  OpID
		Seq uint64
	}
	// SpoilData says that an operation with this tag has failed. Frames that still
	// come for it from neighbours that began it eagerly belong to no operation.
	SpoilData struct{ Tag, Epoch uint64 }
	// ExpectEpoch says that neighbours may begin eagerly in Epoch as soon as the answer
	// to the master that follows is sent.
	ExpectEpoch struct{ Epoch uint64 }
	// RenewData puts an operation back to where it was before its StartData: the data
	// phase has ended, the buffers become as before it, and another one follows.
	RenewData struct{ Op OpID }
	// AbortData ends the data phase now.
	AbortData struct {
		Op     OpID
		Reason string
	}
	// Finish says that the verdict is known and the data phase has ended (or never
	// began). Restore: the buffers must be as before the call.
	Finish struct {
		Op      OpID
		Restore bool
		Err     error // what Await will say, if that is known already
		// Keep: the verdict is not known, and the operation is over for its caller all the same. A
		// copy of the result is kept until DropResult.
		Keep bool
		// Result is written over what is restored: the result as others have it. It is the shell's.
		Result []byte
	}
	// GiveResult sends wire.C2MResult with the result of an operation that has completed here: the copy
	// that was kept, or what is in its buffers.
	GiveResult struct {
		Op       OpID
		Tag, Seq uint64
	}
	// DropResult forgets the copy that was kept of a result.
	DropResult struct{ Op OpID }
	// Serve hands out the shared state of Call to those who ask for it, until its
	// memory is needed: for a Fetch, which overwrites it, or for the caller, whose
	// it is again when the call is answered. There is no effect that ends it,
	// because the shell has to wait for readers before either, whatever the machine
	// says.
	Serve struct{ Call CallID }
	// Fetch fetches the keys from the first distributor that has them; a Fetched
	// event follows.
	Fetch struct {
		Call         CallID
		Distributors []netip.AddrPort
		Keys         []string
		Hashes       []uint64
		HashTypes    []wire.HashType
	}
	// StopFetch ends a Fetch with the session; a Fetched event still follows.
	StopFetch struct{ Call CallID }
	// Probe measures these edges; Measured events and one ProbesDone follow.
	Probe struct {
		Call     CallID
		Requests []wire.BandwidthRequest
	}
	// StopProbe ends a probe with the session, or because the master does not wait
	// any more; ProbesDone still follows, or Probed after a PrepareProbe.
	StopProbe struct{ Call CallID }
	// PrepareProbe connects to the benchmark of To; a ProbeReady event follows.
	PrepareProbe struct {
		Call  CallID
		Round uint64
		To    wire.UUID
		Addr  netip.AddrPort
	}
	// SendProbe measures over the connections that stand, beginning Delay from now;
	// a Probed event follows.
	SendProbe struct {
		Call  CallID
		Round uint64
		Delay time.Duration
	}
	// PrepareRing makes sure that a live send pool to every listed peer exists,
	// beside whatever runs; a RingPrepared event follows, unless StopPrepare comes
	// first. None of Peers is a neighbour yet. Ways are others that plans need.
	PrepareRing struct {
		Change      uint64
		Peers, Ways []wire.PeerEndpoint
	}
	// StopPrepare ends a PrepareRing: the change was given up.
	StopPrepare struct{ Change uint64 }
	// PrepareMesh makes sure that a live send pool to every listed member exists,
	// beside whatever runs; a MeshPrepared event follows, unless StopMesh comes first.
	PrepareMesh struct {
		Change uint64
		Peers  []wire.PeerEndpoint
		Ways   []wire.UUID // members to whom the round trip is to be told
	}
	// StopMesh ends a PrepareMesh.
	StopMesh struct{ Change uint64 }
	// PeerLeft says that the master has named a member of the group as gone.
	PeerLeft struct{ Peer wire.UUID }
	// MeshSettled says that the master has decided whether there is a mesh, and the view
	// shows it.
	MeshSettled struct{ Direct bool }
	// Preflight tries whether Peers can be reached, beside whatever runs; a
	// Preflighted event follows.
	Preflight struct {
		Number uint64
		Peers  []wire.PeerEndpoint
	}
	// Names says who the members of the group are from now on. It comes in front of the
	// Establish of their round.
	Names struct{ Members []wire.NamedMember }
	// Revocations is a revocation list that the master has told, in DER.
	Revocations struct{ DER string }
	// SwitchRing says that the view shows another ring, with these neighbours, and others
	// that plans need; the connections to the ones before are still in use. Operations that neighbours began
	// eagerly in epochs before Epoch are over; 0: it goes on.
	SwitchRing struct {
		Neighbours []wire.UUID
		Epoch      uint64
	}
	// Release says that no operation needs connections to others than these any
	// more. Connections that others opened to this peer are theirs to close.
	Release struct{ Keep []wire.UUID }
	// Done answers a call. Err is nil or an *errs.Error; if it is nil, Pending is the
	// answer to a CallPending, and Sync that to a CallSync.
	Done struct {
		Call    CallID
		Err     error
		Pending bool
		Sync    SyncResult
	}
	// Reattach says that there is no master. What connection there is to one ends, and
	// nothing of it comes in any more, not even a MasterGone. P2P connections stay. After
	// that time, which the shell may vary, it dials a master: those of At first, then
	// those that it was configured with, one with every Reattach. It writes Hello, and the
	// answer is an Attached event. Whatever fails before that is a NotAttached event.
	// Exactly one of them follows, unless Disconnect comes first. After Attached the
	// connection that was dialled is the one to the master, whose packets come in as
	// ever, unless another Reattach or Disconnect follows.
	Reattach struct {
		After time.Duration
		At    []netip.AddrPort
		Hello wire.C2MRequestSessionRegistration
	}
	// Reattached says that a master has taken this peer back.
	Reattached struct{}
	// Disconnect closes the master connection and every P2P connection at once
	// (quirk Q37); the session is over.
	Disconnect struct{ Reason string }
	// Log is a fact for people and listeners.
	Log struct {
		Warn bool
		Text string
		Peer wire.UUID
	}
)

// SyncResult is the result of a successful CallSync.
type SyncResult struct {
	Revision uint64 // of the state now held
	Outdated bool   // whether content was fetched
}

func (Send) effect()         {}
func (Establish) effect()    {}
func (StartData) effect()    {}
func (SkipData) effect()     {}
func (CommenceData) effect() {}
func (SpoilData) effect()    {}
func (RoundOver) effect()    {}
func (AbortData) effect()    {}
func (ExpectEpoch) effect()  {}
func (RenewData) effect()    {}
func (Finish) effect()       {}
func (GiveResult) effect()   {}
func (DropResult) effect()   {}
func (Serve) effect()        {}
func (Fetch) effect()        {}
func (StopFetch) effect()    {}
func (Probe) effect()        {}
func (StopProbe) effect()    {}
func (PrepareProbe) effect() {}
func (SendProbe) effect()    {}
func (PrepareRing) effect()  {}
func (StopPrepare) effect()  {}
func (PrepareMesh) effect()  {}
func (StopMesh) effect()     {}
func (MeshSettled) effect()  {}
func (PeerLeft) effect()     {}
func (Preflight) effect()    {}
func (Names) effect()        {}
func (Revocations) effect()  {}
func (SwitchRing) effect()   {}
func (Release) effect()      {}
func (Reattach) effect()     {}
func (Reattached) effect()   {}
func (Done) effect()         {}
func (Disconnect) effect()   {}
func (Log) effect()          {}

// Config of a machine.
type Config struct {
	Group                                   uint32
	P2PPort, SharedStatePort, BenchmarkPort uint16
	// Host is announced as the address at which others reach the peer; not
	// valid: the one that its connection to the master comes from.
	Host netip.Addr
	// HeartbeatInterval and HeartbeatTimeout are announced to the master; the
	// granted values rule. Zero announces none.
	HeartbeatInterval, HeartbeatTimeout time.Duration
	// ReattachTimeout is how long the session goes on without a master, where the master
	// grants that; 0: it ends with its master, and asks for nothing else.
	ReattachTimeout time.Duration
	// Secure says that the connection to the master is in TLS: revocation lists are asked
	// for.
	Secure bool
	// Plain says that members without a certificate are taken, too.
	Plain bool
	// Masters is how many masters the peer knows.
	Masters int
	// RegisterTimeout bounds the wait for the registration's answer.
	RegisterTimeout time.Duration
	// MaxWithPCCL is the number of collectives initiated at once when PCCL peers
	// may be in the group (quirk Q19: 16); further launches wait in order.
	MaxWithPCCL int
	// EagerBytes is the largest buffer whose collective begins at its launch,
	// where all members of the group can do that; 0: none does, at most MaxEager.
	EagerBytes int
}

// View is what attributes show: the last M2C 2 and M2C 3 (control spec 13.5).
type View struct {
	facts
	Ring []wire.UUID // shared, and never changed
	// Members is the group in the order in which collectives count it; it is shared and
	// never changed.
	Members []wire.UUID
}

// Same reports whether v and w say the same.
func (v *View) Same(w *View) bool {
	return v.facts == w.facts && slices.Equal(v.Ring, w.Ring) && slices.Equal(v.Members, w.Members)
}

// facts are what of a View can be compared at once.
type facts struct {
	Connected        bool
	Detached         bool // it has lost its master, and no other one has taken it back yet
	UUID             wire.UUID
	GlobalWorldSize  int
	LocalWorldSize   int
	NumGroups        int
	LargestGroupSize int
	Rank             int // position of UUID in Ring, -1 before the first round
	Native           bool
	MasterNative     bool
	MasterTopology   bool          // the master schedules probes and takes link reports
	MasterSwitch     bool          // the master switches rings between collectives
	RoundBound       time.Duration // how long the master waits for this peer's report of a round; 0: it did not say
	LastDropped      string        // the peer that was last named as gone, for errors

	// Collectives says that the group can call others than all-reduce, and Lacks
	// why it cannot.
	Collectives bool
	Lacks       string
	Mesh        bool // all of them are connected with each other
	// Epoch names the last round if all members can begin eagerly, and messages be sent.
	Epoch uint64
	// MasterCollectives: the master knows them.
	MasterCollectives bool
	// MasterPlans: the master tells which all-reduces use the mesh, and Direct which.
	MasterPlans bool
	// MasterWays: plans need no mesh.
	MasterWays bool
	// MasterPairs: two members exchange in one hop.
	MasterPairs bool
	// MasterRates: the master plans by what connections gave.
	MasterRates bool
	// MasterForward: the master passes results on of all-reduces that are finished forward.
	MasterForward bool
	// MasterLeave: the master lets members leave between two collectives.
	MasterLeave bool
	Direct      wire.Direct
	// Large are the plans of larger ones; nil: there are none. It is shared and never changed.
	Large *plan.Options
}
