package fsm

import (
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/wire"
)

// round is one establishment phase (control spec, section 7). Its
// participants are the clients with inRound set.
type round struct {
	active  bool
	accept  bool // newcomers take part
	dropped bool // a participant left while it ran (quirk Q6)
	n       uint64
	since   time.Duration
}

func (m *Machine) voteRound(c *client, p wire.C2MRequestEstablishP2PConnections) {
	if c.inRound {
		m.kick(c, "votes for a round before the last one ended")
		return
	}
	if p.AcceptNewPeers {
		c.set(VoteAccept, m.now)
	} else {
		c.set(VoteEstablish, m.now)
	}
	m.checkRoundVotes()
}

// checkRoundVotes starts a round if the accepted clients agree on one. With
// nobody accepted the waiting ones are let in (quirk Q8: one round, not two).
func (m *Machine) checkRoundVotes() {
	if m.round.active || len(m.clients) == 0 {
		return
	}
	accepted, accept, establish, native, retrying := 0, 0, 0, false, false
	for _, c := range m.clients {
		if c.phase != Accepted {
			retrying = retrying || c.state == ConnectFailed
			continue
		}
		accepted++
		native = native || c.native
		switch c.state {
		case VoteAccept:
			accept++
		case VoteEstablish:
			establish++
		}
	}
	switch {
	case accepted == 0 && retrying:
		// Whoever was told that its round failed is about to vote.
	case accept == accepted:
		m.startRound(true, m.groups)
	case establish == accepted:
		m.startRound(false, m.groups)
	case establish > 0:
		if gs := m.repairing(accept+establish == accepted && native); len(gs) > 0 {
			m.startRound(false, gs)
		}
	}
}

// repairing returns the groups whose members all wait for an establish round.
// In PCCL they wait for all other groups, which go on with calls of their own
// and may come to wait for them in turn: a failed collective of one group
// would stop all. With gopccl ends in it a group repairs its ring by itself.
//
// If there is none, and stuck says that everybody waits for some round with
// gopccl ends among them, it returns the groups in which anybody waits for an
// establish round: the flavours would wait for each other for ever (quirk Q59).
func (m *Machine) repairing(stuck bool) []*group {
	var gs, mixed []*group
	for _, g := range m.groups {
		ms := m.members(g)
		if allIn(ms, VoteEstablish) && anyNative(ms) {
			gs = append(gs, g)
		}
		if slices.ContainsFunc(ms, func(c *client) bool { return c.state == VoteEstablish }) {
			mixed = append(mixed, g)
		}
	}
	if len(gs) == 0 && stuck {
		return mixed
	}
	return gs
}

// startRound starts a round of the accepted clients of gs, and with accept of
// those who wait.
func (m *Machine) startRound(accept bool, gs []*group) {
	for _, g := range gs {
		m.withdraw(g)
	}
	m.round = round{active: true, accept: accept, n: m.round.n + 1, since: m.now}
	for _, c := range m.clients {
		if (accept || c.phase == Accepted) && slices.Contains(gs, c.group) {
			c.newcomer, c.reported = c.phase != Accepted, false
			c.inRound = true
			c.set(Connecting, m.now)
		}
	}
	groups, largest := 0, 0
	for _, g := range m.groups {
		if slices.Contains(gs, g) {
			m.reconsider(g)
			g.ring = m.arrange(g)
		}
		n := len(m.ringMembers(g))
		if n > 0 {
			groups++
		}
		largest = max(largest, n)
	}
	for _, c := range m.clients {
		if c.inRound {
			m.send(c, m.info(c, groups, largest))
		}
	}
}

// info is the M2C 2 of one participant (control spec, section 7.2).
func (m *Machine) info(c *client, groups, largest int) wire.M2CP2PConnectionInfo {
	near := neighbours(c.group.ring, c.uuid)
	p := wire.M2CP2PConnectionInfo{
		Unchanged:        sameMembers(near, c.neighbours),
		GlobalWorldSize:  uint64(len(m.clients)),
		LocalWorldSize:   uint64(len(c.group.ring)),
		NumDistinctGroup: uint64(groups),
		LargestGroupSize: uint64(largest),
	}
	c.neighbours = near
	if !p.Unchanged {
		for _, u := range near {
			o := m.uuids[u]
			p.Peers = append(p.Peers, wire.PeerEndpoint{Addr: o.at(o.p2pPort), UUID: u})
		}
	}
	if c.native {
		p.Ext.GroupNative = true
		eager := true
		for _, u := range c.group.ring {
			p.Ext.GroupNative = p.Ext.GroupNative && m.uuids[u].native
			eager = eager && m.uuids[u].eager
		}
		if eager {
			p.Ext.Epoch = m.round.n
		}
	}
	return p
}

// neighbours returns the peers before and after u in the ring, one if they
// are the same, none if u is alone.
func neighbours(ring []wire.UUID, u wire.UUID) []wire.UUID {
	n := len(ring)
	i := slices.Index(ring, u)
	if i < 0 || n < 2 {
		return nil
	}
	prev, next := ring[(i+n-1)%n], ring[(i+1)%n]
	if prev == next {
		return []wire.UUID{prev}
	}
	return []wire.UUID{prev, next}
}

// sameMembers compares lists without duplicates as sets.
func sameMembers(a, b []wire.UUID) bool {
	if len(a) != len(b) {
		return false
	}
	for _, u := range a {
		if !slices.Contains(b, u) {
			return false
		}
	}
	return true
}

// report takes a participant's part of the round (control spec, section 7.3).
// What follows from a failure is decided when all have reported: only then is
// it known who cannot be reached by whom.
func (m *Machine) report(c *client, p wire.C2MP2PConnectionsEstablished) {
	if p.Success {
		c.set(Waiting, m.now)
		m.checkRoundEnd()
		return
	}
	c.reported = true
	c.set(ConnectFailed, m.now)
	for i, u := range p.FailedPeers {
		if i > len(m.clients) {
			break // more names than peers: the rest can only be repetitions
		}
		o := m.uuids[u]
		if o == nil || o == c || o.group != c.group {
			continue
		}
		c.mark(u, m.round.n)
		m.about(c, "unreachable", true, "peer %s cannot reach %s", c.name(), o.name())
	}
	m.checkRoundEnd()
}

func (c *client) mark(u wire.UUID, n uint64) {
	for i := range c.unreachable {
		if c.unreachable[i].to == u {
			c.unreachable[i].round = n
			return
		}
	}
	c.unreachable = append(c.unreachable, mark{u, n})
}

// checkRoundEnd ends the round when nobody connects any more.
func (m *Machine) checkRoundEnd() {
	if !m.round.active {
		return
	}
	participants, failed := 0, m.round.dropped
	for _, c := range m.clients {
		if !c.inRound {
			continue
		}
		if c.state == Connecting {
			return
		}
		participants++
		failed = failed || c.state == ConnectFailed
	}
	m.round.active = false
	// Others may have agreed on a round meanwhile; or all participants left,
	// and who waits can be let in.
	defer m.checkRoundVotes()
	if participants == 0 {
		return
	}
	if failed {
		m.failRound()
		return
	}
	for _, g := range m.groups {
		if slices.ContainsFunc(m.clients, func(c *client) bool { return c.inRound && c.group == g }) {
			m.installed(g)
		}
	}
	for _, c := range m.clients {
		if !c.inRound {
			continue
		}
		c.inRound, c.strikes = false, 0
		c.set(Idle, m.now)
		if c.newcomer {
			c.newcomer, c.phase = false, Accepted
			m.about(c, "accepted", false, "peer %s joined group %d, world size %d", c.name(), c.group.id, len(c.group.ring))
		}
		m.send(c, wire.M2CP2PConnectionsEstablished{Success: true, Ring: slices.Clone(c.group.ring)})
	}
	m.fact(Fact{Kind: "round", Text: "connections established"})
	for _, g := range m.groups {
		m.offer(g)
	}
}

// failRound tells everybody to vote again, after rings were found that avoid
// the pairs that cannot reach each other (quirk Q5).
func (m *Machine) failRound() {
	for _, g := range m.groups {
		if slices.ContainsFunc(m.clients, func(c *client) bool { return c.inRound && c.group == g }) {
			m.reroute(g)
			g.ring = m.arrange(g)
		}
	}
	for _, c := range m.clients {
		if !c.inRound {
			continue
		}
		// A reporter that is alone in its group stays outside, as in PCCL. Our
		// own peers get another chance: whom they could not reach has left.
		if c.newcomer && (!c.reported || len(c.group.ring) > 1 || c.native) {
			c.phase = Accepted
			if !c.closing {
				m.about(c, "accepted", false, "peer %s joined group %d after a failed round", c.name(), c.group.id)
			}
		}
		c.inRound, c.newcomer = false, false
		c.set(ConnectFailed, m.now)
		m.send(c, wire.M2CP2PConnectionsEstablished{Ring: slices.Clone(c.group.ring)})
	}
	m.fact(Fact{Kind: "round", Warn: true, Text: "connections could not be established, the round is repeated"})
}
