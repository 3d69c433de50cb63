package fsm

import (
	"math"
	"net/netip"
	"slices"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/master/fsm/links"
	"github.com/gopccl/gopccl/internal/wire"
)

// Peers behind one address may share what leads out of it and into it. Rounds
// of probes measure such links together; then one of them is measured again
// with nothing beside it. If it gives more, the host is a share: its links are
// measured alone, each, and rings are valued by what is left of them while all
// links of the ring are in use (topo.Sharing).

// stage is how far an optimization is with its probes.
type stage uint8

const (
	stageTogether stage = iota // as many at once as there can be
	stageSuspects              // one of every host from or to which several were measured
	stageShares                // those that a shared host has held back
)

// sharing returns what the members, in the order of a matrix, share: nil if
// nothing is known to be shared by several of them.
func (g *group) sharing(ms []*client) *topo.Sharing {
	hosts := make([]netip.Addr, len(ms))
	for i, c := range ms {
		hosts[i] = c.remote.Addr()
	}
	return g.shares.Sharing(hosts)
}

// hosts returns the hosts of a link between two hosts.
func (m *Machine) hosts(e links.Edge) (from, to netip.Addr, ok bool) {
	c, o := m.uuids[e.From], m.uuids[e.To]
	if c == nil || o == nil || c.remote.Addr() == o.remote.Addr() {
		return from, to, false
	}
	return c.remote.Addr(), o.remote.Addr(), true
}

// bookJoint remembers which links of the round left or entered the same host.
func (m *Machine) bookJoint() {
	var round []links.Measured
	for _, x := range m.probes.slots {
		if x.state == wire.ProbeMeasured {
			round = append(round, links.Measured{Edge: x.Edge, Mbps: x.mbps})
		}
	}
	m.probes.joint = append(m.probes.joint, links.Together(round, m.hosts)...)
}

// nextStage moves the probes to their next stage and returns its rounds, in
// which no host sends, or receives, more than once; none if they are through.
func (m *Machine) nextStage() [][]links.Edge {
	p := m.probes
	switch p.stage {
	case stageTogether:
		p.stage = stageSuspects
		return links.Apart(links.Suspects(p.joint), m.hosts)
	case stageSuspects:
		p.stage = stageShares
		m.judgeShares()
		rounds := links.Apart(links.HeldBack(p.joint, m.shared, p.alone), m.hosts)
		// No more rounds than the links together took: the others are known by
		// what they gave together.
		return rounds[:min(len(rounds), max(p.done, 4))]
	}
	return nil
}

// shared is what the host of a set shares as far as the group of its links knows.
func (m *Machine) shared(j links.Joint) float64 {
	if c := m.uuids[j.Links[0].From]; c != nil {
		return c.group.shares.Mbps(j.Host, j.Way)
	}
	return 0
}

// judgeShares decides which hosts are shares: those a link from or to which has
// given more alone than together with others.
func (m *Machine) judgeShares() {
	for _, l := range m.probes.alone {
		if from, to, ok := m.hosts(l.Edge); ok {
			m.judge(from, links.Out, l)
			m.judge(to, links.In, l)
		}
	}
}

// judge compares what a link gave alone with what it gave together with others
// of the host.
func (m *Machine) judge(host netip.Addr, way links.Way, l links.Measured) {
	v, ok := links.Judge(m.probes.joint, host, way, l)
	if !ok {
		return
	}
	c, o := m.uuids[l.From], m.uuids[l.To]
	if !v.Shared {
		c.group.shares.Set(host, way, 0)
		return
	}
	c.group.shares.Set(host, way, v.Most)
	m.about(c, "shared", false, "the peers at %v share what leads %v: %.0f Mbit/s alone, %.0f together, from %s to %s; %.0f in all",
		host, way, l.Mbps, v.Together, c.name(), o.name(), v.Most)
	m.learn(c, l.To, l.Mbps, c.link(o).deviation)
}

// crowded reports whether the link may share its way with others: another member
// is on the host that it leaves or enters.
func (m *Machine) crowded(c, o *client) bool {
	from, to := c.remote.Addr(), o.remote.Addr()
	return from != to && slices.ContainsFunc(m.members(c.group), func(x *client) bool {
		return x != c && x != o && (x.remote.Addr() == from || x.remote.Addr() == to)
	})
}

// learnShare takes the rate of a link that was at work all the time, if the share of
// one of its hosts, and not the link itself, bounds it in the ring in force.
func (m *Machine) learnShare(c, o *client, mbps float64) bool {
	g := c.group
	from, to := c.remote.Addr(), o.remote.Addr()
	if o.group != g || from == to || len(g.shares) == 0 {
		return false
	}
	exits, entries := 0, 0
	for k, u := range g.ring {
		a, b := m.uuids[u], m.uuids[g.ring[(k+1)%len(g.ring)]]
		if a == nil || b == nil || a.remote.Addr() == b.remote.Addr() {
			continue
		}
		if a.remote.Addr() == from {
			exits++
		}
		if b.remote.Addr() == to {
			entries++
		}
	}
	part := func(all float64, n int) float64 {
		if all > 0 && n > 1 {
			return all / float64(n)
		}
		return math.Inf(1)
	}
	sent, received := g.shares.Mbps(from, links.Out), g.shares.Mbps(to, links.In)
	out, in := part(sent, exits), part(received, entries)
	if c.link(o).mbps <= min(out, in) {
		return false
	}
	if out <= in {
		g.shares.Set(from, links.Out, sent+newShare*(mbps*float64(exits)-sent))
	} else {
		g.shares.Set(to, links.In, received+newShare*(mbps*float64(entries)-received))
	}
	return true
}

// forgetHosts drops what is known of hosts that have no member any more.
func (g *group) forgetHosts(ms []*client) {
	g.shares.Keep(func(host netip.Addr) bool {
		return slices.ContainsFunc(ms, func(c *client) bool { return c.remote.Addr() == host })
	})
}
