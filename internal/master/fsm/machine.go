package fsm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/wire"
)

// maxOps bounds the collectives that one client may have open.
const maxOps = 4096

// Machine is the master. It is not safe for concurrent use.
type Machine struct {
	cfg Config
	now time.Duration

	due    time.Duration // the armed deadline, if hasDue
	hasDue bool

	conns   map[ClientID]*client
	silent  []*client // connections that did not register, oldest first
	clients []*client // registered clients, oldest first
	uuids   map[wire.UUID]*client
	groups  []*group // ascending ids
	ended   []ended  // groups without clients, the one that ended first in front
	census  census

	round   round
	outside []absence // addresses that have to wait, the last to cost a round last
	trials  trials
	debt    debt
	solving solving
	probes  *schedule // of the running optimization
	shows   shows
	beats   beats
	voteDue time.Duration // when votes are looked at next
	numbers numbers
	records records

	recovery recovery

	lines     lines // about strangers, and rounds
	unchecked bool  // in tests that watch the time of steps

	away []*client // members that may come back
	upshot
	out []Effect
}

// upshot is what is left to do when an event is through.
type upshot struct {
	leavers []*client // have asked to leave between two collectives
	leaving []*client // not yet removed
	freed   bool      // a result was passed on, and others may wait for that
	// rescueBy is when those are looked at whose results are passed on, 0: there are none.
	rescueBy time.Duration
}

// numbers are the last that were given out, of each kind. None is used twice. Those
// that peers are told begin with the term.
type numbers struct {
	collectives uint64 // the next one, which peers are told
	votes       uint64 // on shared states
	parts       uint64 // of clients in collectives
	jobs        uint64 // of the solver
	plans       uint64 // jobs that make them
	probes      uint64 // rounds of them
	changes     uint64 // rings and meshes that were offered
	preflights  uint64
	decisions   uint64
}

// New returns a machine without clients. cfg.NewUUID must not be nil.
func New(cfg Config) *Machine {
	if !(cfg.Noise > 0) {
		cfg.Noise = defaultNoise
	}
	if cfg.Patience <= 0 {
		cfg.Patience = restless
	}
	if cfg.PlannedInStep == 0 {
		cfg.PlannedInStep = plannedInStep
	}
	first := firstNumbers(cfg.Term)
	if !cfg.Resume { // those who were there come back as newcomers
		cfg.Registry = cfg.Registry.deserted()
	}
	lost := slices.ContainsFunc(cfg.Registry.Groups, func(r GroupRecord) bool { return len(r.Members) > 0 })
	return &Machine{
		cfg: cfg, conns: map[ClientID]*client{}, uuids: map[wire.UUID]*client{},
		numbers: first, round: round{n: first.changes},
		records: records{groups: slices.Clone(cfg.Registry.Groups)}, ended: cfg.Registry.ended(),
		recovery: recovery{on: lost},
	}
}

// Step feeds one event and returns what follows from it, in order. now is the
// time since any fixed instant and never decreases. The result is valid until the
// next Step. What packets refer to is not the caller's: several may share it.
func (m *Machine) Step(now time.Duration, ev Event) []Effect {
	clear(m.out)
	m.out = m.out[:0]
	m.advance(now)
	if r := &m.recovery; r.on && !r.begun {
		m.beginRecovery()
	}
	switch e := ev.(type) {
	case Connected:
		m.connected(e)
	case PacketIn:
		m.packet(e)
	case Alive:
		if c := m.conns[e.Client]; c != nil {
			c.seen = m.now
		}
	case Malformed:
		if c := m.conns[e.Client]; c != nil {
			m.close(c, "malformed", fmt.Sprintf("malformed packet: %v", e.Err))
		}
	case Gone:
		m.disconnected(e)
	case Solved:
		m.solved(e)
	case PlansMade:
		m.plansMade(e)
	case ResetState:
		m.resetState(e.Group)
	case Revoked:
		if c := m.conns[e.Client]; c != nil {
			m.kick(c, "%s", e.Why)
			m.cutOff(c) // no other master takes it either
		}
	case Revocations:
		m.cfg.Revocations = e.Lists
		for _, c := range m.clients {
			m.tellRevocations(c)
		}
		for _, b := range m.recovery.back {
			m.tellRevocations(b.c)
		}
	case LostState:
		m.lostState(e.BeginAnew)
	case Committed:
		m.committed(e)
	case Confirmed:
		m.confirmed(e)
	case LostMembers:
		m.lostMembers(e.Drop)
	case Ending:
		m.farewell()
	case Tick:
	}
	m.followUp()
	if m.recovery.news {
		m.checkRecovered()
		m.followUp()
	}
	if m.hasDue && m.now >= m.due {
		m.timers()
		m.followUp()
		if m.recovery.news {
			m.checkRecovered()
			m.followUp()
		}
	}
	if m.due, m.hasDue = m.nextDue(); m.records.drop != 0 {
		m.due = max(m.due, m.now+askAgain)
	}
	if invariants.Enabled && !m.unchecked {
		m.check()
	}
	return m.out
}

// askAgain is how often this master looks again at what is due while its authority does not say
// whether members may be dropped: what is due may be that they are gone.
const askAgain = 10 * time.Millisecond

// Deadline returns when a Tick is due next, in the time of Step.
func (m *Machine) Deadline() (time.Duration, bool) { return m.due, m.hasDue }

// followUp removes the clients that were closed and resolves what can never
// resolve itself, until nothing more follows.
func (m *Machine) followUp() {
	for {
		if len(m.leaving) > 0 {
			batch := m.leaving
			m.leaving = nil
			if !m.confirmDrop(batch) {
				m.remove(batch)
			}
			continue
		}
		if m.freed {
			m.freed = false
			m.goOnWaiting()
			continue
		}
		if m.records.drop != 0 || !m.drain() && !m.breakDeadlock() {
			return
		}
	}
}

func (m *Machine) send(c *client, p wire.Packet) {
	if !c.closing && !c.place.away {
		m.out = append(m.out, Send{Client: c.id, Packet: p})
	}
}

// close ends a connection from our side; the client's removal is processed
// when the current event is through. kind is the fact's kind. A member hears of it
// when it is removed: it may go on at another master, if this one leads no longer. An
// authority that does not answer ends this master, and its connections with it.
func (m *Machine) close(c *client, kind, why string) {
	if c.closing {
		return
	}
	c.closing, c.end = true, ending{kind: kind, why: why, untold: !c.place.away}
	m.away = without(m.away, c)
	if !m.cfg.Authority || !c.registered || c.phase != Accepted {
		m.cutOff(c)
	}
	m.leaving = append(m.leaving, c)
}

// cutOff tells a client that was closed why, and ends its connection.
func (m *Machine) cutOff(c *client) {
	if !c.end.untold {
		return
	}
	c.end.untold = false
	if c.registered && c.native {
		m.out = append(m.out, Send{Client: c.id, Packet: wire.M2CPeerDropped{UUID: c.uuid, Addr: c.remote, Group: c.group.id, Reason: c.end.why}})
	}
	m.out = append(m.out, Close{Client: c.id, Reason: c.end.why})
}

func (m *Machine) kick(c *client, format string, args ...any) {
	m.close(c, "kick", fmt.Sprintf(format, args...))
}

func (m *Machine) fact(f Fact) {
	f.World = len(m.clients)
	m.out = append(m.out, Log{Fact: f})
}

// about states a fact about a client. A fact that one connection can
// repeat at will is stated so often and then counted, so that it hides no others.
func (m *Machine) about(c *client, kind string, warn bool, format string, args ...any) {
	f := Fact{Kind: kind, Warn: warn, Remote: c.remote}
	more := ""
	if !c.lines.say(m.now, clientLines, kind, &more) {
		return
	}
	if stranger := !c.registered || c.phase != Accepted && c.closing; stranger && !m.lines.say(m.now, strangerLines, kind, &more) {
		return
	}
	f.Text = fmt.Sprintf(format, args...) + more
	if c.registered {
		f.Peer, f.Group = c.uuid, c.group.id
	}
	m.fact(f)
}

// tell states a fact about a group that its members can repeat at will.
func (m *Machine) tell(g *group, kind string, warn bool, format string, args ...any) {
	more := ""
	if g.lines.say(m.now, groupLines, kind, &more) {
		m.fact(Fact{Kind: kind, Warn: warn, Group: g.id, Text: fmt.Sprintf(format, args...) + more})
	}
}

// packet dispatches one packet of a client. Packets of clients that were
// closed are still in flight for a while and mean nothing.
func (m *Machine) packet(e PacketIn) {
	c := m.conns[e.Client]
	if c == nil || c.closing {
		return
	}
	c.seen = m.now
	if b := m.recovery.by[c]; b != nil {
		m.returned(b, e)
		return
	}
	if reg, ok := e.Packet.(wire.C2MRequestSessionRegistration); ok {
		if was := reg.Ext.Resuming.Identity; m.recovery.on && (!m.cfg.Resume || was == wire.Identity{} || m.gaveWay(c, reg)) {
			m.deferred(c, e)
			return
		}
		if c.registered {
			m.kick(c, "registered twice")
			return
		}
		m.register(c, reg)
		return
	}
	if _, ok := e.Packet.(wire.C2MAskTopology); ok {
		m.showTopology(c)
		return
	}
	if !c.registered {
		m.kick(c, "packet %T before the registration", e.Packet)
		return
	}
	if e.Packet == nil || e.Packet.Proto() != wire.C2M {
		m.kick(c, "unexpected packet %T", e.Packet)
		return
	}
	if p, ok := e.Packet.(wire.C2MCollectiveCommsComplete); ok && p.WasAborted && c.can.collectives && c.op(p.Tag) == nil {
		return // it gives up what is over
	}
	if !legal(e.Packet.ID(), c.phase, c.state) {
		m.kick(c, "packet %T is not allowed in state %v/%v", e.Packet, c.phase, c.state)
		return
	}
	switch p := e.Packet.(type) {
	case wire.C2MRequestEstablishP2PConnections:
		m.voteRound(c, p)
	case wire.C2MP2PConnectionsEstablished:
		m.report(c, p)
	case wire.C2MCheckPeersPending:
		m.askPending(c)
	case wire.C2MOptimizeTopology:
		c.set(VoteOptimize, m.now)
		m.checkOptimize()
	case wire.C2MReportPeerBandwidth:
		m.bandwidth(c, p)
	case wire.C2MOptimizeTopologyWorkComplete:
		c.set(VoteOptimizeDone, m.now)
		m.checkOptimized()
	case wire.C2MSyncSharedState:
		m.voteSync(c, p)
	case wire.C2MDistSharedStateComplete:
		m.syncDone(c, p)
	case wire.C2MCollectiveCommsInitiate:
		m.initiate(c, p)
	case wire.C2MCollectiveCommsComplete:
		m.complete(c, p)
	case wire.C2MResult:
		m.result(c, p)
	case wire.C2MProbeState:
		m.probeState(c, p)
	case wire.C2MLinkReport:
		m.linkReport(c, p)
	case wire.C2MRates:
		m.rates(c, p)
	case wire.C2MRingPrepared:
		m.ringPrepared(c, p)
	case wire.C2MPreflightDone:
		m.preflightDone(c, p)
	case wire.C2MWantMesh:
		m.askMesh(c)
	case wire.C2MMeshPrepared:
		m.meshPrepared(c, p)
	case wire.C2MLeave:
		m.askLeave(c)
	case wire.C2MFarewell:
		c.place.parted = true
	case wire.C2MLinkEnded:
		m.linkEnded(c, p.Peer)
	case wire.C2MHeartbeat:
		m.beat(c, p)
	default:
		m.kick(c, "unknown packet %T", e.Packet)
	}
}

// askPending is the query whether newcomers wait (control spec, section 5.1).
func (m *Machine) askPending(c *client) {
	if c.pending.open {
		m.kick(c, "asked for pending peers twice")
		return
	}
	c.group.setPending(c, true)
	c.pending.wait = wait{since: m.now}
	m.checkPending()
}

func (m *Machine) checkPending() {
	if m.census.accepted == 0 || m.census.asking != m.census.accepted {
		return
	}
	waiting := false
	if len(m.clients) > m.census.accepted {
		proved, others := m.waiting()
		waiting = proved || others
	}
	// A better ring waits for a round, too.
	for _, g := range m.inhabited() {
		m.reconsider(g)
		waiting = waiting || g.change == nil && m.wanted(g)
	}
	m.numbers.decisions++
	for _, c := range m.clients {
		if c.phase == Accepted {
			m.answer(c, waiting)
		}
	}
}

// answer tells a client that asked whether peers are pending.
func (m *Machine) answer(c *client, waiting bool) {
	c.group.setPending(c, false)
	p := wire.M2CPeersPendingResponse{PeersPending: waiting}
	if c.can.resume {
		p.Decision = m.numbers.decisions
	}
	m.send(c, p)
}

func allIn(cs []*client, s State) bool {
	for _, c := range cs {
		if c.state != s {
			return false
		}
	}
	return len(cs) > 0
}

func anyNative(cs []*client) bool {
	for _, c := range cs {
		if c.native {
			return true
		}
	}
	return false
}

func allNative(cs []*client) bool {
	for _, c := range cs {
		if !c.native {
			return false
		}
	}
	return true
}
