package fsm

import (
	"slices"
	"sort"

	"github.com/gopccl/gopccl/core/wire"
)

func (m *Machine) connected(e Connected) {
	if m.conns[e.Client] != nil {
		return
	}
	c := &client{id: e.Client, remote: e.Remote, since: m.now, seen: m.now}
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
	if h := p.Ext.Host.Unmap(); p.Ext.Native && h.IsValid() && !h.IsUnspecified() && !h.IsMulticast() {
		c.host = h
	}
	if why := m.refusal(c); why != "" {
		resp := wire.M2CSessionRegistrationResponse{UUID: uuid}
		if p.Ext.Native {
			resp.Ext = wire.Ext{Native: true, Reason: why}
		}
		m.send(c, resp)
		m.about(c, "refused", true, "registration of %v refused: %s", c.remote, why)
		return
	}
	c.registered, c.uuid, c.native = true, uuid, p.Ext.Native
	c.topology, c.eager = c.native && p.Ext.Topology, c.native && p.Ext.Eager
	c.switches = c.native && p.Ext.Switch && m.cfg.Switch
	c.p2pPort, c.statePort, c.bwPort = p.P2PPort, p.SharedStatePort, p.BenchmarkPort
	c.group = m.groupOf(p.PeerGroup)
	c.links = map[wire.UUID]link{}
	c.phase = Registered
	c.set(Idle, m.now)
	m.silent = without(m.silent, c)
	m.clients = append(m.clients, c)
	m.uuids[uuid] = c

	resp := wire.M2CSessionRegistrationResponse{Accepted: true, UUID: uuid}
	if c.native {
		resp.Ext.Native, resp.Ext.Topology, resp.Ext.Switch = true, c.topology, c.switches
		if p.Ext.HeartbeatInterval > 0 && m.cfg.HeartbeatInterval > 0 && m.cfg.HeartbeatTimeout > 0 {
			c.beats = true
			resp.Ext.HeartbeatInterval = m.cfg.HeartbeatInterval
			resp.Ext.HeartbeatTimeout = m.cfg.HeartbeatTimeout
			if !m.beating {
				m.beating, m.nextBeat = true, m.now+m.cfg.HeartbeatInterval
			}
		}
	}
	m.send(c, resp)
	m.about(c, "registered", false, "peer %s registered in group %d", c.name(), c.group.id)

	// The first client has nobody to ask: its round starts with it alone.
	if len(m.clients) == 1 {
		m.voteDue = m.now + m.patience()
		c.phase = Accepted
		m.about(c, "accepted", false, "peer %s began group %d, alone", c.name(), c.group.id)
		m.startRound(true, m.groups)
		return
	}
	m.checkRoundVotes()
}

// refusal applies the locality rule (control spec, section 6).
func (m *Machine) refusal(c *client) string {
	if len(m.clients) == 0 {
		return ""
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
	g := &group{id: id}
	m.groups = slices.Insert(m.groups, i, g)
	return g
}

func without(cs []*client, c *client) []*client {
	if i := slices.Index(cs, c); i >= 0 {
		return slices.Delete(cs, i, i+1)
	}
	return cs
}

func (m *Machine) left(e Gone) {
	c := m.conns[e.Client]
	if c == nil || c.closing {
		return
	}
	c.closing, c.kind, c.why = true, "left", e.Reason
	if c.why == "" {
		c.why = "connection closed"
	}
	m.gone = append(m.gone, c)
}

// remove takes clients out of the world and re-checks everything that may have
// waited for them (control spec, section 12). All of the batch go first, so
// that no vote counts a client that is already closed.
func (m *Machine) remove(batch []*client) {
	var members []*client
	for _, c := range batch {
		delete(m.conns, c.id)
		if !c.registered {
			m.silent = without(m.silent, c)
			if c.kind != "left" {
				m.about(c, c.kind, true, "connection from %v closed: %s", c.remote, c.why)
			}
			continue
		}
		m.clients = without(m.clients, c)
		delete(m.uuids, c.uuid)
		members = append(members, c)
	}
	if len(members) == 0 {
		return
	}
	var touched []*group
	for _, c := range members {
		m.about(c, c.kind, c.kind != "left", "peer %s of group %d is gone: %s", c.name(), c.group.id, c.why)
		if c.inRound && m.round.active {
			m.round.dropped = true
		}
		for _, o := range m.clients {
			if o.group != c.group {
				continue
			}
			delete(o.links, c.uuid)
			o.unreachable = slices.DeleteFunc(o.unreachable, func(k mark) bool { return k.to == c.uuid })
			if o.native && (c.phase == Accepted || c.inRound) {
				m.send(o, wire.M2CPeerDropped{UUID: c.uuid, Addr: c.remote, Group: c.group.id, Reason: c.why})
			}
		}
		if !slices.Contains(touched, c.group) {
			touched = append(touched, c.group)
		}
	}
	for _, c := range members {
		if c.phase == Accepted {
			m.forget(c.group)
		}
	}
	m.forgetEmpty(touched)
	why := "peer " + members[0].name() + " is gone: " + members[0].why

	m.checkRoundVotes()
	m.checkRoundEnd()
	m.checkPending()
	m.checkOptimize()
	m.checkProbes()
	m.checkOptimized()
	for _, g := range touched {
		m.checkSync(g)
		m.checkSynced(g)
		m.checkTags(g, why)
	}
}

// forgetEmpty drops the state of groups that have no client left (quirk Q15).
// PCCL keeps the expected revision.
func (m *Machine) forgetEmpty(gs []*group) {
	for _, g := range gs {
		if slices.ContainsFunc(m.clients, func(c *client) bool { return c.group == g }) {
			continue
		}
		if m.cfg.PCCLRevisionRule && g.nextRev != 0 {
			*g = group{id: g.id, nextRev: g.nextRev}
			continue
		}
		if i := slices.Index(m.groups, g); i >= 0 {
			m.groups = slices.Delete(m.groups, i, i+1)
		}
	}
}
