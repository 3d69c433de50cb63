package fsm

import (
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/internal/wire"
)

// A master that keeps nothing takes the first peer that comes for the beginning of a run. If
// members of an earlier run come after it, theirs goes on: the newcomers have to wait until
// that is together, and are let in by it (docs/spec/extensions.md, "Recovery").

// maxYoung bounds the sessions of a run that can give way.
const maxYoung = 1024

// youth is what a master without an authority knows of a run that began with it.
type youth struct {
	over bool               // some have done something together: it does not give way
	own  map[wire.UUID]bool // its sessions
	void map[wire.UUID]bool // those that have given way, and come back as newcomers
}

// began notes a session of this master's.
func (y *youth) began(u wire.UUID) {
	if y.over {
		return
	}
	if y.own == nil {
		y.own = map[wire.UUID]bool{}
	}
	if y.own[u] = true; len(y.own) > maxYoung {
		y.grow()
	}
}

// grow notes that some have done something together.
func (y *youth) grow() { y.over, y.own = true, nil }

// stranger reports whether u is a session of another run than that which began here. Of a run
// that has come back itself it may be one that was left behind: its report will say.
func (m *Machine) stranger(u wire.UUID, term uint32) bool {
	return m.young() && !m.recovery.youth.own[u] && (!m.recovery.over || term > m.cfg.Term)
}

// young reports whether the run of this master gives way to one that has done more.
func (m *Machine) young() bool { return !m.cfg.Authority && !m.recovery.youth.over }

// another reports whether b is a member of another run, which has done more than the one that
// goes on here.
func (m *Machine) another(b *comeback) bool {
	s := &b.report.Round
	if !m.young() || m.recovery.youth.own[b.c.uuid] || s.Decision == 0 || slices.ContainsFunc(s.Ring, func(u wire.UUID) bool { return m.uuids[u] != nil }) {
		return false
	}
	return b.hasMet() || !slices.ContainsFunc(m.groups, func(g *group) bool { return g.id == b.group && g.state.next >= b.report.NextRevision })
}

// hasMet reports whether b has done something with others, or goes on with it. Who has not knows
// of nothing that counts for anybody else.
func (b *comeback) hasMet() bool {
	r := b.report
	return b.met || len(r.Round.Ring) > 1 && (r.Synced != 0 || len(r.Verdicts) > 0 || r.Call.Step >= wire.StepFetching ||
		slices.ContainsFunc(r.Ops, func(o wire.ReportedOp) bool { return o.Step >= wire.OpRunning }))
}

// beside reports whether b was in a run of newcomers beside that of n.
func (b *comeback) beside(n *newest) bool {
	was := b.report.Round.Ring
	return !n.recorded && !b.hasMet() && len(n.ring) > 0 && !slices.Contains(n.ring, b.c.uuid) && (len(was) == 1 || len(was) > 1 && n.met)
}

// precededBy reports whether the ring of b goes before that of n: it is newer. Where nobody
// has written down which rounds there were, and one of the two has a ring of its own, numbers
// do not say which is.
func (n *newest) precededBy(b *comeback) bool {
	s, taken := &b.report.Round, b.report.Change.Taken
	newer := s.Decision > n.round || s.Decision == n.round && taken > n.taken
	met := b.hasMet()
	if n.recorded || len(n.ring) == 0 || len(s.Ring) == 0 || met && n.met ||
		slices.ContainsFunc(s.Ring, func(u wire.UUID) bool { return slices.Contains(n.ring, u) }) {
		return newer
	}
	if met != n.met {
		return met
	}
	return b.report.NextRevision > n.next || b.report.NextRevision == n.next && newer
}

// tooLate is why a member of an earlier run cannot go on here.
const tooLate = "a run that began without this session has gone on here: end one of them, or use another master"

// giveWay ends the run of newcomers that this master has begun with, for one whose members
// come back. They keep no session: what they held has no meaning to others.
func (m *Machine) giveWay() {
	m.fact(Fact{Kind: "recovering", Warn: true, Text: fmt.Sprintf(
		"members of an earlier run have come back: %d newcomers, which have done nothing together, wait to be let in", len(m.clients))})
	clients, _ := m.takeDown()
	late := m.recovery.back
	m.recovery = recovery{youth: m.recovery.youth}
	m.recovery.youth.grow()
	m.beginRecovery()
	m.askLate(late)
	for _, c := range clients {
		m.sendBack(c)
	}
	m.leaving = slices.DeleteFunc(m.leaving, func(c *client) bool { return c.registered })
	m.shows.owed = slices.DeleteFunc(m.shows.owed, func(c *client) bool { return m.conns[c.id] != c })
}

// sendBack ends the connection of one that is to come back as a newcomer.
func (m *Machine) sendBack(c *client) {
	y := &m.recovery.youth
	if y.void == nil {
		y.void = map[wire.UUID]bool{}
	}
	if c.can.resume && !c.closing && len(y.void) < maxYoung {
		y.void[c.uuid] = true
	}
	if !c.place.away && !c.closing {
		m.out = append(m.out, Close{Client: c.id, Reason: "members of an earlier run have come back: it comes again as a newcomer"})
	}
	delete(m.conns, c.id)
}

// gaveWay reports whether p is of a session that has given way, and proves it.
func (m *Machine) gaveWay(c *client, p wire.C2MRequestSessionRegistration) bool {
	u := p.Ext.Resuming.Identity.UUID
	if !m.recovery.youth.void[u] {
		return false
	}
	return m.proves(c, p)
}

// takeDown empties the world, and returns who was in it.
func (m *Machine) takeDown() (clients []*client, groups []*group) {
	for _, j := range m.solving.jobs {
		m.out = append(m.out, StopSolve{Job: j.id})
	}
	for _, g := range m.groups {
		if g.search.job != nil {
			m.out = append(m.out, StopSolve{Job: g.search.job.id})
		}
	}
	clients, groups = m.clients, m.groups
	m.clients, m.groups, m.away, m.leavers = nil, nil, nil, nil
	clear(m.uuids)
	m.census, m.round, m.trials, m.debt, m.solving, m.probes = census{}, round{n: m.round.n}, trials{}, debt{}, solving{}, nil
	m.records.round, m.records.written = 0, false
	return clients, groups
}
