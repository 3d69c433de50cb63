package fsm

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// A session that can resume outlives the connection to its master, and the master
// (docs/spec/extensions.md, "Resuming"). Without one it takes calls and goes on with
// what runs among peers. It sends nothing: what it would have sent shows in its state,
// and the report to the next master is a function of that.
type resumption struct {
	granted  bool
	identity wire.Identity
	term     uint32 // the highest that was obeyed
	met      bool   // it has done something together with others
	newcomer bool   // it was a member of nothing that counts, and waits to be let in

	// Between the loss of a master and the M2C 72 of another one.
	outage    bool
	reporting bool // the report is out, and was not taken over yet
	since     time.Duration
	tries     int
	code      errs.Code // what the loss was
	why       string
	refused   int              // refusals that will not become an answer
	refusal   string           // the last one
	leaving   *wire.M2CLeaving // what the master said before

	// What masters have said, for the report.
	stood    wire.StoodRound // without Gone; its ring is that of the round
	taken    uint64          // the last change of the ring since
	query    wire.ReportedQuery
	next     uint64 // revision
	verdicts verdicts

	optimized, synced uint64 // the last ends of optimizations and synchronisations
	links             []wire.ReportedLink

	missed []wire.UUID // neighbours that have ended a connection since the round, or cannot be reached in one
	told   []wire.UUID // ... and since M2C 2, that the master has been told of
}

// opTold is what has passed between the master and this peer about a collective.
type opTold struct {
	seq   uint64 // M2C 9
	after uint64 // wire.ReportedOp.After
	done  wire.C2MCollectiveCommsComplete
}

const (
	// A member that is ahead of another one has settled at most as many collectives
	// more as one can have in flight. Verdicts of so many are reported, and twice as
	// many kept, so that a member knows its own of each that another one reports.
	reportedVerdicts = 4096
	keptVerdicts     = 2 * reportedVerdicts

	// Between two tries to find a master is a quarter of the time without one, within
	// leastPause and mostPause: so one that comes back is found soon for how long it
	// was away, and a group of many does not crowd one that stays away.
	leastPause = 5 * time.Millisecond
	mostPause  = 250 * time.Millisecond

	// maxLinks bounds the measurements that are kept.
	maxLinks = 4096
)

// verdicts are the last ones of collectives since the round.
type verdicts struct {
	of    map[uint64]uint64 // tag: number of the last one
	order []wire.ReportedVerdict
}

func (v *verdicts) add(e wire.ReportedVerdict) {
	if v.of == nil {
		v.of = map[uint64]uint64{}
	}
	v.of[e.Tag] = e.Seq
	v.order = append(v.order, e)
	if len(v.order) < 2*keptVerdicts {
		return
	}
	v.order = v.last(len(v.order))
	for _, e := range v.order[:max(0, len(v.order)-keptVerdicts)] {
		delete(v.of, e.Tag)
	}
	v.order = v.order[max(0, len(v.order)-keptVerdicts):]
}

// after returns what follows the number of the last collective with the tag, 0: none.
func (v *verdicts) after(tag uint64) uint64 {
	seq, known := v.of[tag]
	if !known {
		return 0
	}
	return seq + 1
}

// last returns the last verdict of every tag, oldest first, at most n.
func (v *verdicts) last(n int) []wire.ReportedVerdict {
	var out []wire.ReportedVerdict
	for _, e := range v.order {
		if v.of[e.Tag] == e.Seq {
			out = append(out, e)
		}
	}
	return out[max(0, len(out)-n):]
}

// alive reports whether the session has begun and not ended.
func (m *Machine) alive() bool { return m.status == statusLive || m.status == statusDetached }

// hello is the packet that opens a connection to a master.
func (m *Machine) hello() wire.C2MRequestSessionRegistration {
	return wire.C2MRequestSessionRegistration{
		P2PPort:         m.cfg.P2PPort,
		SharedStatePort: m.cfg.SharedStatePort,
		BenchmarkPort:   m.cfg.BenchmarkPort,
		PeerGroup:       m.cfg.Group,
		Ext: wire.Ext{
			Native:            true,
			Topology:          true,
			Switch:            true,
			Preflight:         true,
			Host:              m.cfg.Host,
			Early:             wire.Early{Eager: m.cfg.EagerBytes > 0, Forward: wire.ForwardVersion},
			Collectives:       wire.CollectivesVersion,
			Plans:             wire.PlansVersion,
			Secured:           wire.Secured{Revocations: m.cfg.Secure, Plain: m.cfg.Secure && m.cfg.Plain},
			HeartbeatInterval: m.cfg.HeartbeatInterval,
			HeartbeatTimeout:  m.cfg.HeartbeatTimeout,
			Resuming: wire.Resuming{
				Resume: m.cfg.ReattachTimeout > 0, Term: m.resume.term, Identity: m.resume.identity, Met: m.resume.met,
			},
		},
	}
}

// granted takes over what the master grants, and who it is.
func (m *Machine) granted(p wire.M2CSessionRegistrationResponse) {
	x := p.Ext
	m.view.UUID = p.UUID
	m.view.MasterNative = x.Native
	m.view.MasterTopology = x.Native && x.Topology
	m.view.MasterSwitch = x.Native && x.Switch
	m.view.MasterCollectives = x.Native && x.Collectives > 0
	m.view.MasterPlans = m.view.MasterCollectives && m.view.MasterSwitch && x.Plans > 0
	m.view.MasterWays = m.view.MasterPlans && x.Plans >= wire.WayPlans
	m.view.MasterPairs = m.view.MasterPlans && x.Plans >= wire.PairPlans
	m.view.MasterRates = m.view.MasterPlans && x.Plans >= wire.RatePlans
	m.view.MasterLeave = m.view.MasterPlans && x.Plans >= wire.LeavePlans
	m.view.MasterForward = m.view.MasterCollectives && x.Forward > 0
	if x.Native {
		m.view.RoundBound = x.RoundBound
	}
	if m.cfg.HeartbeatInterval > 0 && x.Native {
		m.live.timeout, m.live.interval = max(x.HeartbeatTimeout, 0), 0
		if i := x.HeartbeatInterval; i > 0 {
			m.live.interval = max(i, minHeartbeat)
			m.live.next = m.now + m.live.interval
		}
	}
	r := &m.resume
	if r.granted = m.cfg.ReattachTimeout > 0 && x.Native && x.Resuming.Resume; r.granted {
		r.term = x.Resuming.Term
		r.identity = wire.Identity{UUID: p.UUID, Token: x.Resuming.Identity.Token}
	}
}

// lose takes the loss of the master: the session ends, or it waits for another one.
func (m *Machine) lose(code errs.Code, detail string) {
	r := &m.resume
	if !r.granted {
		m.end(code, detail)
		return
	}
	m.status, m.view.Detached, r.reporting = statusDetached, true, false
	if !r.outage {
		r.outage, r.since, r.tries, r.code, r.why = true, m.now, 0, code, detail
		r.refused, r.refusal = 0, ""
		m.log(true, wire.UUID{}, "no master: "+detail)
	}
	e := Reattach{After: m.pause(), Hello: m.hello()}
	if l := r.leaving; l != nil {
		e.After = max(e.After, min(time.Duration(l.After)*time.Millisecond, m.cfg.ReattachTimeout/2))
		e.At = slices.Clone(l.Masters[:min(len(l.Masters), wire.MaxAddresses)])
		r.leaving = nil
	}
	m.emit(e)
}

// pause returns the time to the next try to find a master: none before the first.
func (m *Machine) pause() time.Duration {
	r := &m.resume
	r.tries++
	if r.tries == 1 {
		return 0
	}
	return min(max((m.now-r.since)/4, leastPause), mostPause)
}

// notAttached takes a try to find a master that has failed.
func (m *Machine) notAttached(at []netip.AddrPort) {
	if m.status == statusDetached {
		m.emit(Reattach{After: m.pause(), At: slices.Clone(at), Hello: m.hello()})
	}
}

// attached takes the answer of a master that was found, and reports.
func (m *Machine) attached(ev Attached) {
	if m.status != statusDetached {
		return
	}
	p := ev.Packet
	x := p.Ext.Resuming
	switch {
	case !p.Accepted:
		m.refusedBack(p)
		return
	case !p.Ext.Native || !x.Resume, p.UUID != m.view.UUID && !m.mayStartOver():
		m.notKnown()
		return
	case p.UUID != m.view.UUID:
		m.startOver(p)
		return
	case x.Term < m.resume.term:
		m.log(true, wire.UUID{}, fmt.Sprintf("a master of term %d is left: one of term %d has taken over", x.Term, m.resume.term))
		m.notAttached(nil)
		return
	}
	for _, u := range ev.Broken {
		m.linkEnded(u, false)
	}
	m.sendHeld() // the report lists them as voted for
	m.granted(p)
	m.status, m.resume.reporting, m.live.heard = statusLive, true, m.now
	report := m.report()
	report.Broken = slices.Clone(m.resume.missed)
	m.send(report)
}

// refusedBack takes the refusal of a master that was found. Where all masters say that the
// session is over, it is.
func (m *Machine) refusedBack(p wire.M2CSessionRegistrationResponse) {
	r, leader := &m.resume, p.Ext.Resuming.Leader
	if len(leader) == 0 && p.Ext.Reason != r.refusal {
		r.refusal = p.Ext.Reason
		m.log(true, wire.UUID{}, "a master has refused this peer: "+p.Ext.Reason)
	}
	if len(leader) == 0 && errs.Code(p.Ext.ReasonCode) == errs.MasterLost {
		if r.refused++; r.refused >= m.cfg.Masters {
			m.end(errs.MasterLost, r.why+"; the master that was found has refused this peer: "+p.Ext.Reason)
			return
		}
	}
	m.notAttached(leader)
}

// linkEnded notes that a neighbour has ended a connection, if that can only mean that
// it is gone. One that neither needs any more may have ended it for that reason. So may
// one that has gone on to the ring that is prepared, or is ahead in a round. And in a round a
// neighbour may have closed what it had opened for a ring that was withdrawn: it opens it again.
// If it has died, what this peer has opened to it ends, too, or cannot be opened.
func (m *Machine) linkEnded(u wire.UUID, incoming bool) {
	is := func(e wire.PeerEndpoint) bool { return e.UUID == u }
	f := m.flow
	round := f != nil && (f.step == stepInfo || f.step == stepConnecting || f.step == stepRing)
	if round && incoming {
		return
	}
	m.tellEnded(u)
	switch {
	case round, m.prep != nil && !(slices.ContainsFunc(m.peers, is) && slices.ContainsFunc(m.prep.peers, is)):
		m.lookFor(u)
	case slices.ContainsFunc(m.peers, is):
		m.misses([]wire.UUID{u})
	}
}

// tellEnded tells the master that a neighbour has ended a connection: if that has lost it,
// too, it does not wait for it. It knows itself who is ahead in a round.
func (m *Machine) tellEnded(u wire.UUID) {
	r := &m.resume
	is := func(e wire.PeerEndpoint) bool { return e.UUID == u }
	if r.granted && m.status == statusLive && slices.ContainsFunc(m.peers, is) && !slices.Contains(r.told, u) &&
		(m.prep == nil || slices.ContainsFunc(m.prep.peers, is)) {
		r.told = append(r.told, u)
		m.send(wire.C2MLinkEnded{Peer: u})
	}
}

// ownTrial is the number of a try that this peer makes by itself. Those of masters are below.
const ownTrial = 1 << 63

// lookFor tries whether a neighbour still listens that has ended a connection, and may have other
// neighbours than this peer knows. The next master may have nobody else who knows that it is dead.
func (m *Machine) lookFor(u wire.UUID) {
	peers := m.peers
	if m.prep != nil {
		peers = slices.Concat(peers, m.prep.peers)
	}
	i := slices.IndexFunc(peers, func(e wire.PeerEndpoint) bool { return e.UUID == u })
	if i < 0 || !m.resume.granted || !m.view.Connected || m.preflights >= maxPreflights {
		return
	}
	m.preflights++
	m.emit(Preflight{Number: ownTrial | m.round, Peers: slices.Clone(peers[i : i+1])})
}

// lookedFor takes the end of such a try. A master that recovers waits less for one that cannot be
// reached; any other one does not listen to what it has not asked.
func (m *Machine) lookedFor(ev Preflighted) {
	if ev.Number != ownTrial|m.round || !m.misses(ev.Failed) {
		return
	}
	if m.status == statusLive {
		m.send(wire.C2MPreflightDone{FailedPeers: slices.Clone(ev.Failed)})
	}
}

// misses notes neighbours that could not be reached; it reports whether there is another one.
func (m *Machine) misses(failed []wire.UUID) (news bool) {
	r := &m.resume
	for _, u := range failed {
		if !slices.Contains(r.missed, u) {
			r.missed, news = append(r.missed, u), true
		}
	}
	return news
}

// resumed takes the word of a master that it has taken the report over; false if there
// was none.
func (m *Machine) resumed() bool {
	r := &m.resume
	if !r.reporting {
		return false
	}
	if r.reporting = false; !r.outage {
		return true // the master had asked again
	}
	r.outage, m.view.Detached = false, false
	m.emit(Reattached{})
	m.log(false, wire.UUID{}, fmt.Sprintf("a master has taken this peer back after %v", (m.now-r.since).Round(time.Millisecond)))
	return true
}

// reportAgain says once more what this peer holds; false if the master may not ask.
func (m *Machine) reportAgain() bool {
	if !m.resume.granted || m.resume.reporting {
		return m.resume.granted
	}
	m.sendHeld() // the report lists them as voted for
	m.resume.reporting = true
	report := m.report()
	report.Broken = slices.Clone(m.resume.missed)
	m.send(report)
	return true
}

// masterLeaves remembers what a master says before it ends.
func (m *Machine) masterLeaves(p wire.M2CLeaving) bool {
	if m.resume.granted {
		m.resume.leaving = &p
	}
	return m.resume.granted
}

// reattachBy returns when the session ends if no master takes it back.
func (m *Machine) reattachBy() (time.Duration, bool) {
	return m.resume.since + m.cfg.ReattachTimeout, m.resume.outage
}

// stoodRound takes over the end of a round.
func (m *Machine) stoodRound(p wire.M2CP2PConnectionsEstablished) {
	r := &m.resume
	if !r.granted {
		return
	}
	r.stood = wire.StoodRound{
		Decision: m.flow.decision, Members: m.view.Members, Mortal: slices.Clone(p.Mortal),
		World: uint64(m.view.GlobalWorldSize), Groups: uint64(m.view.NumGroups), Largest: uint64(m.view.LargestGroupSize),
	}
	r.newcomer = false
	r.taken, r.query, r.verdicts, r.optimized, r.synced, r.missed = 0, wire.ReportedQuery{}, verdicts{}, 0, 0, slices.Clone(r.told)
	r.links = slices.DeleteFunc(r.links, func(l wire.ReportedLink) bool { return !slices.Contains(p.Ring, l.To) })
}

// settled remembers the verdict of a collective for others who have not had it.
func (m *Machine) settled(op *operation) {
	if m.resume.granted {
		m.resume.met = true
		m.resume.verdicts.add(wire.ReportedVerdict{Tag: op.vote.Tag, Seq: op.told.seq, Verdict: op.verdict()})
	}
}

func (op *operation) verdict() wire.Verdict {
	if op.stood {
		return wire.Verdict{Code: wire.VerdictStood}
	}
	return wire.Verdict{Aborted: op.abort, Code: uint16(op.code), Reason: op.reason}
}

// keepLink remembers a measurement.
func (m *Machine) keepLink(l wire.ReportedLink) {
	r := &m.resume
	if !r.granted {
		return
	}
	if i := slices.IndexFunc(r.links, func(o wire.ReportedLink) bool { return o.To == l.To }); i >= 0 {
		r.links[i] = l
	} else if len(r.links) < maxLinks {
		r.links = append(r.links, l)
	}
}

// report says what this peer holds.
func (m *Machine) report() wire.C2MReport {
	r := &m.resume
	p := wire.C2MReport{
		Round: r.stood, Query: r.query, Call: m.reportCall(), Mesh: m.mesh.report(),
		Change:       wire.ReportedChange{Taken: r.taken, Direct: m.view.Direct},
		Verdicts:     r.verdicts.last(reportedVerdicts),
		NextRevision: r.next, Optimized: r.optimized, Synced: r.synced,
		Leaving: m.leaving != 0, Links: slices.Clone(r.links),
	}
	p.Query.Asking = m.asking
	p.Round.World, p.Round.Groups = uint64(m.view.GlobalWorldSize), uint64(m.view.NumGroups)
	if step := p.Call.Step; step == wire.StepConnecting || step == wire.StepRing {
		// The newcomers of the round count, too: one of them may have heard that it stands.
		p.Round.World = max(p.Round.World, uint64(m.view.LocalWorldSize))
	}
	if m.view.Connected && !r.newcomer {
		p.Round.Ring, p.Round.Gone = slices.Clone(m.view.Ring), slices.Clone(m.dropped)
		p.Round.Members, p.Round.Mortal = slices.Clone(r.stood.Members), slices.Clone(r.stood.Mortal)
	}
	if m.prep != nil {
		p.Change.Prepares, p.Change.Failed = m.prep.change, slices.Clone(m.prep.unreached)
		p.Change.Leaver, p.Change.Epoch = m.prep.leaver, m.prep.epoch
		p.Change.Answered = (m.prep.stands || m.prep.failed) && m.prep.answer == nil
	}
	for _, op := range m.ops {
		if step, told := op.state.reported(); told {
			p.Ops = append(p.Ops, wire.ReportedOp{
				Vote: op.vote, Step: step, Seq: op.told.seq, After: op.told.after, Older: op.older,
				Done: op.told.done, Heard: op.heard, Verdict: op.verdict(),
			})
			p.Ops[len(p.Ops)-1].Done.Tag = op.vote.Tag
		}
	}
	return p
}

// reported returns what a report calls the state; false if the collective has no
// place in one.
func (s opState) reported() (wire.OpStep, bool) {
	switch s {
	case opVoting:
		return wire.OpVoted, true
	case opAhead:
		return wire.OpAhead, true
	case opRunning:
		return wire.OpRunning, true
	case opReported:
		return wire.OpReported, true
	}
	return 0, false
}

func (m *Machine) reportCall() (c wire.ReportedCall) {
	f := m.flow
	if f == nil {
		return c
	}
	switch f.step {
	case stepInfo:
		switch {
		case !f.voted:
		case f.accept:
			c.Step, c.Decision = wire.StepAccept, f.decision
		default:
			c.Step, c.Decision = wire.StepEstablish, f.decision
		}
	case stepConnecting:
		c.Step, c.Decision = wire.StepConnecting, f.decision
	case stepRing:
		c.Step, c.Decision, c.Failed = wire.StepRing, f.decision, slices.Clone(f.unreached)
	case stepRequests:
		c.Step = wire.StepOptimize
	case stepProbing:
		c.Step = wire.StepProbing
		if f.scheduled && !f.through {
			c.Step = wire.StepCalled
		}
	case stepOptimized:
		c.Step = wire.StepOptimized
	case stepElection:
		c.Step, c.Vote = wire.StepElection, m.stateVote()
	case stepFetching, stepSynced:
		c.Step, c.Vote, c.Verdict, c.Decision = wire.StepFetching, m.stateVote(), f.verdict, f.decision
		if f.step == stepSynced {
			c.Step, c.Unheld = wire.StepSynced, f.cause != nil
		}
	}
	return c
}

func (s *mesh) report() wire.ReportedMesh {
	p := wire.ReportedMesh{Wanted: s.wanted, Change: s.change, Failed: slices.Clone(s.told.FailedPeers), Ways: slices.Clone(s.told.Ways)}
	switch {
	case s.state == meshDirect:
		p.Step, p.Planner = wire.MeshSettled, wire.MeshDirect
	case s.state == meshRefused:
		p.Step, p.Planner = wire.MeshSettled, wire.MeshNone
	case s.state == meshPreparing && s.answered:
		p.Step = wire.MeshAnswered
	case s.state == meshPreparing:
		p.Step = wire.MeshPreparing
	}
	return p
}
