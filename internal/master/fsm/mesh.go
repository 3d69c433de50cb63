package fsm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

const (
	// meshTime bounds how long the members of a group may connect with each other.
	meshTime = 10 * time.Second
	// meshPeers bounds the others that a member is to connect with.
	meshPeers = plan.MostMeshed - 1
	// landmarks are how many members of a larger group all others connect with, so that
	// it is known how far they are from each other.
	landmarks = 8
)

// meshState says whether all members of a group are connected with each other.
type meshState uint8

const (
	meshNone      meshState = iota // nobody has asked for it since the round
	meshPreparing                  // the members connect
	meshDirect                     // it stands
	meshRefused                    // it cannot be had until the next round
)

// mesh is what a group has of it (docs/spec/extensions.md, "Mesh").
type mesh struct {
	state  meshState
	change uint64
	due    time.Duration // while it is prepared
	spares bool          // it would be faster for some all-reduces
	direct wire.Direct   // which all-reduces use it
	large  plan.Options  // ... of the large ones
	late   bool          // that was offered, and not all have answered in time
	draft  draft         // what they are to be told next
	// partial: the members are not all connected with each other, but know of ways, and
	// connect for the plans that they are told of.
	partial bool
}

// planned reports whether there can be other plans than the ring.
func (x *mesh) planned() bool { return x.state == meshDirect || x.partial }

// enroll makes the order in which the members of g are counted, for the round that
// starts: those that were counted before, then the newcomers as they came. It also
// says whether they may call collectives other than all-reduce.
func (m *Machine) enroll(g *group) {
	ms := m.ringMembers(g)
	left := make(map[wire.UUID]bool, len(ms))
	for _, c := range ms {
		left[c.uuid] = true
	}
	var roster []wire.UUID
	for _, u := range g.roster {
		if left[u] {
			roster = append(roster, u)
			delete(left, u)
		}
	}
	for _, c := range ms {
		if left[c.uuid] {
			roster = append(roster, c.uuid)
		}
	}
	if !slices.Equal(roster, g.roster) {
		g.learned = learner{}
	}
	g.roster, g.mesh, g.left, g.lacks = roster, mesh{}, 0, ""
	if len(roster) > wire.MaxMembers {
		g.lacks = fmt.Sprintf("the group has %d members, and they are for groups of at most %d", len(roster), wire.MaxMembers)
		return
	}
	for _, u := range roster {
		c := m.uuids[u]
		switch {
		case c.can.collectives:
			continue
		case c.native:
			g.lacks = fmt.Sprintf("peer %v at %v is an older gopccl", u, c.remote)
		default:
			g.lacks = fmt.Sprintf("peer %v at %v is a PCCL peer", u, c.remote)
		}
		return
	}
}

// departed says who has gone since the round of g, "" if nobody has.
func (m *Machine) departed(g *group) string {
	for _, u := range g.ring {
		if m.uuids[u] == nil {
			return fmt.Sprintf("peer %v has left since the last round", u)
		}
	}
	return ""
}

// wantMesh has the members of g connect with each other, unless that was settled
// since the round.
func (m *Machine) wantMesh(g *group) {
	if g.mesh.state != meshNone {
		return
	}
	m.numbers.changes++
	g.mesh = mesh{state: meshPreparing, change: m.numbers.changes, due: m.now + meshTime}
	ms := m.members(g)
	large := len(ms)-1 > meshPeers
	if large && (!needNoMesh(ms) || len(ms) > plan.MaxSchemeMembers) || m.departed(g) != "" {
		m.settleMesh(g, meshRefused)
		return
	}
	var marks []wire.UUID // that all are to connect with, of a large group
	for i := range landmarks {
		marks = append(marks, g.ring[i*len(g.ring)/landmarks])
	}
	m.census.changing = true
	for _, c := range ms {
		c.place.unreached = nil
		near := neighbours(g.ring, c.uuid)
		p := wire.M2CPrepareMesh{Change: g.mesh.change}
		for _, o := range ms {
			if o != c && !slices.Contains(near, o.uuid) && (!large || slices.Contains(marks, o.uuid)) {
				p.Peers = append(p.Peers, wire.PeerEndpoint{Addr: o.at(o.listens.p2p), UUID: o.uuid})
			}
		}
		m.send(c, p)
	}
}

// needNoMesh reports whether ms are connected for plans one by one.
func needNoMesh(ms []*client) bool {
	return !slices.ContainsFunc(ms, func(c *client) bool { return !c.can.ways || !c.can.schemes })
}

// askMesh takes a member's wish for a mesh.
func (m *Machine) askMesh(c *client) {
	if !c.can.collectives || c.group.lacks != "" {
		m.kick(c, "asks for a mesh in a group without collectives other than all-reduce")
		return
	}
	if m.round.active && slices.ContainsFunc(c.group.clients, func(o *client) bool { return o.round.in }) {
		return // it asked before it heard of the round, or of one that an earlier master began: that answers it
	}
	m.wantMesh(c.group)
}

// meshPrepared takes a member's word about its connections.
func (m *Machine) meshPrepared(c *client, p wire.C2MMeshPrepared) {
	g := c.group
	if g.mesh.state != meshPreparing || p.Change != g.mesh.change || c.place.meshed == p.Change {
		return
	}
	ms := m.members(g)
	if len(p.FailedPeers) > 0 {
		to := p.FailedPeers[0].String()
		if o := m.uuids[p.FailedPeers[0]]; o != nil {
			to = o.name()
		}
		why := fmt.Sprintf("peer %s cannot reach %s", c.name(), to)
		if !needNoMesh(ms) {
			m.refuseMesh(g, why)
			return
		}
		m.tell(g, "mesh", true, "the members use the ring where they want a mesh: %s", why)
	}
	c.place.meshed, c.place.ways, c.place.unreached = p.Change, p.Ways, p.FailedPeers
	whole := len(ms)-1 <= meshPeers
	for _, o := range ms {
		if o.place.meshed != p.Change {
			return
		}
		whole = whole && len(o.place.unreached) == 0
	}
	if !whole {
		g.mesh.partial = true
		m.settleMesh(g, meshRefused)
		return
	}
	m.settleMesh(g, meshDirect)
}

// refuseMesh gives the mesh of g up until the next round, if it is prepared.
func (m *Machine) refuseMesh(g *group, why string) {
	if g.mesh.state != meshPreparing {
		return
	}
	m.tell(g, "mesh", true, "the members use the ring where they want a mesh: %s", why)
	m.settleMesh(g, meshRefused)
}

// settleMesh tells the members of g what becomes of the mesh, and then looks at the
// votes that waited for it: what follows M2C 89 keeps to it.
func (m *Machine) settleMesh(g *group, s meshState) {
	g.mesh.state = s
	p := wire.M2CMesh{Change: g.mesh.change, Planner: wire.MeshNone}
	if s == meshDirect {
		p.Planner = wire.MeshDirect
	}
	for _, c := range m.members(g) {
		m.send(c, p)
	}
	for t := range g.tags.all() {
		m.checkCommence(g, t)
	}
	if m.reviewPlans(g); g.mesh.spares {
		m.offer(g)
	}
}

// wantsMesh reports whether a member that has voted for t wants one.
func wantsMesh(t *tagState, ms []*client) bool {
	return slices.ContainsFunc(ms, func(c *client) bool { return c.op(t.tag).call.Flags&wire.CallMesh != 0 })
}

// meshesDue acts on the bounds of meshes that are prepared.
func (m *Machine) meshesDue() {
	for _, g := range m.groups {
		if g.mesh.state == meshPreparing && m.now >= g.mesh.due {
			m.refuseMesh(g, fmt.Sprintf("not all have connected for it within %v", meshTime))
		}
	}
}
