package master

import (
	"crypto/rand"
	"log/slog"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/bounds"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/lead"
	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// Status is what Server.Snapshot returns.
type Status = fsm.Snapshot

// Fact is what Options.OnFact is called with.
type Fact = fsm.Fact

// Accepted is the phase of a client that was let in.
const Accepted = fsm.Accepted

// Options of New. The zero value of a field takes the default; a negative
// duration switches the bound off.
type Options struct {
	// Listen is the HOST:PORT that core.NewMaster listens on, default
	// DefaultListen. Serve and ListenAndServe do not look at it.
	Listen string
	// HeartbeatInterval (default 2 s) is how often the master and gopccl peers
	// say that they live, HeartbeatTimeout (8 s) how long a silent one is kept.
	HeartbeatInterval, HeartbeatTimeout time.Duration
	// RegisterTimeout (10 s) bounds how long a connection may stay unregistered.
	RegisterTimeout time.Duration
	// RoundTimeout (12 s) bounds a client's part of an establishment round.
	RoundTimeout time.Duration
	// VoteTimeout (off) drops peers that leave a vote of the others open,
	// WarnVoteAfter (30 s) names them in the log.
	VoteTimeout, WarnVoteAfter time.Duration
	// PhaseTimeout (off) drops peers that hold up the end of a collective, a
	// synchronisation or an optimization of the others for so long and move no
	// data meanwhile. WarnVoteAfter names them, too.
	PhaseTimeout time.Duration
	// MaxConnections (4096) bounds the connections held at once.
	MaxConnections int
	// MaxQueue (64 MiB) bounds the bytes that wait for one client to read
	// them, WriteTimeout (20 s) how long it may read nothing at all.
	MaxQueue     int
	WriteTimeout time.Duration
	// PCCLRevisionRule elects the first shared state as PCCL does (quirk Q70).
	PCCLRevisionRule bool
	// BeginAnew lets a group that has lost its shared state, because no peer is
	// left that had the revision that comes next, or all have left and none of
	// those who come back brings what they had, elect the highest that its
	// members have. Without it their synchronisations fail until a peer brings
	// that state, or Server.ResetSharedState is called. It is for a master that
	// serves one run after another, each from the beginning.
	BeginAnew bool
	Lead
	// Solver names the ring solver; "none" keeps rings sorted by uuid. The
	// default is "auto" if that solver is linked (solvers/defaults), else none.
	Solver string
	// RingSolver is used in place of the one that Solver names, if not nil.
	RingSolver topo.Solver
	// SolverBudget (1 s) is the time the solver may take, at most 4 s.
	SolverBudget time.Duration
	// SearchBudget (1 m) is the time that the solver may go on beside the run
	// for better rings, as long as the members stay.
	SearchBudget time.Duration
	// Noise (0.2) is the share by which a ring must be better to replace another
	// one; half of it is how much slower it may be before it is taken back.
	Noise float64
	// MaxLinkAge (24 h) is after which time without news a link is measured
	// again when the peers optimize.
	MaxLinkAge time.Duration
	// WaitForRounds: a better ring that was found beside the run waits for a
	// round that the peers vote, even where all of a group could take it between
	// two collectives.
	WaitForRounds bool
	// Patience (10 s) is how long a ring stays in force before such a ring may
	// replace it; every change doubles it for the group as long as its members
	// stay, one that has made the collectives faster brings it back.
	Patience time.Duration
	// Objective (topo.BottleneckThenSum) is what the solver optimises.
	Objective topo.Objective
	// Security says whom the master believes. Without a credential it serves in
	// plaintext.
	Security guard.Options
	// Enroll is the directory of an issuer, or of the authority, from which newcomers
	// with join tokens get credentials; "": nobody does.
	Enroll string
	// Logger takes one line per membership change and per fault; nil discards.
	// Lines go to its handler through a queue (trace.Detach), so that it never holds
	// the master up; those that find no room are counted in its next line.
	Logger *slog.Logger
	// OnFact is called for every fact, in order, on a goroutine that does nothing
	// else. If it does not keep up, facts are dropped and the log says how many. A
	// panic ends the master. Facts are the caller's: no machine changes them.
	OnFact func(Fact)

	packetTime time.Duration // shorter in tests
}

// Lead is the part of Options that concerns masters which come one after another.
type Lead struct {
	// State is the directory of what outlives the master, which one master at a time has;
	// Authority, if not nil, is used in its place.
	State     string
	Authority lead.Authority
	// DropLost lets a master that has neither go on without members that do not come back
	// to it, also if they are half of a group or more.
	DropLost bool
}

// linger is how long a member is waited for whose connection to the master has ended: some
// tries to connect again, also where packets are lost. Those who wait for the vote of one
// that is dead wait for so long.
const linger = 2 * time.Second

// DefaultListen is the port of PCCL's console master on all interfaces.
const DefaultListen = ":48148"

func orDefault(d *time.Duration, def time.Duration) {
	switch {
	case *d == 0:
		*d = def
	case *d < 0:
		*d = 0
	}
}

func (o Options) withDefaults() Options {
	// One that is off switches the other one off.
	if o.HeartbeatInterval < 0 && o.HeartbeatTimeout == 0 || o.HeartbeatTimeout < 0 && o.HeartbeatInterval == 0 {
		o.HeartbeatInterval, o.HeartbeatTimeout = -1, -1
	}
	orDefault(&o.HeartbeatInterval, 2*time.Second)
	orDefault(&o.HeartbeatTimeout, 8*time.Second)
	orDefault(&o.RegisterTimeout, 10*time.Second)
	orDefault(&o.RoundTimeout, 12*time.Second)
	orDefault(&o.VoteTimeout, 0)
	orDefault(&o.PhaseTimeout, 0)
	orDefault(&o.WarnVoteAfter, 30*time.Second)
	orDefault(&o.WriteTimeout, 20*time.Second)
	orDefault(&o.SolverBudget, time.Second)
	orDefault(&o.SearchBudget, time.Minute)
	orDefault(&o.MaxLinkAge, 24*time.Hour)
	orDefault(&o.Patience, 10*time.Second)
	if o.Noise == 0 {
		o.Noise = 0.2
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 4096
	}
	if o.packetTime == 0 {
		o.packetTime = packetTime
	}
	if o.MaxQueue == 0 {
		o.MaxQueue = wire.MaxPacket
	}
	if o.Objective == "" {
		o.Objective = topo.BottleneckThenSum
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

const (
	week = 7 * 24 * time.Hour
	// shortest is the least of most durations: a shorter value is a mistake in
	// the unit.
	shortest = time.Millisecond
)

// Bounds are the ranges of the numbers in o: what Check lets through. 0 takes
// the default. They point into o.
func (o *Options) Bounds() []bounds.Bound {
	return []bounds.Bound{
		bounds.Time("HeartbeatInterval", &o.HeartbeatInterval, shortest, 12*time.Hour).OrOff(),
		bounds.Time("HeartbeatTimeout", &o.HeartbeatTimeout, 2*shortest, 24*time.Hour).OrOff(),
		bounds.Time("RegisterTimeout", &o.RegisterTimeout, shortest, 24*time.Hour).OrOff(),
		bounds.Time("RoundTimeout", &o.RoundTimeout, shortest, 24*time.Hour).OrOff(),
		bounds.Time("VoteTimeout", &o.VoteTimeout, shortest, week).OrOff(),
		bounds.Time("PhaseTimeout", &o.PhaseTimeout, shortest, week).OrOff(),
		bounds.Time("WarnVoteAfter", &o.WarnVoteAfter, shortest, week).OrOff(),
		bounds.Time("WriteTimeout", &o.WriteTimeout, shortest, 24*time.Hour).OrOff(),
		bounds.Int("MaxConnections", &o.MaxConnections, 1, 1_000_000),
		bounds.Int("MaxQueue", &o.MaxQueue, 64<<10, 1<<30),
		bounds.Time("SolverBudget", &o.SolverBudget, shortest, 4*time.Second),
		bounds.Time("SearchBudget", &o.SearchBudget, shortest, week).OrOff(),
		bounds.Time("MaxLinkAge", &o.MaxLinkAge, time.Microsecond, 365*24*time.Hour).OrOff(),
		bounds.Time("Patience", &o.Patience, time.Microsecond, 24*time.Hour).OrOff(),
	}
}

// Check refuses what can never work: *errs.Error with code InvalidConfig, whose
// cause is bounds.Errors, every rule that o breaks. No other package has
// rules for these values. It does not ask which solvers there are.
func (o Options) Check() error {
	var e bounds.Errors
	e.Check(o.Bounds())
	warn := o.WarnVoteAfter
	o = o.withDefaults()
	amount := func(f bounds.Field, d time.Duration) bounds.Amount {
		return bounds.Amount{Of: f, N: int64(d), Time: true}
	}
	const interval, timeout, after = bounds.Field("HeartbeatInterval"), bounds.Field("HeartbeatTimeout"), bounds.Field("WarnVoteAfter")
	switch {
	case (o.HeartbeatInterval == 0) != (o.HeartbeatTimeout == 0):
		e.Break("%v and %v must be both off or both on", timeout, interval)
	case o.HeartbeatTimeout < 2*o.HeartbeatInterval:
		e.Break("%v %v is below two times %v, %v", timeout, amount(timeout, o.HeartbeatTimeout), interval, amount(interval, o.HeartbeatInterval))
	}
	for _, b := range []struct {
		field bounds.Field
		d     time.Duration
	}{{"VoteTimeout", o.VoteTimeout}, {"PhaseTimeout", o.PhaseTimeout}} {
		if b.d > 0 && warn > b.d {
			e.Break("%v %v exceeds %v, %v", after, amount(after, warn), b.field, amount(b.field, b.d))
		}
	}
	if !(o.Noise > 0 && o.Noise <= 10) {
		e.Break("%v %v is not above 0 and at most 10", bounds.Field("Noise"), o.Noise)
	}
	if o.Objective != topo.BottleneckThenSum && o.Objective != topo.Sum {
		e.Break("%v %q is neither %s nor %s", bounds.Field("Objective"), o.Objective, topo.BottleneckThenSum, topo.Sum)
	}
	if o.State != "" && o.Authority != nil {
		e.Break("%v %q is a second authority beside %v", bounds.Field("State"), o.State, bounds.Field("Authority"))
	}
	o.Security.Check(&e)
	if o.Enroll != "" && !o.Security.On() {
		e.Break("%v %q is of no use without a credential (%v)", bounds.Field("Enroll"), o.Enroll, bounds.Field("Security.File"))
	}
	if err := e.Err(); err != nil {
		return errs.New(errs.InvalidConfig, "new master", err)
	}
	return nil
}

// complete checks o, fills in the defaults and finds the solver (nil: none).
func (o Options) complete() (Options, topo.Solver, error) {
	if err := o.Check(); err != nil {
		return o, nil, err
	}
	o = o.withDefaults()
	if o.RingSolver != nil {
		return o, o.RingSolver, nil
	}
	switch o.Solver {
	case "none":
		return o, nil, nil
	case "":
		s, err := topo.Lookup("auto")
		if err != nil {
			return o, nil, nil
		}
		return o, s, nil
	}
	s, err := topo.Lookup(o.Solver)
	if err != nil {
		return o, nil, errs.New(errs.InvalidConfig, "new master", err)
	}
	return o, s, nil
}

func (o Options) machine(solver bool) fsm.Config {
	return fsm.Config{
		PCCLGroups: o.Security.PCCLGroups, NewUUID: newUUID, Resume: true, Linger: linger, DropLost: o.DropLost,
		IdentityKey: o.ownKey(), SessionKey: sessionKey(),
		HeartbeatInterval: o.HeartbeatInterval, HeartbeatTimeout: o.HeartbeatTimeout,
		RegisterTimeout: o.RegisterTimeout, RoundTimeout: o.RoundTimeout,
		VoteTimeout: o.VoteTimeout, PhaseTimeout: o.PhaseTimeout, WarnVoteAfter: o.WarnVoteAfter,
		PCCLRevisionRule: o.PCCLRevisionRule, BeginAnew: o.BeginAnew, Solver: solver,
		Background: o.SearchBudget > 0, Objective: o.Objective, Noise: o.Noise, MaxLinkAge: o.MaxLinkAge,
		Switch: !o.WaitForRounds, Patience: o.Patience,
	}
}

// sessionKey draws a key for this process alone.
func sessionKey() []byte {
	key := make([]byte, lead.KeySize)
	rand.Read(key) // as in newUUID
	return key
}

// newUUID draws a version 4 uuid (control spec, section 6).
func newUUID() (u wire.UUID) {
	rand.Read(u[:]) // never fails: crypto/rand ends the process instead
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}
