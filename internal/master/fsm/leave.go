package fsm

import (
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// askLeave takes a member's wish to leave between two collectives (docs/spec/extensions.md,
// "Leaving"). The last one that has the shared state is asked to stay, if there are others.
func (m *Machine) askLeave(c *client) {
	switch {
	case !c.can.leave:
		m.kick(c, "asks to leave without having announced it")
	case slices.Contains(m.leavers, c):
		m.kick(c, "asks to leave twice")
	default:
		if why := c.onlyHolder(); why != "" {
			m.send(c, wire.M2CLeaveAnswer{Reason: why})
			m.about(c, "stays", false, "peer %s stays: %s", c.name(), why)
			return
		}
		m.leavers = append(m.leavers, c)
	}
}

// onlyHolder says that nobody else in its group has the shared state that c has, ""
// if it has none, others have it, or there are none who could take it.
func (c *client) onlyHolder() string {
	next := c.group.state.next
	if next == 0 || c.vote.has != next || len(c.group.clients) == 1 {
		return ""
	}
	for _, o := range c.group.clients {
		if o != c && !o.closing && o.vote.has == next {
			return ""
		}
	}
	return fmt.Sprintf("no other peer of group %d has the shared state of revision %d: let the others synchronise it first, or close without a farewell to give it up",
		c.group.id, next-1)
}

// drain goes on with the members that leave, one at a time in each group, and
// reports whether something has come of it.
func (m *Machine) drain() bool {
	if len(m.leavers) == 0 {
		return false
	}
	m.leavers = slices.DeleteFunc(m.leavers, func(c *client) bool { return c.closing || !c.joined })
	for _, c := range m.leavers {
		g := c.group
		ch := g.change
		switch {
		case c.state != Idle:
			m.kick(c, "began something after it had asked to leave")
			return true
		case ch != nil && ch.leaver != nil && ch.leaver != c:
			continue
		case ch != nil && ch.leaver == c && ch.failed, !m.mayDivide(g, c):
			m.letGo(c, false)
			return true
		case ch != nil && ch.leaver == c, m.round.active:
			continue
		}
		if !m.prepareLeave(g, c) {
			m.letGo(c, false)
			return true
		}
	}
	return false
}

// mayDivide reports whether the others of g can go on with a ring without c before it
// leaves. Those who wait for a round, or need one, get one that way.
func (m *Machine) mayDivide(g *group, c *client) bool {
	ms := m.members(g)
	for _, o := range ms {
		free := o.state == Idle || o.state == Collective || o.state >= VoteSync && o.state <= VoteSyncDone
		if !o.can.leave || o.closing || !free {
			return false
		}
	}
	return len(ms) > 2 && sameMembers(uuids(ms), g.ring)
}

// prepareLeave has the others of g connect for a ring without c; false if there is none.
func (m *Machine) prepareLeave(g *group, c *client) bool {
	m.withdraw(g)
	rest := slices.DeleteFunc(slices.Clone(m.members(g)), func(o *client) bool { return o == c })
	ring := slices.DeleteFunc(slices.Clone(g.ring), func(u wire.UUID) bool { return u == c.uuid })
	if bad := conflicts(rest, 0); violated(bad, rest, ring) {
		if ring = around(rest, ring, bad); ring == nil {
			return false
		}
	}
	m.numbers.changes++
	m.round.n++ // what began in the epoch before belongs to nothing
	ch := &change{id: m.numbers.changes, ring: ring, leaver: c, due: m.now + prepareTime}
	g.change, m.census.changing = ch, true
	p := wire.M2CPrepareLeave{Change: ch.id, Leaver: c.uuid}
	if g.eager {
		p.Epoch = m.round.n
	}
	for _, o := range rest {
		p.Peers = nil
		for _, u := range neighbours(ring, o.uuid) {
			p.Peers = append(p.Peers, wire.PeerEndpoint{Addr: m.uuids[u].at(m.uuids[u].listens.p2p), UUID: u})
		}
		m.send(o, p)
	}
	return true
}

// divide ends a change of g that is prepared: the others use the ring without the one
// that leaves for what is commenced from now on.
func (m *Machine) divide(g *group, ch *change) {
	gone := ch.leaver.uuid
	g.change, g.ring, g.mesh, g.learned, g.left = nil, ch.ring, mesh{}, learner{}, g.left+1
	g.roster = slices.DeleteFunc(slices.Clone(g.roster), func(u wire.UUID) bool { return u == gone })
	p := wire.M2CRingWithout{Change: ch.id, Ring: ch.ring, World: uint64(m.census.accepted - 1)}
	for _, o := range m.inhabited() {
		n := len(m.members(o))
		if o == g {
			n--
		}
		p.Largest = max(p.Largest, uint64(n))
	}
	for _, o := range m.members(g) {
		if o != ch.leaver {
			o.place.neighbours = neighbours(ch.ring, o.uuid)
			m.send(o, p)
		}
	}
	m.takeBack(g)
	m.letGo(ch.leaver, true)
	m.installed(g)
	m.commitMembers(g)
}

// takeBack takes the word of members back that are through with a collective whose arguments
// depend on who the members are: their epoch is over, and who launches it later gets nothing.
// All of them have said so before they were ready for the ring.
func (m *Machine) takeBack(g *group) {
	for _, c := range m.members(g) {
		for _, o := range c.ops.by { // each by itself: their order decides nothing
			k := plan.Kind(o.call.Kind)
			if o.ahead == aheadComplete && k != plan.AllReduce && k != plan.Barrier {
				o.ahead = aheadAborted
			}
		}
	}
}

// letGo lets c leave. quietly: nothing of the others is lost by it.
func (m *Machine) letGo(c *client, quietly bool) {
	const why = "it has left the run"
	if !c.closing && !c.place.away { // its connection may have ended meanwhile
		m.send(c, wire.M2CLeaveAnswer{Left: true})
		m.out = append(m.out, Close{Client: c.id, Reason: why})
	}
	m.cutOff(c) // it may have been closed meanwhile
	c.closing, c.end = true, ending{kind: "left", why: why, quiet: quietly}
	s := &m.records
	m.leaving, s.held, s.later = without(m.leaving, c), without(s.held, c), without(s.later, c)
	m.remove([]*client{c})
}

// checkStarts looks for collectives of g that all have voted for, now that one has left
// on whom none of them depended.
func (m *Machine) checkStarts(g *group) {
	for t := range g.tags.all() {
		m.checkCommence(g, t)
		dropUnused(g, t)
	}
}
