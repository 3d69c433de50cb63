package fsm

import (
	"fmt"
	"slices"
	"sort"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// maxRefusals is how many refused registrations end a connection.
const maxRefusals = 3

func (m *Machine) connected(e Connected) {
	if m.conns[e.Client] != nil {
		return
	}
	c := &client{id: e.Client, remote: e.Remote, since: m.now, seen: m.now, listens: listeners{as: e.Who}}
	m.conns[e.Client] = c
	m.silent = append(m.silent, c)
}

// isLocal reports whether others reach c by a loopback address.
func isLocal(c *client) bool { return c.at(0).Addr().IsLoopback() }

// register answers a registration (control spec, section 6).
func (m *Machine) register(c *client, p wire.C2MRequestSessionRegistration) {
	uuid, ok := m.draw()
	if !ok {
		m.kick(c, "no unused uuid could be drawn")
		return
	}
	m.locate(c, p)
	code, why := errs.Success, m.refusal(c, p)
	if why == "" {
		if why = m.comeLater(c); why != "" {
			code = errs.TurnedAway
		}
	}
	was := p.Ext.Resuming.Identity
	if why == "" && p.Ext.Native && m.cfg.Resume && was != (wire.Identity{}) && !m.gaveWay(c, p) {
		m.agree(c, p)
		if why = m.resume(c, p); why == "" {
			return
		}
		if code = errs.TurnedAway; why == anotherKey || why == tooLate {
			code = errs.MasterLost // which stays so
		}
	}
	if why != "" {
		m.refuseRegistration(c, p, wire.M2CSessionRegistrationResponse{UUID: uuid}, code, why)
		return
	}
	if c.place.apart = m.gaveWay(c, p); c.place.apart {
		delete(m.recovery.youth.void, was.UUID)
	}
	c.uuid = uuid
	m.agree(c, p)
	m.enter(c, p.PeerGroup)
	m.silent = without(m.silent, c)
	m.send(c, m.welcome(c, p.PeerGroup))
	m.tellRevocations(c)
	m.arrived(c)
}

// enter makes c a client of the world, which waits to be let in.
func (m *Machine) enter(c *client, group uint32) {
	c.registered, c.phase = true, Registered
	c.group = m.groupOf(group)
	c.set(Idle, m.now)
	c.group.join(c)
	m.clients = append(m.clients, c)
	m.uuids[c.uuid] = c
	m.recovery.youth.began(c.uuid)
}

// arrived sees to it that a newcomer is let in.
func (m *Machine) arrived(c *client) {
	m.about(c, "registered", false, "peer %s registered in group %d", c.name(), c.group.id)

	// The first client has no member to ask: its round starts with it alone.
	if len(m.clients) == 1 {
		m.voteDue = m.now + m.voteBound()
		m.admit(c)
		m.about(c, "accepted", false, "peer %s began group %d, alone", c.name(), c.group.id)
		m.startRound(true, m.groups)
		return
	}
	m.queueTrial(c)
	m.checkRoundVotes()
}

// refuseRegistration tells a client why it cannot register, with resp.
func (m *Machine) refuseRegistration(c *client, p wire.C2MRequestSessionRegistration, resp wire.M2CSessionRegistrationResponse, code errs.Code, why string) {
	if p.Ext.Native {
		resp.Ext = wire.Ext{Native: true, Reason: why, ReasonCode: uint16(code)}
	}
	m.send(c, resp)
	m.about(c, "refused", true, "registration of %v refused: %s", c.remote, why)
	if c.refusals++; c.refusals == maxRefusals {
		m.kick(c, "registration refused %d times", c.refusals)
	}
}

// locate notes where others reach c.
func (m *Machine) locate(c *client, p wire.C2MRequestSessionRegistration) {
	if h := p.Ext.Host.Unmap(); p.Ext.Native && h.IsValid() && !h.IsUnspecified() && !h.IsMulticast() {
		// Only its own machine reaches a peer by a loopback address.
		if h.IsLoopback() && !c.remote.Addr().Unmap().IsLoopback() {
			m.about(c, "host", true, "peer at %v announced the host %v, which cannot be reached; the address of its connection is used", c.remote, h)
		} else {
			c.listens.host = h
		}
	}
	c.listens.p2p, c.native = p.P2PPort, p.Ext.Native
	c.listens.state, c.listens.bandwidth = p.SharedStatePort, p.BenchmarkPort
}

// agree notes what c can do, as far as this master grants it.
func (m *Machine) agree(c *client, p wire.C2MRequestSessionRegistration) {
	if !c.native {
		return
	}
	c.can = abilities{
		heartbeat:   p.Ext.HeartbeatInterval > 0 && m.cfg.HeartbeatInterval > 0 && m.cfg.HeartbeatTimeout > 0,
		preflight:   p.Ext.Preflight,
		topology:    p.Ext.Topology,
		eager:       p.Ext.Eager,
		switchRing:  p.Ext.Switch && m.cfg.Switch,
		collectives: p.Ext.Collectives > 0,
		plans:       p.Ext.Plans > 0 && p.Ext.Collectives > 0 && p.Ext.Switch && m.cfg.Switch,
		resume:      p.Ext.Resuming.Resume && m.cfg.Resume,
		revocations: p.Ext.Revocations && c.listens.as.Name != "",
		plain:       p.Ext.Plain || c.listens.as.Name == "",
	}
	c.can.forward = c.can.collectives && p.Ext.Forward > 0
	c.can.leave = c.can.plans && p.Ext.Plans >= wire.LeavePlans
	c.can.schemes = c.can.plans && p.Ext.Plans >= wire.SchemePlans
	c.can.rates = c.can.plans && p.Ext.Plans >= wire.RatePlans
	c.can.ways = c.can.plans && p.Ext.Plans >= wire.WayPlans
	c.can.pairs = c.can.plans && p.Ext.Plans >= wire.PairPlans
}

// tellRevocations tells c the revocation lists in force, if it takes them.
func (m *Machine) tellRevocations(c *client) {
	if !c.can.revocations {
		return
	}
	for _, list := range m.cfg.Revocations {
		m.send(c, wire.M2CRevocations{DER: list})
	}
}

// welcome is the answer to a registration that succeeds.
func (m *Machine) welcome(c *client, group uint32) wire.M2CSessionRegistrationResponse {
	resp := wire.M2CSessionRegistrationResponse{Accepted: true, UUID: c.uuid}
	if !c.native {
		return resp
	}
	resp.Ext.Native, resp.Ext.Topology, resp.Ext.Switch, resp.Ext.Preflight = true, c.can.topology, c.can.switchRing, c.can.preflight
	resp.Ext.RoundBound = max(m.cfg.RoundTimeout, 0)
	if c.can.collectives {
		resp.Ext.Collectives = wire.CollectivesVersion
	}
	if c.can.forward {
		resp.Ext.Forward = wire.ForwardVersion
	}
	if c.can.plans {
		switch resp.Ext.Plans = wire.LeavePlans - 1; {
		case c.can.pairs:
			resp.Ext.Plans = wire.PlansVersion
		case c.can.ways:
			resp.Ext.Plans = wire.WayPlans
		case c.can.rates:
			resp.Ext.Plans = wire.RatePlans
		case c.can.schemes:
			resp.Ext.Plans = wire.SchemePlans
		case c.can.leave:
			resp.Ext.Plans = wire.LeavePlans
		}
	}
	if c.can.resume {
		resp.Ext.Resuming = m.granted(c, group)
	}
	if c.can.heartbeat {
		resp.Ext.HeartbeatInterval = m.cfg.HeartbeatInterval
		resp.Ext.HeartbeatTimeout = m.cfg.HeartbeatTimeout
		if !m.beats.on {
			m.beats = beats{on: true, next: m.now + m.cfg.HeartbeatInterval, due: m.now + m.cfg.HeartbeatTimeout}
		}
	}
	return resp
}

// refusal applies what the certificate says, the locality rule (control spec,
// section 6), and that of address families.
func (m *Machine) refusal(c *client, p wire.C2MRequestSessionRegistration) string {
	if why := m.uncertified(c, p); why != "" {
		return why
	}
	if why := m.forbidden(c, p); why != "" {
		return why
	}
	if len(m.clients) == 0 {
		return ""
	}
	if why := m.foreign(c, p.PeerGroup); why != "" {
		return why
	}
	if why := m.shut(c, p); why != "" {
		return why
	}
	allLocal := true
	for _, o := range m.clients {
		allLocal = allLocal && isLocal(o)
	}
	switch local := isLocal(c); {
	case allLocal && !local:
		return "the peers of this run are on the loopback interface, which a remote peer cannot reach"
	case !allLocal && local:
		return "a loopback address cannot be reached by the remote peers of this run"
	}
	return ""
}

// uncertified says what keeps c out that came where PCCL peers do.
func (m *Machine) uncertified(c *client, p wire.C2MRequestSessionRegistration) string {
	switch {
	case !c.listens.as.PCCL:
		return ""
	case p.Ext.Native:
		return "it is a gopccl peer, and this port is for PCCL peers: connect to the other one, with a credential"
	case !slices.Contains(m.cfg.PCCLGroups, p.PeerGroup):
		return fmt.Sprintf("group %d takes no PCCL peers: name it in security.pccl_groups of the master and its members", p.PeerGroup)
	}
	return ""
}

// forbidden says what in the certificate of c does not let it register.
func (m *Machine) forbidden(c *client, p wire.C2MRequestSessionRegistration) string {
	who, group := c.listens.as, p.PeerGroup
	switch {
	case who.Name == "":
		return ""
	case who.Observer:
		return fmt.Sprintf("the certificate of %s is an observer's, which takes part in no group: issue one with the role peer", who.Name)
	case who.Groups != nil && !slices.Contains(who.Groups, group):
		return fmt.Sprintf("the certificate of %s does not allow group %d: issue one with that group", who.Name, group)
	}
	if who.Single {
		for _, o := range m.clients {
			if o.listens.as.Name == who.Name && (o.uuid != p.Ext.Resuming.Identity.UUID || !m.proves(c, p)) {
				return fmt.Sprintf("another session of %s is in the run, and its certificate allows one at a time", who.Name)
			}
		}
	}
	return ""
}

// shut says why c could never be a neighbour of some member of its group: one of them has no
// certificate, and the other one takes nothing in plaintext. Those who wait count, too: one
// round lets all of them in.
func (m *Machine) shut(c *client, p wire.C2MRequestSessionRegistration) string {
	who := c.listens.as
	for _, o := range m.clients {
		switch as := o.listens.as; {
		case o.group.id != p.PeerGroup:
		case as.Name == "" && who.Name != "" && !p.Ext.Plain:
			return fmt.Sprintf("group %d has a member without a certificate at %v, and %s takes nothing in plaintext: %s", p.PeerGroup, o.at(0).Addr(), who.Name, takePlain)
		case as.Name != "" && who.Name == "" && !o.can.plain:
			return fmt.Sprintf("it has no certificate, and %s in group %d takes nothing in plaintext: give it a credential, or at that member %s", o.name(), p.PeerGroup, takePlain)
		}
	}
	return ""
}

// takePlain is what an operator sets to have a peer in TLS beside those that are not.
const takePlain = "set security.mode to allow for gopccl peers, or name the group in security.pccl_groups for PCCL peers"

// foreign says why c could never be a neighbour of some member of its group:
// PCCL peers connect to IPv4 addresses only (quirk Q38), and listen on those.
func (m *Machine) foreign(c *client, group uint32) string {
	for _, o := range m.company(group) {
		switch six := c.at(0).Addr().Is6(); {
		case six && !o.native:
			return fmt.Sprintf("group %d has PCCL peers, which reach IPv4 addresses only, and this peer is at %v: connect to an IPv4 address of the master, or announce an IPv4 host", group, c.at(0).Addr())
		case six && !c.native:
			return fmt.Sprintf("a PCCL peer at %v reaches no other: connect to an IPv4 address of the master", c.at(0).Addr())
		case !c.native && o.at(0).Addr().Is6():
			return fmt.Sprintf("group %d has peers at IPv6 addresses, such as %v, which PCCL peers cannot reach", group, o.at(0).Addr())
		}
	}
	return ""
}

// company returns those that a newcomer has to get on with: the members of its group, or if
// there are none, others that wait to be let in.
func (m *Machine) company(group uint32) []*client {
	var accepted, waiting []*client
	for _, o := range m.clients {
		switch {
		case o.group.id != group:
		case o.phase == Accepted:
			accepted = append(accepted, o)
		default:
			waiting = append(waiting, o)
		}
	}
	if len(accepted) == 0 {
		return waiting
	}
	return accepted
}

// draw returns a uuid that no registered client has.
func (m *Machine) draw() (wire.UUID, bool) {
	for range 64 {
		if u := m.cfg.NewUUID(); m.uuids[u] == nil {
			return u, true
		}
	}
	return wire.UUID{}, false
}

func (m *Machine) groupOf(id uint32) *group {
	i := sort.Search(len(m.groups), func(i int) bool { return m.groups[i].id >= id })
	if i < len(m.groups) && m.groups[i].id == id {
		return m.groups[i]
	}
	g := &group{id: id, census: &m.census}
	m.recall(g)
	m.groups = slices.Insert(m.groups, i, g)
	return g
}

func without(cs []*client, c *client) []*client {
	if i := slices.Index(cs, c); i >= 0 {
		return slices.Delete(cs, i, i+1)
	}
	return cs
}

func (m *Machine) disconnected(e Gone) {
	c := m.conns[e.Client]
	if c == nil || c.closing {
		if c != nil && c.end.untold {
			c.end.untold = false
			m.goneMeanwhile(c)
		}
		return
	}
	if m.mayComeBack(c) {
		m.waitFor(c)
		return
	}
	c.closing, c.end = true, ending{kind: "left", why: e.Reason}
	if c.end.why == "" {
		c.end.why = "connection closed"
	}
	m.leaving = append(m.leaving, c)
}

// remove takes clients out of the world and re-checks everything that may have
// waited for them (control spec, section 12). All of the batch go first, so
// that no vote counts a client that is already closed.
func (m *Machine) remove(batch []*client) {
	var members []*client
	for _, c := range batch {
		m.cutOff(c)
		delete(m.conns, c.id)
		if c.questions.owed {
			m.shows.owed = without(m.shows.owed, c)
		}
		if !c.registered {
			m.silent = without(m.silent, c)
			m.recovery.lost(c)
			if c.end.kind != "left" {
				m.about(c, c.end.kind, true, "connection from %v closed: %s%s", c.remote, c.end.why, c.lines.rest())
			}
			continue
		}
		m.clients, m.away = without(m.clients, c), without(m.away, c)
		c.group.leave(c)
		delete(m.uuids, c.uuid)
		members = append(members, c)
	}
	if len(members) == 0 {
		return
	}
	var touched []*group
	for _, c := range members {
		m.about(c, c.end.kind, c.end.kind != "left", "peer %s of group %d is gone: %s%s", c.name(), c.group.id, c.end.why, c.lines.rest())
		if c.round.in && m.round.active {
			c.group.round.dropped = true
			m.costs(c)
		}
		news := wire.Packet(wire.M2CPeerDropped{UUID: c.uuid, Addr: c.remote, Group: c.group.id, Reason: c.end.why})
		for _, o := range c.group.clients {
			if len(o.ways.unreachable) > 0 {
				o.ways.unreachable = slices.DeleteFunc(o.ways.unreachable, func(k mark) bool { return k.to == c.uuid })
			}
			if o.native && !c.end.quiet && (c.phase == Accepted || c.round.in) {
				m.send(o, news)
			}
		}
		if !slices.Contains(touched, c.group) {
			touched = append(touched, c.group)
		}
	}
	why := map[*group]string{} // of those that lost a member
	for _, c := range members {
		if c.phase == Accepted {
			m.forget(c.group)
			if why[c.group] == "" && !c.end.quiet {
				why[c.group] = "peer " + c.name() + " is gone: " + c.end.why
			}
		}
	}
	for _, c := range members {
		m.forgive(c.uuid)
		m.dropPreflights(c)
	}
	m.tryNewcomers()
	m.forgetEmpty(touched)
	m.boundNewcomers()
	m.checkRoundVotes()
	m.checkRoundEnd()
	m.checkPending()
	m.checkOptimize()
	m.checkProbes()
	m.checkOptimized()
	for _, g := range touched {
		m.checkSync(g)
		m.checkSynced(g)
		if why[g] != "" { // those who waited outside took part in no collective
			m.refuseMesh(g, why[g])
			m.checkTags(g, why[g])
		} else {
			m.checkStarts(g)
		}
	}
}
