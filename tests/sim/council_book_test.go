package sim

import (
	"fmt"
	"slices"
	"time"

	mfsm "github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/wire"
)

// record3 is what must hold for several masters together.
type record3 struct {
	reigns []*reign
	acked  []stamp // registries of which a master was told that they are committed
	began  [seatCount]stamp
	asked  map[uint64]question

	told    map[wire.UUID]bool // somebody was sent that it is a member
	heard   map[wire.UUID]bool // ... and has taken that
	dropped map[wire.UUID]bool // by a master that had asked, or has left between two collectives

	named    map[wire.UUID]int    // the peer that a master has given a uuid to
	numbers  map[uint64]string    // what a number of a change was given to
	rounds   map[roundKey]outcome // what peers were told of the end of a round
	round    map[int]uint64       // the one that a peer connects in
	verdicts map[uint64]outcome   // ... of a collective
	elected  map[uint64]outcome   // ... of an election
	states   map[stateKey]outcome // ... and hold

	commits, confirms, drops, repeats int
}

// question was asked of an authority.
type question struct {
	term   uint32
	reigns int // that had begun
}

type roundKey struct {
	decision uint64
	group    uint32
}

type stateKey struct {
	group    uint32
	revision uint64
}

// outcome is what a peer was told.
type outcome struct {
	what string
	by   int
}

func newRecord3() record3 {
	return record3{
		asked: map[uint64]question{}, told: map[wire.UUID]bool{}, heard: map[wire.UUID]bool{}, dropped: map[wire.UUID]bool{}, named: map[wire.UUID]int{},
		numbers: map[uint64]string{}, rounds: map[roundKey]outcome{}, round: map[int]uint64{}, verdicts: map[uint64]outcome{},
		elected: map[uint64]outcome{}, states: map[stateKey]outcome{},
	}
}

// leads checks that a leader is the only one of its term, and begins with all that any
// leader before it has committed.
func (b *record3) leads(w *world, r *reign) {
	for _, o := range b.reigns {
		if o.term == r.term {
			w.failf("master %d leads in term %d, and so did master %d from %v on", r.seat, r.term, o.seat, o.since)
		}
	}
	if r.found.term >= r.term {
		w.failf("master %d of term %d has found what was committed in term %d", r.seat, r.term, r.found.term)
	}
	for _, at := range b.acked {
		b.found(w, r, at)
	}
	b.reigns = append(b.reigns, r)
}

func (b *record3) found(w *world, r *reign, at stamp) {
	if at.term < r.term && r.found.before(at) {
		w.failf("master %d began term %d with %v: %v was committed", r.seat, r.term, r.found, at)
	}
}

// committed takes what a master was told.
func (b *record3) committed(w *world, at stamp) {
	b.commits++
	for _, r := range b.reigns {
		b.found(w, r, at)
	}
	b.acked = append(b.acked, at)
}

func (b *record3) asks(_ *world, number uint64, term uint32) {
	b.asked[number] = question{term, len(b.reigns)}
}

// confirmed checks that nobody led a later term when the question was asked.
func (b *record3) confirmed(w *world, number uint64) {
	q := b.asked[number]
	b.confirms++
	for _, r := range b.reigns[:q.reigns] {
		if r.term > q.term {
			w.failf("term %d is confirmed, and master %d led term %d from %v on", q.term, r.seat, r.term, r.since)
		}
	}
}

// watch is what is known of one master from what it is told and does.
type watch struct {
	steps    int
	recovers bool
	came     map[int]int            // the step in which a peer came last
	by       map[int]mfsm.ClientID  // ... and over which connection
	ended    map[int]int            // ... in which its last connection ended, but for those of turned
	turned   map[mfsm.ClientID]bool // has been refused
	asked    map[uint64]int         // ... in which a confirmation was asked for
	parted   map[int]bool           // has said that it ends its session
	member   map[wire.UUID]bool     // as far as this master knows
	sure     int                    // the step in which the last one was asked for that has come
	groups   []mfsm.GroupRecord
	reset    map[uint32]bool // have given their states up, and written no later one yet
}

func newWatch(cfg mfsm.Config) *watch {
	x := &watch{came: map[int]int{}, by: map[int]mfsm.ClientID{}, ended: map[int]int{}, turned: map[mfsm.ClientID]bool{}, asked: map[uint64]int{}, parted: map[int]bool{}, member: map[wire.UUID]bool{}, reset: map[uint32]bool{}, groups: cfg.Registry.Groups}
	for _, g := range x.groups {
		for _, u := range g.Members {
			x.member[u] = true
		}
	}
	return x
}

// takes notes an event of a master.
func (x *watch) takes(m *master, ev mfsm.Event) {
	x.steps++
	switch ev := ev.(type) {
	case mfsm.Gone:
		if p := m.conns[ev.Client]; p != nil && x.by[p.id] == ev.Client && !x.turned[ev.Client] {
			x.ended[p.id] = x.steps
			m.w.tracef("master %d hears that peer %d has gone", m.seat.id, p.id)
		}
	case mfsm.PacketIn:
		p := m.conns[ev.Client]
		if p == nil {
			return
		}
		if _, ok := ev.Packet.(wire.C2MFarewell); ok {
			x.parted[p.id] = true
		}
	case mfsm.Connected:
		if p := m.conns[ev.Client]; p != nil {
			x.came[p.id], x.by[p.id] = x.steps, ev.Client
		}
	case mfsm.Confirmed:
		x.sure = x.asked[ev.Number]
		m.w.tracef("master %d hears that it leads (%d)", m.seat.id, ev.Number)
	}
}

// mayDrop reports whether a master has asked since a peer was there last, or that one has
// said that it goes.
func (x *watch) mayDrop(p *peer) bool { return x.parted[p.id] || x.sure > 0 && x.sure >= x.ended[p.id] }

// counts reports whether u is a member that nobody has dropped, and that wants to stay. One that is
// here, and of which nobody has heard that it is a member, is a newcomer still: what was sent of it was
// lost with the master that sent it, so that the round has failed for all.
func (m *master) counts(u wire.UUID) bool {
	w, b := m.w, &m.w.council.record
	if !m.watch.member[u] || !b.told[u] || b.dropped[u] || !b.heard[u] && m.has(u) {
		return false
	}
	if w.byUUID(u).trainer.doing == "leave" {
		b.dropped[u] = true
		return false
	}
	return true
}

// drop takes the word of a master that a member is gone.
func (b *record3) drop(w *world, u wire.UUID) {
	b.dropped[u] = true
	b.drops++
	p := w.byUUID(u)
	w.tracef("peer %d is dropped", p.id)
	if !w.council.rough && !p.dead && !p.over && p.trainer.doing != "close" {
		w.failf("peer %d is dropped, and was well", p.id)
	}
}

// without checks that those who are missing when all go on may be.
func (m *master) without() {
	for _, g := range m.watch.groups {
		for _, u := range g.Members {
			if !m.has(u) && m.counts(u) {
				m.drops(u, "it has recovered without it")
			}
		}
	}
}

// does checks what a master does about members before anybody hears of it: it has
// asked whether it leads since they were gone.
func (m *master) does(ev mfsm.Event, e mfsm.Effect) {
	w, x := m.w, m.watch
	b := &w.council.record
	_, sure := ev.(mfsm.Confirmed)
	switch e := e.(type) {
	case mfsm.Log:
		switch e.Fact.Kind {
		case "recovering":
			x.recovers = true
		case "recovered":
			m.without()
		case "state-reset":
			x.reset[e.Fact.Group] = true // what another group has written meanwhile does not count
		}
	case mfsm.Confirm:
		x.asked[e.Number] = x.steps
		w.tracef("master %d asks whether it leads (%d)", m.seat.id, e.Number)
	case mfsm.Send:
		if r, ok := e.Packet.(wire.M2CP2PConnectionsEstablished); ok && r.Success {
			for _, u := range r.Ring {
				x.member[u], b.told[u] = true, true
			}
		}
		d, ok := e.Packet.(wire.M2CPeerDropped)
		if !ok || !m.counts(d.UUID) {
			return
		}
		self := m.conns[e.Client].uuid == d.UUID
		switch {
		case self && !sure && !(x.recovers && x.sure >= x.came[w.byUUID(d.UUID).id] && x.sure > 0):
			w.failf("master %d ends the session of peer %d, and has not asked whether it leads: %s", m.seat.id, w.byUUID(d.UUID).id, d.Reason)
		case self:
			b.drop(w, d.UUID)
		default:
			m.drops(d.UUID, d.Reason)
		}
	case mfsm.Commit:
		m.writes(e.Registry.Groups)
	}
}

// has reports whether a peer is connected to m.
func (m *master) has(u wire.UUID) bool {
	p := m.w.byUUID(u)
	return m.watch.came[p.id] > m.watch.ended[p.id]
}

// drops checks that m has asked whether it leads since u was there last.
func (m *master) drops(u wire.UUID, why string) {
	if !m.watch.mayDrop(m.w.byUUID(u)) {
		m.w.failf("master %d drops peer %d, and has not asked whether it leads: %s", m.seat.id, m.w.byUUID(u).id, why)
	}
	m.w.council.record.drop(m.w, u)
}

// writes checks a registry against the one before.
func (m *master) writes(groups []mfsm.GroupRecord) {
	w, x := m.w, m.watch
	for _, was := range x.groups {
		i := slices.IndexFunc(groups, func(g mfsm.GroupRecord) bool { return g.ID == was.ID })
		var g mfsm.GroupRecord
		if i >= 0 {
			g = groups[i]
		}
		if g.Round < was.Round && i >= 0 {
			w.failf("master %d writes round %d of group %d, and had %d", m.seat.id, g.Round, g.ID, was.Round)
		}
		back := was.NextRevision > 1 && g.NextRevision < was.NextRevision && len(g.Members) > 0 && len(was.Members) > 0
		if back && !x.reset[was.ID] {
			w.failf("master %d writes revision %d of group %d, and had %d", m.seat.id, g.NextRevision, g.ID, was.NextRevision)
		}
		if g.NextRevision != was.NextRevision {
			delete(x.reset, was.ID)
		}
		for _, u := range was.Members {
			if slices.Contains(g.Members, u) || !m.counts(u) {
				continue
			}
			m.drops(u, "it writes a registry without it")
		}
	}
	x.groups = groups
}

// forgiven reports whether what a peer was told may be unknown to the masters: it is
// gone, or was dropped.
func (b *record3) forgiven(w *world, id int) bool {
	p := w.peers[id]
	return p.dead || p.over || b.dropped[p.uuid]
}

// agree checks that nobody who is there was told something else.
func agree[K comparable](b *record3, w *world, of map[K]outcome, k K, p *peer, what string) {
	was, known := of[k]
	switch {
	case !known || was.what != what && b.forgiven(w, was.by):
		of[k] = outcome{what, p.id}
	case was.what != what:
		if !b.forgiven(w, p.id) {
			w.failf("peer %d is told %q of %v, and peer %d was told %q", p.id, what, k, was.by, was.what)
		}
	default:
		b.repeats++
	}
}

// gives checks that a number means one thing.
func (b *record3) gives(w *world, p *peer, number uint64, what string) {
	if was, known := b.numbers[number]; known && was != what {
		w.failf("peer %d: %d is the number of %s, and was that of %s", p.id, number, what, was)
	}
	b.numbers[number] = what
}

// consumed checks what a peer is told, by all masters together.
func (c *council) consumed(p *peer, pkt wire.Packet) {
	w, b := c.w, &c.record
	if c.told++; len(c.faults) > 0 && c.told >= c.faults[0] {
		c.faults = c.faults[1:]
		w.after(w.rng.between(0, time.Millisecond), nil, c.strike)
	}
	switch pkt := pkt.(type) {
	case wire.M2CP2PConnectionInfo:
		b.round[p.id] = pkt.Ext.Resuming.Decision
	case wire.M2CP2PConnectionsEstablished:
		for _, u := range pkt.Ring {
			b.heard[u] = b.heard[u] || pkt.Success
		}
		if d := b.round[p.id]; d != 0 {
			what := "it has failed"
			if pkt.Success {
				what = fmt.Sprint("ring", pkt.Ring)
			}
			agree(b, w, b.rounds, roundKey{d, p.group}, p, what)
			b.round[p.id] = 0
		}
	case wire.M2CCollectiveCommsAbort:
		for _, v := range p.trainer.old {
			if v.Tag == pkt.Tag {
				agree(b, w, b.verdicts, v.Seq, p, fmt.Sprint("aborted ", pkt.Aborted))
			}
		}
	case wire.M2CSyncSharedState:
		x := pkt.Ext.Resuming
		agree(b, w, b.elected, x.Decision, p, fmt.Sprintf("group %d, revision %d", p.group, x.NextRevision))
	case wire.M2CPrepareRing:
		b.gives(w, p, pkt.Change, fmt.Sprintf("a ring of group %d", p.group))
	case wire.M2CPrepareMesh:
		b.gives(w, p, pkt.Change, fmt.Sprintf("a mesh of group %d", p.group))
	case wire.M2CPrepareLeave:
		b.gives(w, p, pkt.Change, fmt.Sprintf("a ring of group %d without %v", p.group, pkt.Leaver))
	case wire.M2CSessionRegistrationResponse:
		if id, known := b.named[pkt.UUID]; pkt.Accepted && known && id != p.id {
			w.failf("peer %d is %v, and so is peer %d", p.id, pkt.UUID, id)
		}
		if pkt.Accepted {
			b.named[pkt.UUID] = p.id
		}
		if m := p.line.to; pkt.Accepted && (m.seat == nil || !slices.ContainsFunc(b.reigns, func(r *reign) bool { return r.seat == m.seat.id && r.term == pkt.Ext.Resuming.Term })) {
			w.failf("peer %d is taken by master %d in term %d, which it has not led", p.id, m.seat.id, pkt.Ext.Resuming.Term)
		}
	}
}

// synced checks that a revision is one state. What a peer has ended alone is nobody's but
// its own: it may have to begin again as a newcomer.
func (c *council) synced(p *peer) {
	if !p.met {
		return
	}
	agree(&c.record, c.w, c.record.states, stateKey{p.group, p.memory.revision}, p, fmt.Sprint(p.memory.state))
}
