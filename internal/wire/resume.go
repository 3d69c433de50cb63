package wire

import (
	"net/netip"
)

// Resuming is what ends say to each other that go on with a session over another
// connection, and with another master (docs/spec/extensions.md, "Resuming"). The zero
// value says nothing.
type Resuming struct {
	// Resume announces it (on C2M 1, M2C 1).
	Resume bool
	// Term is that of the master (on M2C 1), or the highest one that the sender has
	// obeyed (on C2M 1); 0: the first.
	Term uint32
	// Identity says that the sender has a session (on C2M 1), or gives the receiver the
	// one to say so with (on M2C 1).
	Identity Identity
	// Met says that the session has done a collective or a synchronisation with others (on
	// C2M 1).
	Met bool
	// Leader is where the master is that leads, first to try first, at most
	// MaxAddresses (on M2C 1).
	Leader []netip.AddrPort
	// Decision is the number of the round (on M2C 2), the answer (M2C 4), the end of an
	// optimization (M2C 6) or the election (M2C 7); 0: none.
	Decision uint64
	// Mortal are the members of the ring that cannot resume, at most MaxMembers (on
	// M2C 3).
	Mortal []UUID
	// NextRevision is what the master expects of the next synchronisation: when this one
	// has succeeded (on M2C 7), or now (on M2C 8).
	NextRevision uint64
}

// Identity is a peer's, and what proves it to a master that has not kept it; all
// zero where masters do not ask for proof.
type Identity struct {
	UUID  UUID
	Token [16]byte
}

const identityLen = 32

func (x *Resuming) isZero() bool {
	return !x.Resume && !x.Met && x.Term == 0 && x.Identity == (Identity{}) && len(x.Leader) == 0 && x.Decision == 0 &&
		(len(x.Mortal) == 0 || len(x.Mortal) > MaxMembers) && x.NextRevision == 0
}

// appendResuming appends the entries of ends that resume.
func appendResuming(dst []byte, x *Resuming) []byte {
	if x.Resume {
		dst = appendU16(appendU16(dst, extResume), 0)
	}
	if x.Term != 0 {
		dst = appendU32(appendU16(appendU16(dst, extTerm), 4), x.Term)
	}
	if id := &x.Identity; *id != (Identity{}) {
		dst = append(append(appendU16(appendU16(dst, extIdentity), identityLen), id.UUID[:]...), id.Token[:]...)
	}
	if x.Met {
		dst = appendU16(appendU16(dst, extMet), 0)
	}
	if len(x.Leader) > 0 {
		var list []byte
		for _, a := range x.Leader[:min(len(x.Leader), MaxAddresses)] {
			list = appendAddr(list, a)
		}
		dst = append(appendU16(appendU16(dst, extLeader), uint16(len(list))), list...)
	}
	if x.Decision != 0 {
		dst = appendU64(appendU16(appendU16(dst, extDecision), 8), x.Decision)
	}
	if n := len(x.Mortal); n > 0 && n <= MaxMembers {
		dst = appendU16(appendU16(dst, extMortal), uint16(n*minUUID))
		for _, u := range x.Mortal {
			dst = append(dst, u[:]...)
		}
	}
	if x.NextRevision != 0 {
		dst = appendU64(appendU16(appendU16(dst, extNextRevision), 8), x.NextRevision)
	}
	return dst
}

// resuming takes an entry of ends that resume.
func (x *Resuming) take(kind uint16, value *reader) {
	switch kind {
	case extResume:
		x.Resume = true
	case extTerm:
		x.Term = value.u32()
	case extIdentity:
		x.Identity.UUID = value.uuid()
		copy(x.Identity.Token[:], value.take(len(x.Identity.Token)))
	case extMet:
		x.Met = true
	case extLeader:
		x.Leader = value.addrs(MaxAddresses)
	case extDecision:
		x.Decision = value.u64()
	case extMortal:
		x.Mortal = value.members()
	case extNextRevision:
		x.NextRevision = value.u64()
	}
}

// Packets of ends that resume.
type (
	// C2MReport (id 69) follows M2C 1 on a connection whose C2M 1 had an identity: what
	// the sender holds. It stands for all that the sender has said and been told before.
	C2MReport struct {
		Round    StoodRound
		Query    ReportedQuery
		Call     ReportedCall
		Change   ReportedChange
		Mesh     ReportedMesh
		Ops      []ReportedOp      // not awaited a verdict yet, in the order of their votes
		Verdicts []ReportedVerdict // since the last round, oldest first
		// NextRevision is the one that the last M2C 8 had, 0: none did.
		NextRevision uint64
		// Optimized and Synced are the last optimization of which M2C 6 came since the
		// round, and the last election of which M2C 8 did; 0: none.
		Optimized, Synced uint64
		// Leaving says that C2M 72 counts as sent.
		Leaving bool
		// Broken are neighbours whose connections to the sender have ended.
		Broken []UUID
		Links  []ReportedLink
	}
	// M2CResumed (id 72) says that the report was taken over: what follows are answers.
	M2CResumed struct{}
	// C2MFarewell (id 73) says that the session ends: its connection follows.
	C2MFarewell struct{}
	// C2MLinkEnded (id 74) says that a neighbour has ended all connections to the sender,
	// or all from it.
	C2MLinkEnded struct{ Peer UUID }
	// M2CReportAgain (id 78) asks for another report, on the same connection.
	M2CReportAgain struct{}
	// M2CLeaving (id 73) says that the master ends in good order: resume in After
	// milliseconds, at Masters if there are any.
	M2CLeaving struct {
		After   uint32
		Masters []netip.AddrPort
	}
)

// StoodRound is the last round that succeeded for a peer, and what has come of it.
type StoodRound struct {
	Decision uint64 // 0: none did, the peer is a newcomer
	Ring     []UUID // in force, see ReportedChange
	Members  []UUID // as collectives count them; empty where the group has none but all-reduce
	Mortal   []UUID // members of the ring that cannot resume
	Gone     []UUID // members of the ring that the master has named as gone since
	World    uint64 // peers in all groups, and how many these are, when it began
	Groups   uint64
	Largest  uint64 // peers in the largest group
}

// ReportedQuery is the question whether newcomers wait.
type ReportedQuery struct {
	Asking   bool   // C2M 4 is out
	Decision uint64 // of the last answer since the round, 0: none
	Pending  bool   // what it was
}

// ReportStep says how far a peer is with a call that changes the phase.
type ReportStep uint8

// Steps of a ReportedCall. "Has voted" means that C2M 2, 5 or 8 counts as sent.
const (
	StepNone       ReportStep = iota // nothing is under way, or a newcomer waits for its first M2C 2
	StepAccept                       // has voted for a round with newcomers, after round Decision has failed, 0: none has
	StepEstablish                    // ... without
	StepConnecting                   // connects in round Decision; C2M 3 follows
	StepRing                         // C2M 3 counts as sent in round Decision: a success unless Failed names peers
	StepOptimize                     // has voted for an optimization
	StepProbing                      // measures; C2M 7 follows
	StepCalled                       // waits for calls to measure; C2M 7 follows M2C 68
	StepOptimized                    // C2M 7 counts as sent
	StepElection                     // has voted as Vote says
	StepFetching                     // ... and was told Verdict, in election Decision; fetches, C2M 9 follows
	StepSynced                       // ... C2M 9 counts as sent
)

// ReportedCall is the call under way that changes the phase.
type ReportedCall struct {
	Step     ReportStep
	Decision uint64
	Failed   []UUID // of C2M 3
	Unheld   bool   // C2M 9 said that the transfer failed
	// Vote and Verdict are M2C 8 and M2C 7 from StepElection and StepFetching on. Their
	// extension entries are torn, reason, distributors and the next revision.
	Vote    C2MSyncSharedState
	Verdict M2CSyncSharedState
}

// ReportedChange is about rings that are switched.
type ReportedChange struct {
	Taken    uint64 // the last M2C 71 with a ring, or M2C 76, since the round, 0: none
	Direct   Direct // of it
	Prepares uint64 // the M2C 70 or 74 that neither has answered, 0: none
	Leaver   UUID   // of M2C 74, zero: it was M2C 70
	Epoch    uint64 // ... and that begins then
	Answered bool   // C2M 68 counts as sent for it
	Failed   []UUID // ... and named these
}

// MeshStep says what a peer knows of the mesh.
type MeshStep uint8

// Steps of a ReportedMesh.
const (
	MeshUnknown   MeshStep = iota // M2C 88 and M2C 89 have not come since the round
	MeshPreparing                 // M2C 88 came; C2M 89 follows
	MeshAnswered                  // C2M 89 counts as sent
	MeshSettled                   // M2C 89 came, with Planner
)

// ReportedMesh is about connections between all members.
type ReportedMesh struct {
	Step    MeshStep
	Wanted  bool // C2M 88 counts as sent since the round
	Change  uint64
	Planner uint8
	Failed  []UUID // of C2M 89
	Ways    []Way  // ... at most MaxWays
}

// OpStep says how far a peer is with a collective.
type OpStep uint8

// Steps of a ReportedOp.
const (
	OpVoted    OpStep = iota // C2M 10 counts as sent
	OpAhead                  // ... and C2M 11, before M2C 9
	OpRunning                // M2C 9 came
	OpReported               // ... and C2M 11 counts as sent
)

// ReportedOp is a collective that M2C 10 has not ended.
type ReportedOp struct {
	Vote C2MCollectiveCommsInitiate
	Step OpStep
	Seq  uint64 // that M2C 9 had, from OpRunning on
	// After is one more than the number of the last collective with this tag that M2C 10
	// has ended since the round, 0: none. Numbers from it on may be this one's.
	After uint64
	Older bool // it runs in a ring before the one in force
	// Done is C2M 11 in OpAhead and OpReported, without its tag.
	Done C2MCollectiveCommsComplete
	// Heard says that M2C 11 came, and Verdict is what it said.
	Heard   bool
	Verdict Verdict
}

// VerdictStood is the code of a verdict that is a success although M2C 11 said aborted: M2C 10 has said that
// all have the result.
const VerdictStood = 8

// Verdict is what M2C 11 says of a collective.
type Verdict struct {
	Aborted bool
	Code    uint16 // of core/errs, 0: none
	Reason  string
}

// ReportedVerdict is the end of a collective that M2C 10 has brought.
type ReportedVerdict struct {
	Tag, Seq uint64
	Verdict  Verdict
}

// ReportedLink is a bandwidth that the sender has measured, in Mbit/s, and its
// standard error.
type ReportedLink struct {
	To              UUID
	Mbps, Deviation float64
}

const (
	minVerdict         = 1 + 2 + minString
	minReportedOp      = minString + 1 + 8 + 8 + 1 + minString + 1 + minVerdict
	minReportedVerdict = 8 + 8 + minVerdict
	minReportedLink    = minUUID + 16
)

// appendInside appends the body of a packet inside of another one, behind its size.
func appendInside(dst []byte, p Packet) []byte {
	at := len(dst)
	dst = AppendBody(append(dst, make([]byte, lenSize)...), p)
	putU64(dst[at:], uint64(len(dst)-at-lenSize))
	return dst
}

// inside reads what appendInside wrote; its type has to be P.
func inside[P Packet](r *reader) (p P) {
	in := reader{b: r.take(r.count(1))}
	got, ok := decode(p.Proto(), p.ID(), &in).(P)
	if !ok || in.short {
		r.short = true
		return p
	}
	return got
}

func appendVerdict(dst []byte, v Verdict) []byte {
	return appendString(appendU16(appendBool(dst, v.Aborted), v.Code), cutString(v.Reason, MaxReason))
}

func (r *reader) verdict() Verdict {
	v := Verdict{Aborted: r.bool(), Code: r.u16()}
	v.Reason = cutString(r.string(), MaxReason)
	return v
}

func appendReport(dst []byte, p *C2MReport) []byte {
	s := &p.Round
	dst = appendUUIDs(appendUUIDs(appendU64(dst, s.Decision), s.Ring), s.Members)
	dst = appendUUIDs(appendUUIDs(dst, s.Mortal), s.Gone)
	dst = appendU64(appendU64(appendU64(dst, s.World), s.Groups), s.Largest)

	dst = appendBool(appendU64(appendBool(dst, p.Query.Asking), p.Query.Decision), p.Query.Pending)

	c := &p.Call
	dst = appendU64(append(dst, byte(c.Step)), c.Decision)
	dst = appendBool(appendUUIDs(dst, c.Failed), c.Unheld)
	if c.Step >= StepElection {
		dst = appendInside(dst, c.Vote)
	}
	if c.Step >= StepFetching {
		dst = appendInside(dst, c.Verdict)
	}

	h := &p.Change
	dst = appendU64(appendU64(dst, h.Taken), h.Direct.Most)
	dst = appendU32(appendU32(appendU32(dst, h.Direct.RingUS), h.Direct.ExchangeUS), h.Direct.Kbps)
	dst = appendU64(append(appendU64(dst, h.Prepares), h.Leaver[:]...), h.Epoch)
	dst = appendUUIDs(appendBool(dst, h.Answered), h.Failed)

	e := &p.Mesh
	dst = append(appendU64(appendBool(append(dst, byte(e.Step)), e.Wanted), e.Change), e.Planner)
	dst = appendUUIDs(dst, e.Failed)
	ways := e.Ways[:min(len(e.Ways), MaxWays)]
	dst = appendU64(dst, uint64(len(ways)))
	for _, w := range ways {
		dst = appendU32(append(dst, w.To[:]...), w.RTT)
	}

	dst = appendU64(dst, uint64(len(p.Ops)))
	for i := range p.Ops {
		dst = appendReportedOp(dst, &p.Ops[i])
	}
	dst = appendU64(dst, uint64(len(p.Verdicts)))
	for _, v := range p.Verdicts {
		dst = appendVerdict(appendU64(appendU64(dst, v.Tag), v.Seq), v.Verdict)
	}
	dst = appendU64(appendU64(appendU64(dst, p.NextRevision), p.Optimized), p.Synced)
	dst = appendUUIDs(appendBool(dst, p.Leaving), p.Broken)
	dst = appendU64(dst, uint64(len(p.Links)))
	for _, l := range p.Links {
		dst = appendF64(appendF64(append(dst, l.To[:]...), l.Mbps), l.Deviation)
	}
	if s := h.Direct.Schemes; s != "" && len(s) <= MaxSchemes { // a master that does not know them reads no further
		dst = appendString(dst, s)
	}
	return dst
}

func appendReportedOp(dst []byte, o *ReportedOp) []byte {
	dst = append(appendInside(dst, o.Vote), byte(o.Step))
	dst = appendBool(appendU64(appendU64(dst, o.Seq), o.After), o.Older)
	done := o.Done
	done.Tag = o.Vote.Tag
	dst = appendInside(dst, done)
	return appendVerdict(appendBool(dst, o.Heard), o.Verdict)
}

func (r *reader) report() (p C2MReport) {
	p.Round = StoodRound{
		Decision: r.u64(), Ring: r.uuids(), Members: r.uuids(), Mortal: r.uuids(), Gone: r.uuids(),
		World: r.u64(), Groups: r.u64(), Largest: r.u64(),
	}
	p.Query = ReportedQuery{Asking: r.bool(), Decision: r.u64(), Pending: r.bool()}
	p.Call = ReportedCall{Step: ReportStep(r.u8()), Decision: r.u64(), Failed: r.uuids(), Unheld: r.bool()}
	if p.Call.Step >= StepElection {
		p.Call.Vote = inside[C2MSyncSharedState](r)
	}
	if p.Call.Step >= StepFetching {
		p.Call.Verdict = inside[M2CSyncSharedState](r)
	}
	p.Change = ReportedChange{
		Taken: r.u64(), Direct: Direct{Most: r.u64(), RingUS: r.u32(), ExchangeUS: r.u32(), Kbps: r.u32()},
		Prepares: r.u64(), Leaver: r.uuid(), Epoch: r.u64(), Answered: r.bool(), Failed: r.uuids(),
	}
	p.Mesh = ReportedMesh{
		Step: MeshStep(r.u8()), Wanted: r.bool(), Change: r.u64(), Planner: r.u8(), Failed: r.uuids(),
		Ways: list(r, minWay, func(r *reader) Way { return Way{To: r.uuid(), RTT: r.u32()} }),
	}
	if len(p.Mesh.Ways) > MaxWays {
		r.short = true
	}
	p.Ops = list(r, minReportedOp, (*reader).reportedOp)
	p.Verdicts = list(r, minReportedVerdict, func(r *reader) ReportedVerdict {
		return ReportedVerdict{Tag: r.u64(), Seq: r.u64(), Verdict: r.verdict()}
	})
	p.NextRevision, p.Optimized, p.Synced = r.u64(), r.u64(), r.u64()
	p.Leaving, p.Broken = r.bool(), r.uuids()
	p.Links = list(r, minReportedLink, func(r *reader) ReportedLink {
		return ReportedLink{To: r.uuid(), Mbps: r.f64(), Deviation: r.f64()}
	})
	if !r.short && len(r.b) > 0 {
		p.Change.Direct.Schemes = r.string()
		r.short = r.short || len(p.Change.Direct.Schemes) > MaxSchemes
	}
	return p
}

func (r *reader) reportedOp() ReportedOp {
	o := ReportedOp{
		Vote: inside[C2MCollectiveCommsInitiate](r), Step: OpStep(r.u8()), Seq: r.u64(), After: r.u64(), Older: r.bool(),
		Done: inside[C2MCollectiveCommsComplete](r), Heard: r.bool(), Verdict: r.verdict(),
	}
	o.Done.Tag = o.Vote.Tag
	return o
}

// Proto and ID of these packets.
func (C2MReport) Proto() Proto      { return C2M }
func (C2MReport) ID() ID            { return 69 }
func (C2MFarewell) Proto() Proto    { return C2M }
func (C2MFarewell) ID() ID          { return 73 }
func (C2MLinkEnded) Proto() Proto   { return C2M }
func (C2MLinkEnded) ID() ID         { return 74 }
func (M2CReportAgain) Proto() Proto { return M2C }
func (M2CReportAgain) ID() ID       { return 78 }
func (M2CResumed) Proto() Proto     { return M2C }
func (M2CResumed) ID() ID           { return 72 }
func (M2CLeaving) Proto() Proto     { return M2C }
func (M2CLeaving) ID() ID           { return 73 }
