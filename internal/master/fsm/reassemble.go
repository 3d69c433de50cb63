package fsm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// A member whose connection has ended may come back over another one. What it had been
// sent, and had sent, may be lost: then all say again what they hold, and the world is made
// from that as after the death of a master (docs/spec/extensions.md, "Resuming").

// mayComeBack reports whether c is worth waiting for, now that its connection has ended.
func (m *Machine) mayComeBack(c *client) bool {
	return m.cfg.Linger > 0 && c.registered && c.phase == Accepted && !c.place.parted && !m.lostLately(c) && !m.recovery.on && m.allResume()
}

// allResume reports whether all clients can say again what they hold.
func (m *Machine) allResume() bool {
	return !slices.ContainsFunc(m.clients, func(c *client) bool { return !c.can.resume })
}

// mayReassemble reports whether all may be asked to. While some are on their way out it is
// not known yet who all are.
func (m *Machine) mayReassemble() bool {
	return !m.recovery.on && m.records.drop == 0 && len(m.leaving) == 0 && m.allResume()
}

// waitFor keeps c for a while without a connection.
func (m *Machine) waitFor(c *client) {
	c.place.away, c.place.lives, c.place.awaySince, c.place.awayUntil = true, false, m.now, m.now+m.cfg.Linger
	if len(m.away) == 0 {
		m.beats.look = m.now + lookAfter
	}
	delete(m.conns, c.id)
	m.away = append(m.away, c)
	m.about(c, "away", true, "the connection of peer %s has ended; it is waited for", c.name())
	if c.group.failing() {
		m.hurryAway(c.group)
	}
}

// failing reports whether members say that a collective has failed.
func (g *group) failing() bool {
	for t := range g.tags.all() {
		if t.aborted {
			return true
		}
		for _, c := range g.clients {
			if o := c.op(t.tag); o != nil && o.ahead == aheadAborted {
				return true
			}
		}
	}
	return false
}

// awayDue gives up those who were waited for long enough.
func (m *Machine) awayDue() {
	for _, c := range slices.Clone(m.away) {
		if m.now >= c.place.awayUntil {
			m.giveUpOn(c, awayWhy)
		}
	}
}

func (m *Machine) giveUpOn(c *client, why string) {
	m.away = without(m.away, c)
	c.closing, c.end = true, ending{kind: "left", why: why}
	m.leaving = append(m.leaving, c)
}

// returnsTaken bounds how often all say again what they hold: so often in Linger, and only once of
// these because of the same member.
const returnsTaken = 8

// calm returns when a client that comes back is taken.
func (m *Machine) calm(old *client) time.Duration { return max(m.recovery.calm, old.place.calm) }

// wait turns the connection of one that comes back too soon away. It is waited for meanwhile.
func (m *Machine) wait(old *client) (why string) {
	if old.place.away {
		old.place.lives = true
		old.place.awayUntil = max(old.place.awayUntil, m.calm(old)+m.cfg.Linger)
	}
	return "a connection of this session, or of another one, has been replaced a moment ago: it has to wait"
}

// knocks notes that one that cannot be taken back yet tries to come: others are being removed,
// which takes as long as the authority does.
func (m *Machine) knocks(old *client) {
	if old.place.away && m.records.drop != 0 {
		old.place.lives = true
		old.place.awayUntil = max(old.place.awayUntil, m.now+2*missedGrace)
	}
}

// reassemble begins a recovery of this master's own world. old is a client that comes back.
func (m *Machine) reassemble(old *client) {
	m.fact(Fact{Kind: "recovering", Text: fmt.Sprintf("peer %s has come back over another connection: all say again what they hold", old.name())})
	clients, groups := m.takeDown()
	late := m.recovery.back
	m.recovery = recovery{on: true, begun: true, since: m.now, again: true, youth: m.recovery.youth}
	m.recovery.stir()
	for _, g := range groups {
		m.recovery.states = append(m.recovery.states, groupState{id: g.id, state: g.state})
	}
	for _, c := range clients {
		if c.phase == Accepted {
			m.recovery.were = append(m.recovery.were, c.uuid)
		}
		switch {
		case c.place.away:
			continue
		case c == old:
			m.out = append(m.out, Close{Client: c.id, Reason: "the peer has come back over another connection"})
			delete(m.conns, c.id)
			continue
		}
		n := &client{
			id: c.id, remote: c.remote, since: c.since, seen: m.now, listens: c.listens, questions: c.questions, refusals: c.refusals, lines: c.lines,
			uuid: c.uuid, native: c.native, can: c.can, place: place{calm: c.place.calm, apart: c.place.apart, lostUntil: c.place.lostUntil, neighbours: c.beside()},
		}
		m.conns[c.id] = n
		m.recovery.add(&comeback{c: n, group: c.group.id, since: m.now, again: true})
		m.send(n, wire.M2CReportAgain{})
	}
	m.askLate(late)
	for i, c := range m.shows.owed {
		if n := m.conns[c.id]; n != nil {
			m.shows.owed[i] = n
		}
	}
}

// askLate takes newcomers that had just come back when a recovery begins.
func (m *Machine) askLate(late []*comeback) {
	for _, b := range late {
		if b.waits { // it has not been answered
			b.waits = false
			m.send(b.c, wire.M2CResumed{})
		}
		if b.late = false; b.report != nil { // it has been answered since
			b.report, b.again, b.since = nil, true, m.now
			m.send(b.c, wire.M2CReportAgain{})
		}
		m.recovery.add(b)
	}
}

// groupState is how far a group had come when all began to say again what they hold.
type groupState struct {
	id    uint32
	state sharedState
}

// takeStates gives the groups the shared states that they had. This master has told the
// members what they know of them, and more than that it knows itself: what was given up, and
// what the state was that all had left behind. An election that nobody has heard of has not
// been.
func (m *Machine) takeStates(states []groupState) {
	var empty []*group
	for _, s := range states {
		g := m.groupOf(s.id)
		if g.state = s.state; len(g.clients) == 0 {
			empty = append(empty, g)
			continue
		}
		g.state.next, g.state.print = s.state.reached()
		g.state.electing, g.state.prev, g.state.chosen = false, 0, nil
	}
	m.forgetEmpty(empty)
}
