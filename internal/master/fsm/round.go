package fsm

import (
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// round is one establishment phase (control spec, section 7). Its
// participants are the clients with round.in set.
type round struct {
	active bool
	accept bool // newcomers take part
	held   bool // members take part
	n      uint64
	since  time.Duration

	decision  uint64 // that peers know it by
	recovered bool   // began with an earlier master

	spoiledByProved bool // newcomers that had proved themselves have cost it
	spoiledByOthers bool // ... others
	broken          bool // a member has gone, which alone would have cost it

	through   bool          // all members have reported
	membersAt time.Duration // ... the last of them at this time
	extended  bool          // those who waited for another one that was dropped got more time
}

func (m *Machine) voteRound(c *client, p wire.C2MRequestEstablishP2PConnections) {
	if c.round.in {
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
// none accepted the waiting ones are let in (quirk Q8: one round, not two).
func (m *Machine) checkRoundVotes() {
	if m.round.active || m.recovery.on || m.recovery.counts || len(m.clients) == 0 {
		return
	}
	accepted, native := m.census.accepted, m.census.natives > 0
	accept, establish := m.census.all[VoteAccept], m.census.all[VoteEstablish]
	var again []*group
	switch {
	case accepted == 0 && m.census.all[ConnectFailed] > 0:
		// Clients that were told that their round failed are about to vote.
	case accept == accepted:
		if accepted == 0 || !m.awaitTrials() {
			m.startRound(true, m.groups)
		}
	case establish == accepted:
		m.startRound(false, m.groups)
	default:
		again = m.repeating()
		if len(again) == 0 && establish > 0 {
			again = m.repairing(accept+establish == accepted && native)
		}
	}
	if len(again) > 0 {
		m.startRound(false, again)
	}
}

// repeating returns the groups whose part of a round failed while others went
// on, and whose members have all voted for another one: they wait for no others.
func (m *Machine) repeating() (gs []*group) {
	for _, g := range m.inhabited() {
		if g.round.again && g.here[VoteAccept]+g.here[VoteEstablish] == len(m.members(g)) {
			gs = append(gs, g)
		}
	}
	return gs
}

// repairing returns the groups whose members all wait for an establish round.
// In PCCL they wait for all other groups, which go on with calls of their own
// and may come to wait for them in turn: a failed collective of one group
// would stop all. With gopccl peers in it a group repairs its ring by itself.
//
// If there is none, and stuck says that all wait for some round with gopccl peers
// among them, it returns the groups in which a member waits for an establish
// round: the flavours would wait for each other for ever (quirk Q59).
func (m *Machine) repairing(stuck bool) []*group {
	var gs, mixed []*group
	for _, g := range m.inhabited() {
		n := g.here[VoteEstablish]
		if n == len(m.members(g)) && g.natives > 0 {
			gs = append(gs, g)
		}
		if n > 0 {
			mixed = append(mixed, g)
		}
	}
	if len(gs) == 0 && stuck {
		return mixed
	}
	return gs
}

// startRound starts a round of the accepted clients of gs, and with accept of
// those who wait and may come.
func (m *Machine) startRound(accept bool, gs []*group) {
	m.trials.voteBy = 0
	nobody := m.census.accepted == 0
	proved, others := false, false
	if accept {
		proved, others = m.invite()
		accept = nobody || proved || others
	}
	in := make(map[*group]bool, len(gs))
	for _, g := range gs {
		m.withdraw(g)
		known := slices.ContainsFunc(m.members(g), func(c *client) bool { return c.record.stood > 0 })
		g.round, in[g] = groupRound{known: known, healed: g.round.healed}, true
	}
	m.numbers.decisions++
	m.round = round{active: true, accept: accept, n: m.round.n + 1, decision: m.numbers.decisions, since: m.now}
	for _, c := range m.clients {
		invited := accept && (nobody || c.trial.proof.done && (c.trial.proof.proved && proved || !c.trial.proof.proved && others))
		if (c.phase == Accepted || invited) && in[c.group] {
			c.round = roundPart{in: true, newcomer: c.phase != Accepted}
			c.place.lostAnew = false // what is said from now on; what was said before counts until it answers
			m.round.held = m.round.held || !c.round.newcomer
			c.set(Connecting, m.now)
		}
	}
	members, groups, largest := 0, 0, 0
	for _, g := range m.groups {
		if in[g] {
			m.reconsider(g)
			g.ring = m.normalise(g)
			m.enroll(g)
			g.pure, g.eager = true, true
			for _, u := range g.ring {
				c := m.uuids[u]
				g.pure, g.eager = g.pure && c.native, g.eager && c.can.eager
			}
		}
		n := len(m.ringMembers(g))
		if n > 0 {
			groups++
		}
		members, largest = members+n, max(largest, n)
	}
	names := map[*group]wire.M2CNames{}
	for _, c := range m.clients {
		if c.round.in {
			if c.listens.as.Name != "" {
				if _, made := names[c.group]; !made {
					names[c.group] = m.roll(c.group.ring)
				}
				m.send(c, names[c.group])
			}
			m.send(c, m.info(c, members, groups, largest))
		}
	}
}

// roll says who some clients are.
func (m *Machine) roll(us []wire.UUID) (p wire.M2CNames) {
	for _, u := range us {
		c := m.uuids[u]
		p.Members = append(p.Members, wire.NamedMember{UUID: u, Name: c.listens.as.Name, State: c.at(c.listens.state)})
	}
	return p
}

// info is the M2C 2 of one participant (control spec, section 7.2). The global
// world size counts the members, and none that wait (quirk Q52): a program that
// begins when all of n peers are members asks for no more than that number.
func (m *Machine) info(c *client, members, groups, largest int) wire.M2CP2PConnectionInfo {
	near := neighbours(c.group.ring, c.uuid)
	p := wire.M2CP2PConnectionInfo{
		Unchanged:        sameMembers(near, c.place.neighbours),
		GlobalWorldSize:  uint64(members),
		LocalWorldSize:   uint64(len(c.group.ring)),
		NumDistinctGroup: uint64(groups),
		LargestGroupSize: uint64(largest),
	}
	c.place.neighbours = near
	if !p.Unchanged {
		for _, u := range near {
			o := m.uuids[u]
			p.Peers = append(p.Peers, wire.PeerEndpoint{Addr: o.at(o.listens.p2p), UUID: u})
		}
	}
	if c.can.resume {
		p.Ext.Resuming.Decision = m.round.decision
	}
	if c.native {
		p.Ext.GroupNative = c.group.pure
		if c.group.eager {
			p.Ext.Epoch = m.round.n
		}
		if c.can.collectives {
			if p.Ext.Reason = c.group.lacks; p.Ext.Reason == "" {
				p.Ext.GroupCollectives, p.Ext.Members = true, c.group.roster
			}
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
// The consequences of a failure are decided when all have reported: only then it
// is known which pairs cannot connect.
func (m *Machine) report(c *client, p wire.C2MP2PConnectionsEstablished) {
	if !c.place.lostAnew {
		c.place.lostUntil = 0 // it lives, and others have connected to it again
	}
	if p.Success {
		c.set(Waiting, m.now)
		m.boundNewcomers()
		m.checkRoundEnd()
		return
	}
	c.round.reported, c.round.vague = true, !m.round.recovered
	c.set(ConnectFailed, m.now)
	for i, u := range p.FailedPeers {
		if i > len(m.clients) {
			break // more names than peers: the rest can only be repetitions
		}
		beside := slices.Contains(c.place.neighbours, u)
		c.round.vague = c.round.vague && !beside
		o := m.uuids[u]
		if o == nil || o == c || o.group != c.group {
			continue
		}
		c.mark(u, m.round.n)
		if beside {
			m.testify(c, o)
			m.lose(o)
		}
		m.about(c, "unreachable", true, "peer %s cannot reach %s", c.name(), o.name())
	}
	m.boundNewcomers()
	m.checkRoundEnd()
}

func (c *client) mark(u wire.UUID, n uint64) {
	for i := range c.ways.unreachable {
		if c.ways.unreachable[i].to == u {
			c.ways.unreachable[i].round = n
			return
		}
	}
	c.ways.unreachable = append(c.ways.unreachable, mark{u, n})
}

// checkRoundEnd ends the round when no client connects any more. Every group has a
// verdict of its own.
func (m *Machine) checkRoundEnd() {
	if !m.round.active {
		return
	}
	if m.census.all[Connecting] > 0 {
		return
	}
	if m.commitRound() {
		return
	}
	m.round.active = false
	// Others may have agreed on a round meanwhile; or all participants left,
	// and those who wait can be let in.
	defer m.checkRoundVotes()
	var good, bad []*group
	for _, g := range m.groups {
		switch took, failed := g.verdict(); {
		case took && failed:
			bad = append(bad, g)
		case took:
			good = append(good, g)
		}
	}
	for _, g := range bad {
		m.failRound(g)
	}
	if len(bad) > 0 {
		for _, g := range bad {
			g.round.lost = m.round.lost()
		}
		m.repay()
		m.tellRound(true, "connections could not be established, the round is repeated")
	}
	for _, g := range good {
		m.endRound(g)
	}
	others := m.census.accepted
	for _, g := range bad {
		others -= len(m.members(g))
	}
	for _, g := range bad {
		// Members of other groups go on, and may not vote for a long time.
		g.round.again = others > 0
	}
	if len(good) > 0 {
		m.tellRound(false, "connections established")
	}
	for _, g := range m.groups {
		m.offer(g)
	}
	m.judgeWaiting()
	m.checkOptimize()
}

// tellRound states how a round ended. Rounds can be repeated at will, by members and by newcomers.
func (m *Machine) tellRound(warn bool, text string) {
	if m.lines.say(m.now, roundLines, text, &text) {
		m.fact(Fact{Kind: "round", Warn: warn, Text: text})
	}
}

// verdict reports whether g takes part in the running round, and whether that has
// failed as far as its participants have reported.
func (g *group) verdict() (took, failed bool) {
	failed = g.round.dropped
	for _, c := range g.clients {
		if c.round.in {
			took, failed = true, failed || c.state == ConnectFailed
		}
	}
	return took, failed
}

// endRound tells the participants of g that their ring stands.
func (m *Machine) endRound(g *group) {
	g.round.healed = false
	m.installed(g)
	mortal := m.mortal(g)
	for _, c := range g.clients {
		if !c.round.in {
			continue
		}
		newcomer := c.round.newcomer
		c.round = roundPart{}
		m.rehabilitate(c)
		if !c.place.lostAnew {
			c.place.lostUntil = 0 // of a connection that another one has replaced
		}
		c.set(Idle, m.now)
		if newcomer {
			m.admit(c)
			m.about(c, "accepted", false, "peer %s joined group %d, world size %d", c.name(), c.group.id, len(c.group.ring))
		}
		p := wire.M2CP2PConnectionsEstablished{Success: true, Ring: c.group.ring}
		if c.can.resume {
			p.Mortal = mortal
		}
		m.send(c, p)
	}
}

// mortal returns the members of the ring of g that cannot resume, nil if none can.
func (m *Machine) mortal(g *group) (us []wire.UUID) {
	for _, u := range g.ring {
		if c := m.uuids[u]; c != nil && !c.can.resume {
			us = append(us, u)
		}
	}
	return us
}

// immortal are the members of the ring of g that can go on with another master. It is not
// nil.
func (m *Machine) immortal(g *group) []wire.UUID {
	us := make([]wire.UUID, 0, len(g.ring))
	for _, u := range g.ring {
		if c := m.uuids[u]; c != nil && c.can.resume {
			us = append(us, u)
		}
	}
	return us
}

// failRound tells the participants of g to vote again, after a ring was found
// that avoids the pairs that cannot reach each other (quirk Q5), and those who
// are to blame were turned away.
func (m *Machine) failRound(g *group) {
	m.vague(g)
	m.turnAway(g)
	m.convict(g)
	m.reroute(g)
	g.ring = m.normalise(g)
	for _, c := range g.clients {
		if !c.round.in {
			continue
		}
		// A reporter that is alone in its group stays outside, as in PCCL. Our
		// own peers get another chance: the ones that they could not reach have left.
		if c.round.newcomer && (!c.round.reported || len(c.group.ring) > 1 || c.native) {
			m.admit(c)
			if !c.closing {
				m.about(c, "accepted", false, "peer %s joined group %d after a failed round", c.name(), c.group.id)
			}
		}
		c.round = roundPart{}
		c.set(ConnectFailed, m.now)
		m.send(c, wire.M2CP2PConnectionsEstablished{Ring: c.group.ring})
	}
}
