package core

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/master"
	"github.com/gopccl/gopccl/platform"
)

// MasterOptions configure [NewMaster]. The zero value of a field takes the
// default named here; a negative duration switches a bound off.
type MasterOptions struct {
	// Listen is the HOST:PORT to listen on, default ":48148", which is the port of
	// PCCL's master, on all interfaces. Port 0 takes a free one; see Master.Addr.
	Listen string
	// HeartbeatInterval (2 s) is how often the master and gopccl peers say that
	// they live, HeartbeatTimeout (8 s, at least two intervals) how long a silent
	// one is kept.
	HeartbeatInterval, HeartbeatTimeout time.Duration
	// RegisterTimeout (10 s) bounds how long a connection may stay unregistered.
	RegisterTimeout time.Duration
	// RoundTimeout (12 s) bounds a peer's part of a round that connects neighbours.
	RoundTimeout time.Duration
	// VoteTimeout (off) drops peers that leave a vote of the others open for so
	// long; WarnVoteAfter (30 s) names them in the log.
	VoteTimeout, WarnVoteAfter time.Duration
	// PhaseTimeout (off) drops peers that hold up the end of a collective, a
	// synchronisation or an optimization of the others for so long and move no
	// data meanwhile. WarnVoteAfter names them, too.
	PhaseTimeout time.Duration
	// MaxConnections (4096) bounds the connections held at once.
	MaxConnections int
	// MaxQueue (64 MiB) bounds the bytes that wait for one peer to read them,
	// WriteTimeout (20 s) how long it may read nothing at all.
	MaxQueue     int
	WriteTimeout time.Duration
	// PCCLRevisionRule elects the first shared state as PCCL does (quirk Q70).
	PCCLRevisionRule bool
	// BeginAnew lets a group that has lost its shared state elect the highest
	// revision that its members have. A group loses its state if nobody is left who
	// had the revision that comes next, or all have left and none of those who come
	// back brings what they had. Without BeginAnew its synchronisations fail until a
	// peer brings that state, or Master.ResetSharedState is called. It is for a
	// master that serves one run after another, each from the beginning.
	BeginAnew bool
	// State is the directory that keeps what outlives the master: how far each group has
	// come with its shared state, and who was in it. A master that is started again with
	// it does not elect less than the group had reached (see BeginAnew), as one that never
	// ended. One master at a time can have it. "": nothing is kept.
	State string
	// DropLost lets a master that has neither State nor Authority go on without members
	// that do not come back to it, also if they are half of a group or more. Otherwise it
	// waits for them, since they may be at another master.
	DropLost bool
	// Authority, if not nil, says which of several masters leads, in place of State.
	Authority Authority
	// Solver names the ring solver; "none" keeps rings sorted by uuid. The default
	// is "auto" if that solver is linked (solvers/defaults), else none.
	Solver string
	// RingSolver is used in place of the one that Solver names, if not nil.
	RingSolver topo.Solver
	// SolverBudget (1 s, at most 4 s) is the time the solver may take in a round.
	SolverBudget time.Duration
	// SearchBudget (1 min) is the time that the solver may go on beside the run for
	// better rings, as long as the members stay.
	SearchBudget time.Duration
	// Noise (0.2, at most 10) is the share by which a ring must be better to
	// replace another one; half of it is how much slower it may turn out before it
	// is taken back.
	Noise float64
	// MaxLinkAge (24 h) is after which time without news a link is measured again
	// when the peers optimize.
	MaxLinkAge time.Duration
	// WaitForRounds makes a better ring that was found beside the run wait for a
	// round that the peers vote, even where all of a group could take it between
	// two collectives.
	WaitForRounds bool
	// Patience (10 s) is how long a ring stays in force before such a ring may
	// replace it. Every change doubles it for the group as long as its members
	// stay; one that has made the collectives faster brings it back.
	Patience time.Duration
	// Objective (topo.BottleneckThenSum) is what the solver optimises.
	Objective topo.Objective
	// Security says whom the master believes, and with what it proves who it is.
	Security SecurityOptions
	// Enroll is a directory from which peers with join tokens get credentials: that of
	// the authority, or one that holds the credential of an issuer (issuer.pem) and the
	// tokens that gopccl keys token has made there. "": nobody joins with a token.
	Enroll string
	// Logger takes one line per membership change and per fault; nil discards.
	// Lines go to its handler through a bounded queue, so that it never holds the
	// master up; lines that find no room are dropped and counted in its next one.
	Logger *slog.Logger
	// OnFact is called for every fact, in order, on a goroutine that does nothing
	// else. If it does not keep up, facts are dropped and the log says how many. A
	// panic ends the master.
	OnFact func(Fact)
}

// Check refuses options that can never work, as NewMaster does: *Error with code
// errs.InvalidConfig that names the fields. Whether a solver of that name is linked
// it does not ask.
func (o MasterOptions) Check() error { return o.inner().Check() }

func (o MasterOptions) inner() master.Options {
	in := master.Options{
		Listen: o.Listen, HeartbeatInterval: o.HeartbeatInterval, HeartbeatTimeout: o.HeartbeatTimeout,
		RegisterTimeout: o.RegisterTimeout, RoundTimeout: o.RoundTimeout,
		VoteTimeout: o.VoteTimeout, WarnVoteAfter: o.WarnVoteAfter, PhaseTimeout: o.PhaseTimeout,
		MaxConnections: o.MaxConnections, MaxQueue: o.MaxQueue, WriteTimeout: o.WriteTimeout,
		PCCLRevisionRule: o.PCCLRevisionRule, BeginAnew: o.BeginAnew,
		Lead:   master.Lead{State: o.State, Authority: o.Authority, DropLost: o.DropLost},
		Solver: o.Solver, RingSolver: o.RingSolver, SolverBudget: o.SolverBudget, SearchBudget: o.SearchBudget,
		Noise: o.Noise, MaxLinkAge: o.MaxLinkAge, WaitForRounds: o.WaitForRounds, Patience: o.Patience,
		Objective: o.Objective, Security: guard.Options(o.Security), Enroll: o.Enroll, Logger: o.Logger,
	}
	if f := o.OnFact; f != nil {
		in.OnFact = func(fact master.Fact) {
			f(Fact{
				Kind: fact.Kind, Warn: fact.Warn, Peer: UUID(fact.Peer), Remote: fact.Remote,
				Group: fact.Group, World: fact.World, Text: fact.Text,
			})
		}
	}
	return in
}

// Fact is something that a master has seen or decided.
type Fact struct {
	// Kind is one word: "registered", "accepted", "refused", "left", "dropped",
	// "round", "ring", "abort", "sync", "mismatch", "kick", "waiting-for" and others.
	Kind string
	// Warn says that it deserves attention.
	Warn bool
	// Peer and Remote name the peer that it is about, the zero values if it is
	// about none.
	Peer   UUID
	Remote netip.AddrPort
	// Group is the peer group.
	Group uint32
	// World is the number of registered peers after it.
	World int
	// Text is the log line.
	Text string
}

// Master coordinates a run: it holds membership, votes, ring orders,
// bandwidths and hashes of shared states, and never sees a tensor. It serves
// gopccl and PCCL 1.0.0 peers alike. All methods are safe from any goroutine.
type Master struct {
	s    *master.Server
	ln   net.Listener
	pccl net.Listener // nil: PCCL peers come to ln
}

// NewMaster checks opt and listens; Run serves. Close it, also if Run was never
// called. Errors: errs.InvalidConfig for options that can never work,
// errs.InvalidUsage if the address cannot be had.
func NewMaster(opt MasterOptions) (*Master, error) {
	s, err := master.New(opt.inner())
	if err != nil {
		return nil, err
	}
	if opt.Listen == "" {
		opt.Listen = master.DefaultListen
	}
	ln, err := platform.Listen(context.Background(), "tcp", opt.Listen)
	if err != nil {
		return nil, errs.New(errs.InvalidUsage, "run master", err).WithPeer(opt.Listen).
			WithHint("free the port or choose another address")
	}
	if at := opt.Security.PCCLListen; at != "" {
		pccl, err := platform.Listen(context.Background(), "tcp", at)
		if err != nil {
			ln.Close()
			return nil, errs.New(errs.InvalidUsage, "run master", err).WithPeer(at).
				WithHint("free the port or choose another address for PCCL peers")
		}
		s.TakePCCL(pccl)
		return &Master{s, ln, pccl}, nil
	}
	return &Master{s: s, ln: ln}, nil
}

// Addr returns where the master listens.
func (m *Master) Addr() netip.AddrPort { return m.ln.Addr().(*net.TCPAddr).AddrPort() }

// Run serves until ctx ends or Close is called (nil), or the listener fails. It
// returns when every connection and goroutine of the master has ended. A master
// runs once: a second call is errs.InvalidUsage. With MasterOptions.State or Authority
// it first waits for the lead. Errors, then: those of the authority;
// errs.NotLeading if the lead is lost; of a directory errs.InvalidUsage if another master
// has it or it cannot be written to, errs.CorruptFile.
func (m *Master) Run(ctx context.Context) error { return m.s.Serve(ctx, m.ln) }

// Close ends Run, and every connection, and waits for that.
func (m *Master) Close() error {
	err := m.s.Close()
	if m.pccl != nil {
		m.pccl.Close()
	}
	m.ln.Close() // after the server, for which a closed listener would be a failure
	return err
}

// ResetSharedState gives up the shared state that a group expects: its next
// synchronisation elects the highest revision that its members have, as the
// first one does. It is for a group that has lost its state because nobody is
// left who had the revision that comes next; the log says which was given up.
// Error: errs.Closed if Run does not run.
func (m *Master) ResetSharedState(group uint32) error { return m.s.ResetSharedState(group) }

// SetBeginAnew changes MasterOptions.BeginAnew. Error: errs.Closed if Run does not run.
func (m *Master) SetBeginAnew(on bool) error { return m.s.SetBeginAnew(on) }

// SetDropLost changes MasterOptions.DropLost. Error: errs.Closed if Run does not run.
func (m *Master) SetDropLost(on bool) error { return m.s.SetDropLost(on) }

// ReloadSecurity reads the credential and the revocation list of MasterOptions.Security
// at once, if there are such files; Run does so by itself within a heartbeat of each
// change. Peers that the list revokes are dropped; a new credential ends nothing.
// Errors: errs.CorruptFile, errs.InvalidConfig; what was there before stays in force then.
func (m *Master) ReloadSecurity() error { return m.s.ReloadSecurity() }

// DumpState writes what Status returns as text, a line for each group and
// peer. The error is w's.
func (m *Master) DumpState(w io.Writer) error {
	return m.s.WriteState(w, m.Addr())
}
