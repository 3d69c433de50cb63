package fsm

import (
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/wire"
)

// ClientID is the shell's name for one TCP connection; never reused.
type ClientID uint64

// Identity is what the certificate of a client says. The zero value is that of a
// client without one, in plaintext.
type Identity struct {
	Name     string
	Groups   []uint32 // that it may enter; nil: all
	Observer bool     // it may ask, and not register
	Single   bool     // no two sessions of the name at a time
	PCCL     bool     // it came where PCCL peers do beside TLS, in plaintext, and has no name
}

// Event is an input of Machine.Step.
type Event interface{ event() }

// Events.
type (
	// Connected says that a TCP connection was accepted.
	Connected struct {
		Client ClientID
		Remote netip.AddrPort
		Who    Identity
	}
	// PacketIn is a packet that was decoded. Every packet counts as a sign of life.
	PacketIn struct {
		Client ClientID
		Packet wire.Packet
	}
	// Alive says that bytes of an unfinished packet arrived, so a big packet on a
	// slow link is not silence.
	Alive struct{ Client ClientID }
	// Malformed says that the client sent bytes that are not a packet; it gets
	// closed.
	Malformed struct {
		Client ClientID
		Err    error
	}
	// Gone says that the connection ended, by itself or after a Close effect.
	Gone struct {
		Client ClientID
		Reason string
	}
	// Solved says that the solver job of a Solve effect ended, or, with More, found
	// a better ring and goes on. Ring is nil if none was found, Optimal says that
	// it is proved to be the best.
	Solved struct {
		Job           uint64
		Ring          []wire.UUID
		More, Optimal bool
		Err           error
	}
	// PlansMade says that the plans of a MakePlans effect are made.
	PlansMade struct {
		Job    uint64
		Direct wire.Direct
	}
	// ResetState says that the operator gives up the shared state that a group
	// expects, or one that all have left. Its next synchronisation elects one as
	// the first did.
	ResetState struct{ Group uint32 }
	// Revoked says that the certificate of a client was revoked, and in Why which; it
	// gets closed.
	Revoked struct {
		Client ClientID
		Why    string
	}
	// Revocations are the revocation lists that are in force from now on, in DER. They come
	// in front of the Revoked events of those that it names.
	Revocations struct{ Lists []string }
	// LostState says that the operator changes Config.BeginAnew.
	LostState struct{ BeginAnew bool }
	// LostMembers says that the operator changes Config.DropLost.
	LostMembers struct{ Drop bool }
	// Ending says that this master ends in good order: who can resume is told so.
	Ending struct{}
	// Committed says that the registry of a Commit effect is written.
	Committed struct{ Number uint64 }
	// Confirmed says that this master led after the Confirm effect.
	Confirmed struct{ Number uint64 }
	// Tick says that time passed; it is due when Machine.Deadline is reached.
	Tick struct{}
)

func (Connected) event()   {}
func (PacketIn) event()    {}
func (Alive) event()       {}
func (Malformed) event()   {}
func (Gone) event()        {}
func (Solved) event()      {}
func (PlansMade) event()   {}
func (ResetState) event()  {}
func (Revoked) event()     {}
func (Revocations) event() {}
func (LostState) event()   {}
func (LostMembers) event() {}
func (Ending) event()      {}
func (Committed) event()   {}
func (Confirmed) event()   {}
func (Tick) event()        {}

// Effect is an output of Machine.Step, to be carried out in order.
type Effect interface{ effect() }

// Effects.
type (
	// Send writes the packet to the client, without blocking the machine.
	Send struct {
		Client ClientID
		Packet wire.Packet
	}
	// Close closes the connection after what was sent; a Gone event follows.
	Close struct {
		Client ClientID
		Reason string
	}
	// Solve starts the ring solver on a group's matrix; a Solved event follows.
	Solve struct {
		Job     uint64
		Group   uint32
		Members []wire.UUID // row and column order of Matrix
		Matrix  topo.Matrix
		Sharing *topo.Sharing // nil: nothing that is known is shared
		Start   []int         // the ring in force, as indices into Members
		// Background says that no vote waits: the solver goes on until StopSolve,
		// and a Solved event says whenever it has found a better ring.
		Background bool
	}
	// StopSolve ends a job: the members have changed, and its answers mean nothing
	// now.
	StopSolve struct{ Job uint64 }
	// MakePlans has the plans of a group made beside the machine (Basis.Make). A PlansMade
	// event follows, unless another MakePlans of the group comes before, in whose place
	// this one means nothing.
	MakePlans struct {
		Job   uint64
		Group uint32
		Basis *Basis // constant
	}
	// Admit lets the client send large packets from now on: it was let in.
	Admit struct{ Client ClientID }
	// Commit makes Registry the one that a later master finds; a Committed event
	// follows. A master that cannot have it written must end.
	Commit struct {
		Number   uint64
		Registry Registry
	}
	// Confirm asks whether this master still leads; a Confirmed event follows. One
	// that does not must end.
	Confirm struct{ Number uint64 }
	// Outdated says that a peer has followed a master of Term, which this one cannot
	// come after: what it began with is an old copy. It must end.
	Outdated struct {
		Term uint32
		Why  string
	}
	// Log is a fact for people and listeners.
	Log struct{ Fact Fact }
)

func (Send) effect()      {}
func (Close) effect()     {}
func (Solve) effect()     {}
func (StopSolve) effect() {}
func (MakePlans) effect() {}
func (Admit) effect()     {}
func (Commit) effect()    {}
func (Confirm) effect()   {}
func (Outdated) effect()  {}
func (Log) effect()       {}

// Fact is one log line: what happened, to whom, and how the world looks after it.
type Fact struct {
	Kind   string // "registered", "accepted", "refused", "left", "dropped", "round", "ring", "abort", "sync", "mismatch", "kick", "waiting-for", ...
	Warn   bool   // deserves attention
	Peer   wire.UUID
	Remote netip.AddrPort
	Group  uint32
	World  int // registered clients after the event
	Text   string
}

// Config sets the bounds of a machine. Zero durations switch a bound off.
type Config struct {
	// NewUUID draws a session uuid (version 4).
	NewUUID func() wire.UUID
	// Term stands in the high bits of every number that peers are told, and is
	// greater than that of any master before. At most MaxTerm.
	Term uint32
	// Authority is whether there is something that says which master leads, and
	// keeps the registry: Commit and Confirm effects are answered.
	Authority bool
	// Resume lets peers go on with sessions that they had with an earlier master.
	Resume bool
	// IdentityKey makes the proofs of who had which session; masters of a run share
	// it. Without one who says so is believed, but for sessions that are known here.
	IdentityKey []byte
	// SessionKey makes the proofs where there is no IdentityKey: nobody takes a session over
	// that this master has given out or taken back.
	SessionKey []byte
	// DropLost lets a master without an authority drop half of a group or more, if
	// they do not come back to it.
	DropLost bool
	// Linger is how long a member that can resume is waited for whose connection has
	// ended without a farewell. Zero: not at all.
	Linger time.Duration
	// Registry is what the master before had committed last.
	Registry Registry
	// HeartbeatInterval and HeartbeatTimeout are granted to native clients.
	HeartbeatInterval, HeartbeatTimeout time.Duration
	// RegisterTimeout closes connections that do not register.
	RegisterTimeout time.Duration
	// RoundTimeout closes clients that do not report their part of an
	// establishment round.
	RoundTimeout time.Duration
	// VoteTimeout closes accepted clients that leave a vote of the others open
	// for so long; WarnVoteAfter only names them in the log.
	VoteTimeout, WarnVoteAfter time.Duration
	// PhaseTimeout closes accepted clients that hold up the end of a collective,
	// a synchronisation or an optimization of others for so long, and have moved
	// nothing meanwhile as far as they say what they move. WarnVoteAfter names them.
	PhaseTimeout time.Duration
	// PCCLRevisionRule selects PCCL's first-voter rule of the first election (quirk Q70).
	PCCLRevisionRule bool
	// BeginAnew lets a synchronisation in which no peer offers the expected revision
	// elect the highest that is offered, as the first one does. Otherwise it fails
	// until a peer brings that revision, or ResetState comes, also if all have left
	// in between. Not under PCCLRevisionRule.
	BeginAnew bool
	// Solver is whether Solve effects are wanted; without it rings stay sorted by uuid.
	// Background is whether the solver goes on beside the run.
	Solver, Background bool
	// PlannedInStep is the size of the largest group whose plans are made in a step; those of
	// larger ones are made by MakePlans. Default 8; below 0: no group's.
	PlannedInStep int
	// Revocations are the revocation lists in force, in DER.
	Revocations []string
	// PCCLGroups are the groups that clients may enter which came where PCCL peers do.
	PCCLGroups []uint32
	// Switch lets groups whose members all can take a better ring between two
	// collectives, without a round.
	Switch bool
	// Objective is what rings are compared by; "" is topo.BottleneckThenSum.
	Objective topo.Objective
	// Noise is the share by which a ring must be better to replace another one;
	// half of it is how much slower it may be before it is taken back. Default 0.2.
	Noise float64
	// Patience is how long a ring stays in force before a search beside the run
	// may replace it; every replacement doubles it for the group, as long as its
	// members stay, and one that has made the collectives faster brings it back.
	// Default 10 s.
	Patience time.Duration
	// MaxLinkAge is after which time without news a link is measured again with
	// the next optimization. Zero: never.
	MaxLinkAge time.Duration
}
