package fsm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// prepareTime bounds how long the members of a group may connect for a ring.
const prepareTime = 30 * time.Second

// change is a better ring that the members of a group, all gopccl peers, connect
// for beside their collectives (docs/spec/extensions.md, "Switching rings"). When
// all have, the collectives that follow use it: no round, no vote, no call of a
// trainer, and nothing that runs is aborted.
type change struct {
	id     uint64
	ring   []wire.UUID
	direct wire.Direct // which all-reduces do not use it
	due    time.Duration
	leaver *client // who leaves with it, nil: nobody
	failed bool    // it cannot be had
}

// offer lets the members of g connect for the ring that it ought to have, or for
// the one in force if there are all-reduces that need not use it, if all of them
// can, and no vote is open that leads to a round anyway.
func (m *Machine) offer(g *group) {
	if !m.cfg.Switch || m.round.active || g.change != nil {
		return
	}
	better := m.wanted(g)
	if !better && !g.learned.want && (!g.mesh.untold() || g.mesh.late) {
		return
	}
	ms := m.members(g)
	for _, c := range ms {
		free := c.state == Idle || c.state == Collective || c.state >= VoteSync && c.state <= VoteSyncDone
		if !c.can.switchRing || c.closing || !free {
			return
		}
	}
	ring := g.ring
	if better {
		ring = m.normalise(g)
	}
	if !sameMembers(ring, g.ring) || !better && len(ms) != len(ring) {
		return // one that left was needed: a round follows
	}
	direct, made := m.plans(g, ring)
	if !made {
		return // it goes on when they are
	}
	if g.learned.want = false; !better && direct == g.mesh.direct {
		return
	}
	m.numbers.changes++
	g.change = &change{id: m.numbers.changes, ring: ring, direct: direct, due: m.now + prepareTime}
	m.census.changing = true
	ways := g.waysOf(direct)
	for _, c := range ms {
		p := wire.M2CPrepareRing{Change: g.change.id}
		near := neighbours(ring, c.uuid)
		add := func(u wire.UUID) {
			p.Peers = append(p.Peers, wire.PeerEndpoint{Addr: m.uuids[u].at(m.uuids[u].listens.p2p), UUID: u})
		}
		for _, u := range near {
			add(u)
		}
		if at := slices.Index(g.roster, c.uuid); at >= 0 {
			for _, u := range ways[at] {
				if !slices.Contains(near, u) {
					add(u)
				}
			}
		}
		m.send(c, p)
	}
}

// ringPrepared takes a member's word that it has connected for the ring.
func (m *Machine) ringPrepared(c *client, p wire.C2MRingPrepared) {
	g := c.group
	ch := g.change
	if ch == nil || ch.id != p.Change || c.place.prepared == ch.id {
		return
	}
	if len(p.FailedPeers) > 0 {
		near := neighbours(ch.ring, c.uuid)
		for _, u := range p.FailedPeers {
			if !slices.Contains(near, u) && m.uuids[u] != nil && !slices.Contains(c.place.unreached, u) {
				c.place.unreached = append(c.place.unreached, u) // the next plans do without
				g.learned.want, g.mesh.draft = true, draft{}
			}
		}
		for _, u := range near {
			if !slices.Contains(p.FailedPeers, u) {
				continue
			}
			c.mark(u, m.round.n)
			m.about(c, "unreachable", true, "peer %s cannot reach %s", c.name(), m.uuids[u].name())
		}
		if ch.leaver != nil {
			ch.failed = true
			return
		}
		m.keepRing(g, "peer "+c.name()+" could not connect for it")
		return
	}
	c.place.prepared = ch.id
	for _, o := range m.members(g) {
		if o != ch.leaver && o.place.prepared != ch.id {
			return
		}
	}
	if ch.leaver != nil {
		m.divide(g, ch)
		return
	}
	g.change, g.ring = nil, ch.ring
	for _, o := range m.members(g) {
		o.place.neighbours = neighbours(ch.ring, o.uuid)
		m.send(o, wire.M2CSwitchRing{Change: ch.id, Ring: ch.ring, Direct: ch.direct})
	}
	m.chosen(g, ch.direct)
	m.installed(g)
	if g.learned.again {
		m.lookAtPlans(g, true)
	}
	g.inForce.pace.Spoil() // of collectives that began with the ring before
	m.offer(g)             // another one may have been found meanwhile
}

// withdraw gives the change of g up, if there is one: a round brings the ring,
// or the members are no longer the same.
func (m *Machine) withdraw(g *group) {
	if g.change == nil {
		return
	}
	for _, c := range m.members(g) {
		if c != g.change.leaver {
			m.send(c, wire.M2CSwitchRing{Change: g.change.id})
		}
	}
	g.change = nil
}

// keepRing gives up a ring that could not be connected.
func (m *Machine) keepRing(g *group, why string) {
	ring := g.change.ring
	m.withdraw(g)
	if slices.Equal(ring, g.ring) {
		g.mesh.late = true
		return
	}
	m.refuse(g, ring, g.ring)
	m.fact(Fact{Kind: "ring", Warn: true, Group: g.id, Text: fmt.Sprintf("ring of %d peers kept, the better one is given up: %s", len(g.ring), why)})
}

// changeDue returns when g has to be looked at for the sake of its ring.
func (m *Machine) changeDue(g *group) (time.Duration, bool) {
	switch {
	case g.change != nil:
		return g.change.due, true
	case m.cfg.Switch && g.search.postponed != nil:
		return g.search.ripe(), true
	}
	return 0, false
}

// changesDue acts on the bounds of changes, and on rings that were found too
// soon after the last one.
func (m *Machine) changesDue() {
	for _, g := range m.groups {
		if at, due := m.changeDue(g); !due || m.now < at {
			continue
		}
		if g.change == nil {
			m.reconsider(g)
			continue
		}
		if g.change.leaver != nil {
			g.change.failed = true
			continue
		}
		m.keepRing(g, fmt.Sprintf("not all have connected for it within %v", prepareTime))
	}
}
