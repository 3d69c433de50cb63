package fsm

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

const (
	// brokenGrace is how long a member is waited for whose neighbours both say that
	// its connections to them are broken.
	brokenGrace = time.Second
	// returnTime is how long a member may take to come back that has only noticed by its
	// silence that its master is gone: the next one may have begun at once.
	returnTime = 2 * time.Second
	// defaultGrace is how long members are waited for where nothing says how long they
	// may be silent.
	defaultGrace = 8 * time.Second
	// maxHeld bounds the packets of a client that are kept while a recovery goes on.
	maxHeld = 4 * maxOps
)

// recovery is the time in which a master that came after another one decides nothing,
// and hears from the peers what they hold.
type recovery struct {
	on     bool
	begun  bool              // since is known
	since  time.Duration     // when it began
	again  bool              // all were here before, and say it once more
	were   []wire.UUID       // ... the members among them
	states []groupState      // ... and what their groups had
	calm   time.Duration     // nobody makes them do so before
	over   bool              // it is through: who comes now is too late
	counts bool              // votes are counted once more: what they agree on is known when all are
	slept  int               // it stood still so often
	held   []PacketIn        // what came behind reports, and registrations of newcomers
	doors  map[ClientID]bool // ... of these clients
	back   []*comeback       // those who have come back, in the order in which they did
	by     map[*client]*comeback
	news   bool               // there may be enough reports now
	told   map[wire.UUID]bool // the term of this master
	stale  bool               // ... and groups does not know them, nor do absent and dead
	absent int                // so many of were have not reported
	dead   bool               // ... and all of these look dead
	groups []*newest
	asked  uint64 // the confirmation that is awaited, 0: none
	sure   bool   // it has come
	youth  youth
	anew   int // it was asked for so often because of members that were gone again
}

// mostAnew bounds that: nobody is taken back then before the recovery is over, so that those who
// come and go all the time do not hold it up.
const mostAnew = 64

// comeback is a client that goes on with a session it had with an earlier master.
type comeback struct {
	c      *client
	group  uint32
	report *wire.C2MReport // nil: not come
	met    bool            // it says that it has done something with others
	since  time.Duration
	held   int      // packets in recovery.held
	bytes  int      // ... and their size
	late   bool     // the recovery was over
	waits  bool     // ... and others still connect to it in a round
	again  bool     // it is asked for another report: what it says before that one counts in there
	hasty  bool     // it has come before, and not said what it holds
	taken  []uint64 // tags of its collectives that somebody knew the numbers of
}

// token is what proves an identity to a master that has not kept it.
func (m *Machine) token(u wire.UUID, group uint32, name string) (t [16]byte) {
	key := m.cfg.IdentityKey
	if len(key) == 0 {
		key = m.cfg.SessionKey
	}
	if len(key) == 0 {
		return t
	}
	h := hmac.New(sha256.New, key)
	h.Write(u[:])
	h.Write(binary.BigEndian.AppendUint32(nil, group))
	h.Write([]byte(name))
	copy(t[:], h.Sum(nil))
	return t
}

// proves reports whether p has the proof of the session that it names.
func (m *Machine) proves(c *client, p wire.C2MRequestSessionRegistration) bool {
	id := p.Ext.Resuming.Identity
	want := m.token(id.UUID, p.PeerGroup, c.listens.as.Name)
	if !m.cfg.Resume || !p.Ext.Native || id == (wire.Identity{}) {
		return false
	}
	return hmac.Equal(want[:], id.Token[:]) || len(m.cfg.IdentityKey) == 0 && !m.holds(id.UUID)
}

// holds reports whether the session of u goes on here: its peer has a proof of this master.
func (m *Machine) holds(u wire.UUID) bool {
	return m.uuids[u] != nil || slices.Contains(m.recovery.were, u)
}

// granted is what a client that can resume is told with its registration.
func (m *Machine) granted(c *client, group uint32) wire.Resuming {
	return wire.Resuming{
		Resume: true, Term: m.cfg.Term,
		Identity: wire.Identity{UUID: c.uuid, Token: m.token(c.uuid, group, c.listens.as.Name)},
	}
}

// untouched reports whether this master has decided nothing yet, so that it may begin
// with what peers hold.
func (m *Machine) untouched() bool {
	return !m.recovery.over && len(m.clients) == 0 && m.numbers == firstNumbers(m.cfg.Term)
}

// anotherKey is why a session can never go on here.
const anotherKey = "the proof of the session is not valid here: this master has another key"

// resume takes the registration of a peer that says it has a session. It returns why
// that cannot go on, "" if it does.
func (m *Machine) resume(c *client, p wire.C2MRequestSessionRegistration) (why string) {
	r, id := &m.recovery, p.Ext.Resuming.Identity
	switch {
	case !m.proves(c, p):
		return anotherKey
	case m.uuids[id.UUID] != nil && !m.mayReassemble():
		m.knocks(m.uuids[id.UUID])
		return "another connection goes on with the session"
	case m.uuids[id.UUID] != nil && m.now < m.calm(m.uuids[id.UUID]):
		return m.wait(m.uuids[id.UUID])
	}
	late := !r.on && !m.untouched()
	switch {
	case late && m.stranger(id.UUID, p.Ext.Resuming.Term):
		m.giveWay()
		late = false
	case r.again && m.stranger(id.UUID, p.Ext.Resuming.Term):
		return "newcomers say again what they hold: it has to wait"
	case late && !m.cfg.Authority && p.Ext.Resuming.Term > m.cfg.Term:
		return tooLate
	}
	if why := m.outdated(id.UUID, p.Ext.Resuming.Term, late || r.again); why != "" {
		return why
	}
	if r.on && r.asked != 0 && r.anew >= mostAnew {
		return "members come and go while the others wait for them: it has to wait"
	}
	if old := m.uuids[id.UUID]; old != nil {
		m.reassemble(old)
		late = false
	}
	hasty := false
	if slices.ContainsFunc(r.back, func(b *comeback) bool { return b.c.uuid == id.UUID }) {
		// A second connection says that the first one is dead.
		for _, b := range slices.Clone(r.back) {
			if b.c.uuid == id.UUID {
				hasty = hasty || b.report == nil && !b.again && m.now > b.since // not all at once, after a pause of this master
				m.close(b.c, "left", "it has come back over another connection")
			}
		}
	}
	if !late && !r.again {
		m.follow(p.Ext.Resuming.Term)
		m.beginRecovery()
	}
	c.uuid = id.UUID
	if r.told == nil {
		r.told = map[wire.UUID]bool{}
	}
	r.told[id.UUID] = true
	if r.again {
		c.place.calm = m.now + m.cfg.Linger
	}
	b := &comeback{c: c, group: p.PeerGroup, late: late, hasty: hasty, since: m.now, met: p.Ext.Resuming.Met}
	r.add(b)
	m.silent = without(m.silent, c)
	m.send(c, m.welcome(c, p.PeerGroup))
	m.tellRevocations(c)
	if !late {
		m.out = append(m.out, Admit{Client: c.id}) // its report may be large
	}
	return ""
}

// lostMembers takes an operator's choice for members that do not come back.
func (m *Machine) lostMembers(drop bool) {
	if m.cfg.DropLost == drop {
		return
	}
	m.cfg.DropLost, m.recovery.news = drop, true
	text := "an operator has groups wait for half of their members and more"
	if drop {
		text = "an operator lets groups go on without members that do not come back"
	}
	m.fact(Fact{Kind: "recovering", Warn: drop, Text: text})
}

// farewell tells those who can resume that this master ends: they look for the next one
// at once.
func (m *Machine) farewell() {
	for _, b := range m.recovery.back {
		m.send(b.c, wire.M2CLeaving{})
	}
	for _, c := range m.clients {
		if c.can.resume {
			m.send(c, wire.M2CLeaving{})
		}
	}
}

// mostBehind bounds how far the term of a master may be behind what a peer says.
const mostBehind = 1 << 10

// outdated says why a peer cannot go on with this master, "" if it can: it has followed a
// master of this term, or of a later one, so what this one began with is an old copy.
// Numbers that it gave out would mean other things to peers.
func (m *Machine) outdated(u wire.UUID, term uint32, late bool) (why string) {
	mine := m.cfg.Term
	if !m.cfg.Authority || term < mine || term == mine && (late || m.recovery.told[u]) {
		return ""
	}
	why = fmt.Sprintf("this master, of term %d, began with an old copy of what it keeps: the peer has followed one of term %d", mine, term)
	if !late && term-mine <= mostBehind {
		m.out = append(m.out, Outdated{Term: term, Why: why})
	}
	return why
}

// follow makes this master one that comes after that of a term, where nobody else says
// which one it is. A peer may lie, so it does not follow to the end of all terms.
func (m *Machine) follow(term uint32) {
	if !m.cfg.Authority && term >= m.cfg.Term && term < mostFollowed {
		m.cfg.Term = term + 1
		m.numbers = firstNumbers(m.cfg.Term)
		m.round.n = m.numbers.changes
	}
}

// termOf is the term of the last master that has told the sender of p a number. It may
// be later than the one that the sender was told.
func termOf(p *wire.C2MReport) uint32 {
	n := max(p.Round.Decision, p.Query.Decision, p.Call.Decision, p.Optimized, p.Synced, p.Change.Taken, p.Change.Prepares, p.Mesh.Change)
	for i := range p.Ops {
		n = max(n, p.Ops[i].Seq)
	}
	for i := range p.Verdicts {
		n = max(n, p.Verdicts[i].Seq)
	}
	return uint32(min(n>>termShift, MaxTerm))
}

// beginRecovery lets the clock of a recovery run.
func (m *Machine) beginRecovery() {
	if r := &m.recovery; !r.on || !r.begun {
		r.on, r.begun, r.since = true, true, m.now
		m.fact(Fact{Kind: "recovering", Text: fmt.Sprintf("this is master %d of the run: it waits for the peers to say what they hold", m.cfg.Term)})
	}
}

// returned takes a packet of a client that has come back and is not in the world yet.
func (m *Machine) returned(b *comeback, e PacketIn) {
	if b.late {
		m.returnedLate(b, e)
		return
	}
	p, ok := e.Packet.(wire.C2MReport)
	ended, breaks := e.Packet.(wire.C2MLinkEnded)
	_, parts := e.Packet.(wire.C2MFarewell)
	switch {
	case parts:
		m.recovery.were = slices.DeleteFunc(m.recovery.were, func(u wire.UUID) bool { return u == b.c.uuid })
		m.recovery.stir()
	case ok && b.report == nil:
		if !m.recovery.again {
			m.follow(termOf(&p))
		}
		b.report, b.again = &p, false
		if why := m.impossible(b, &p); why != "" {
			m.turnBack(b, why)
			return
		}
		m.send(b.c, wire.M2CResumed{})
		m.recovery.stir()
	case ok: // connections that have broken since
		b.report.Broken = p.Broken
		m.recovery.stir()
	case breaks && (b.again || b.report != nil):
		m.breaks(b, ended.Peer)
	case b.report != nil && m.unreached(b, e.Packet):
	case b.again:
	case b.report == nil:
		m.turnBack(b, fmt.Sprintf("packet %T before the report", e.Packet))
	case e.Packet == nil || e.Packet.Proto() != wire.C2M:
		m.turnBack(b, fmt.Sprintf("unexpected packet %T", e.Packet))
	default:
		if beat, alive := e.Packet.(wire.C2MHeartbeat); alive {
			m.beat(b.c, beat)
			return
		}
		b.bytes += len(wire.Append(nil, e.Packet))
		if b.held++; b.held > maxHeld || b.bytes > maxHeldBytes {
			m.turnBack(b, "too many packets in a recovery, or too large ones")
			return
		}
		m.recovery.held = append(m.recovery.held, e)
	}
}

// turnBack ends the connection of a client that has come back, and tells it why. One
// that wants to leave has left.
func (m *Machine) turnBack(b *comeback, why string) {
	if b.report != nil && b.report.Leaving {
		m.send(b.c, wire.M2CLeaveAnswer{Left: true})
		m.close(b.c, "left", "it has left the run")
		return
	}
	m.send(b.c, wire.M2CPeerDropped{UUID: b.c.uuid, Addr: b.c.remote, Group: b.group, Reason: why})
	m.close(b.c, "kick", why)
}

// add notes a client that has come back.
func (r *recovery) add(b *comeback) {
	r.back = append(r.back, b)
	if r.by == nil {
		r.by = map[*client]*comeback{}
	}
	r.by[b.c] = b
}

// lost forgets a client that had come back and is gone.
func (r *recovery) lost(c *client) {
	b := r.by[c]
	if b == nil && !r.doors[c.id] {
		return
	}
	delete(r.by, c)
	delete(r.doors, c.id)
	r.back = slices.DeleteFunc(r.back, func(o *comeback) bool { return o == b })
	r.held = slices.DeleteFunc(r.held, func(e PacketIn) bool { return e.Client == c.id })
	if b != nil && r.asked != 0 { // it may be at another master by now
		r.asked, r.sure = 0, false
		r.anew++
	}
	r.stir()
}

// stir has the recovery look at what the peers say again.
func (r *recovery) stir() { r.news, r.stale = true, true }

// newest is what the registry and the reports say of the last ring of a group.
type newest struct {
	id       uint32
	round    uint64 // that a peer has seen succeed, 0: none
	taken    uint64 // the change that gave the ring since, 0: none
	ring     []wire.UUID
	met      bool        // who has that has done something with others
	next     uint64      // revision, as it says
	all      []wire.UUID // who is waited for: of a later ring, if the registry has one
	missing  []wire.UUID
	said     map[wire.UUID]*hearsay
	hinted   bool // all who are missing look dead to those beside them
	known    bool // this master had its shared state, and has given that back
	recorded bool // there is a registry
}

// survey says for every known group who was in it, by ascending id. It is asked at every
// step, and looks again when somebody has reported, or has gone.
func (m *Machine) survey() []*newest {
	r := &m.recovery
	if r.stale || r.groups == nil {
		r.groups, r.stale = m.look(), false
	}
	return r.groups
}

func (m *Machine) look() (gs []*newest) {
	of := func(id uint32) *newest {
		i, found := slices.BinarySearchFunc(gs, id, func(g *newest, id uint32) int { return int(g.id) - int(id) })
		if !found {
			gs = slices.Insert(gs, i, &newest{id: id, recorded: m.cfg.Authority})
		}
		return gs[i]
	}
	for _, b := range m.recovery.back {
		if b.report == nil {
			continue
		}
		g, s := of(b.group), &b.report.Round
		if g.precededBy(b) {
			g.round, g.taken, g.ring, g.met, g.next = s.Decision, b.report.Change.Taken, s.Ring, b.hasMet(), b.report.NextRevision
		}
	}
	for _, g := range gs {
		g.all = g.ring
	}
	for _, r := range m.records.groups {
		if len(r.Members) == 0 {
			continue // nobody can come back: New has it among those that have ended
		}
		if g := of(r.ID); r.Round > g.round {
			g.all = r.Members
		}
	}
	here := make(map[wire.UUID]*comeback, len(m.recovery.back))
	for _, b := range m.recovery.back {
		if b.report == nil {
			continue
		}
		here[b.c.uuid] = b
		g, s := of(b.group), &b.report.Round
		if slices.Contains(g.all, b.c.uuid) { // a newcomer may not reach members that have not heard of it
			for _, u := range b.report.Broken {
				g.note(u).broken++
			}
		}
		if s.Decision == g.round {
			for _, u := range s.Gone {
				g.note(u).over, g.note(u).gone = true, true
			}
			for _, u := range s.Mortal {
				g.note(u).over = true
			}
		}
	}
	for _, g := range gs {
		g.hinted = true
		for i, u := range g.all {
			if b := here[u]; b != nil && b.group == g.id || g.said[u] != nil && g.said[u].over {
				continue // it has reported, or somebody knows that it does not come
			}
			g.missing = append(g.missing, u)
			g.hinted = g.hinted && g.looksDead(i, here)
		}
	}
	m.recovery.absent, m.recovery.dead = m.recovery.missing(gs, here)
	return gs
}

// hearsay is what those who have come back say of a member.
type hearsay struct {
	broken int  // so many say that the connections to it have ended
	over   bool // somebody knows that it does not come back
	gone   bool // ... because it has left before
}

func (g *newest) note(u wire.UUID) *hearsay {
	if g.said == nil {
		g.said = map[wire.UUID]*hearsay{}
	}
	if g.said[u] == nil {
		g.said[u] = &hearsay{}
	}
	return g.said[u]
}

// looksDead reports whether those beside a member who are here say that the connections to
// it have ended, or others do where nobody beside it is here. In a round a member may be beside
// others than in the ring in force, so that its silence says nothing.
func (g *newest) looksDead(at int, here map[wire.UUID]*comeback) bool {
	u, n := g.all[at], len(g.all)
	if g.said[u] == nil || g.said[u].broken == 0 {
		return false
	}
	for _, v := range []wire.UUID{g.all[(at+n-1)%n], g.all[(at+1)%n]} {
		if b := here[v]; b != nil && b.group == g.id && !b.inRound() && !slices.Contains(b.report.Broken, u) {
			return false
		}
	}
	return true
}

// grace is how long those who are missing are waited for.
func (m *Machine) grace(gs []*newest) time.Duration {
	switch {
	case m.recovery.again && m.recovery.dead:
		return 0
	case m.recovery.again:
		return m.cfg.Linger
	}
	if len(gs) == 0 { // those that were here may come another time
		return m.longGrace()
	}
	known, heard := false, uint64(0)
	for _, g := range gs {
		if known = known || len(g.all) > 0; !g.hinted {
			return m.longGrace()
		}
	}
	for _, b := range m.recovery.back {
		if b.report != nil {
			heard = max(heard, b.report.Round.World)
		}
	}
	if !known && heard > uint64(len(m.recovery.back)) { // newcomers know that others were here, and not who
		return m.longGrace()
	}
	return min(brokenGrace, m.longGrace())
}

// until is when the recovery goes on without those who are missing, and without those
// who are here and do not say what they hold: their connections stand, and may be slow.
func (m *Machine) until(gs []*newest) time.Duration {
	r := &m.recovery
	at, last := r.since+m.grace(gs), r.since+m.longGrace()
	for _, b := range r.back {
		switch {
		case b.report != nil:
		case b.hasty:
			at = max(at, min(b.since, at)+brokenGrace)
		default:
			at = max(at, last)
		}
	}
	return at
}

func (m *Machine) longGrace() time.Duration {
	if m.cfg.HeartbeatTimeout > 0 {
		return m.cfg.HeartbeatTimeout + returnTime
	}
	return defaultGrace
}

// whole reports whether nobody is missing, as far as this master can know.
func (m *Machine) whole(gs []*newest) bool {
	for _, b := range m.recovery.back {
		if b.report == nil {
			return false
		}
	}
	if r := &m.recovery; r.again {
		return r.absent == 0
	}
	for _, g := range gs {
		if len(g.missing) > 0 {
			return false
		}
	}
	if len(gs) == 0 {
		return false
	}
	if m.cfg.Authority {
		return true
	}
	// Nobody has written down which groups there are. The last round said how many peers
	// they have.
	last, world, known := uint64(0), uint64(0), uint64(0)
	met := slices.ContainsFunc(m.recovery.back, (*comeback).hasMet)
	for _, b := range m.recovery.back {
		if met && !b.hasMet() && len(b.report.Round.Ring) > 0 {
			continue // it counts in a run of its own
		}
		s, call := &b.report.Round, &b.report.Call
		heard := s.Decision
		if call.Step == wire.StepConnecting || call.Step == wire.StepRing {
			heard = max(heard, call.Decision)
		}
		switch { // who has heard that one has left since knows of fewer
		case heard > last:
			last, world = heard, s.World
		case heard == last:
			world = min(world, s.World)
		}
	}
	for _, g := range gs {
		for _, u := range g.ring {
			if h := g.said[u]; h == nil || !h.gone { // those are not in the world that others count
				known++
			}
		}
		for _, b := range m.recovery.back {
			call := &b.report.Call
			connects := (call.Step == wire.StepConnecting || call.Step == wire.StepRing) && call.Decision == last
			if b.group == g.id && connects && !slices.Contains(g.ring, b.c.uuid) { // one of an earlier round has no place
				known++
			}
		}
	}
	return last != 0 && known >= world // newcomers know nothing of members
}

// lead reports whether those who have come back may drop the others of their group
// without a registry: of two parts of it, only one may.
func (m *Machine) lead(gs []*newest) bool {
	if m.cfg.Authority || m.cfg.DropLost || m.recovery.again {
		return true
	}
	for _, g := range gs {
		n, here := len(g.ring), len(g.ring)-len(g.missing)
		switch {
		case 2*here > n:
		case 2*here == n && n > 0 && !slices.Contains(g.missing, slices.MinFunc(g.ring, wire.UUID.Compare)):
		case len(g.missing) > 0:
			return false
		}
	}
	return true
}

// recoveryDue returns when the recovery goes on without those who are missing.
func (m *Machine) recoveryDue() (time.Duration, bool) {
	r := &m.recovery
	if !r.on || !r.begun || r.asked != 0 && !r.sure {
		return 0, false
	}
	gs := m.survey()
	at := m.until(gs)
	if m.now >= at && !m.lead(gs) {
		return 0, false // an operator has to say, or others have to come
	}
	return at, true
}

// checkRecovered goes on when everybody is there, or was waited for long enough.
func (m *Machine) checkRecovered() {
	r := &m.recovery
	if !r.on {
		return
	}
	if !r.begun {
		m.beginRecovery()
	}
	for _, b := range slices.Clone(r.back) {
		if m.invented(b) {
			m.turnBack(b, "its report has a round of which neither the registry nor the other members know")
			r.lost(b.c)
		}
	}
	r.news = false
	gs := m.survey()
	if m.whole(gs) {
		m.rebuild(gs)
		return
	}
	if m.now < m.until(gs) {
		return
	}
	if !m.lead(gs) {
		m.about(&client{}, "recovering", true, "more than half of the members of a group are missing, and no registry says that they may be dropped: "+
			"start the peers again, or set master.lost_members to drop")
		return
	}
	if m.cfg.Authority && !r.sure {
		if r.asked == 0 {
			m.records.last++
			r.asked = m.records.last
			m.out = append(m.out, Confirm{Number: r.asked})
		}
		return
	}
	for _, b := range slices.Clone(r.back) {
		if b.report == nil {
			m.turnBack(b, "it has not reported what it holds in time")
			r.lost(b.c)
		}
	}
	m.rebuild(gs)
}

// deferred keeps the registration of a newcomer until the recovery is through.
func (m *Machine) deferred(c *client, e PacketIn) {
	r := &m.recovery
	if r.doors[c.id] {
		m.kick(c, "registered twice")
		return
	}
	if r.doors == nil {
		r.doors = map[ClientID]bool{}
	}
	r.doors[c.id] = true
	m.silent = without(m.silent, c)
	r.held = append(r.held, e)
}
