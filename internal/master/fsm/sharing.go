package fsm

import (
	"math"
	"net/netip"
	"slices"

	"github.com/gopccl/gopccl/core/topo"
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

const (
	// sharedBy is how much faster a link must be alone than together with others
	// from or to its host to count as shared.
	sharedBy = 1.25
	// nearly is how close to the fastest of its round a link must be, and the
	// round to the most that the host ever gave, for the host to be what held the
	// link back.
	nearly = 0.85
)

// share is what leads out of and into a host, for all of its peers together.
type share struct {
	at      netip.Addr
	out, in float64 // Mbit/s, 0: not shared as far as is known
}

// joint is a set of links of one round that leave, or enter, one host.
type joint struct {
	at    netip.Addr
	in    bool
	links []lone
	total float64
}

// lone is a link with what it gave.
type lone struct {
	edge
	mbps float64
}

// sharing returns what the members, in the order of a matrix, share: nil if
// nothing is known to be shared by several of them.
func (g *group) sharing(ms []*client) *topo.Sharing {
	if len(g.shares) == 0 {
		return nil
	}
	s := &topo.Sharing{}
	var hosts []netip.Addr
	shared := false
	for _, c := range ms {
		at := c.remote.Addr()
		h := slices.Index(hosts, at)
		if h < 0 {
			h = len(hosts)
			hosts = append(hosts, at)
			k := g.share(at)
			s.Out, s.In = append(s.Out, k.out), append(s.In, k.in)
		} else {
			shared = shared || s.Out[h] > 0 || s.In[h] > 0
		}
		s.Host = append(s.Host, h)
	}
	if !shared {
		return nil
	}
	return s
}

func (g *group) share(at netip.Addr) share {
	for _, k := range g.shares {
		if k.at == at {
			return k
		}
	}
	return share{}
}

// setShare changes what is known of a host.
func (g *group) setShare(at netip.Addr, f func(*share)) {
	i := slices.IndexFunc(g.shares, func(k share) bool { return k.at == at })
	if i < 0 {
		g.shares = append(g.shares, share{at: at})
		i = len(g.shares) - 1
	}
	if f(&g.shares[i]); g.shares[i].out <= 0 && g.shares[i].in <= 0 {
		g.shares = slices.Delete(g.shares, i, i+1)
	}
}

// ends returns the hosts of a link between two hosts.
func (m *Machine) ends(e edge) (from, to netip.Addr, ok bool) {
	c, o := m.uuids[e.from], m.uuids[e.to]
	if c == nil || o == nil || c.remote.Addr() == o.remote.Addr() {
		return from, to, false
	}
	return c.remote.Addr(), o.remote.Addr(), true
}

// bookJoint remembers which links of the round left or entered the same host.
func (m *Machine) bookJoint() {
	var sets []joint
	add := func(at netip.Addr, in bool, l lone) {
		i := slices.IndexFunc(sets, func(j joint) bool { return j.at == at && j.in == in })
		if i < 0 {
			i = len(sets)
			sets = append(sets, joint{at: at, in: in})
		}
		sets[i].links = append(sets[i].links, l)
		sets[i].total += l.mbps
	}
	for _, x := range m.probes.slots {
		from, to, ok := m.ends(x.edge)
		if !ok || x.state != wire.ProbeMeasured || !(x.mbps > 0) || math.IsInf(x.mbps, 0) {
			continue
		}
		add(from, false, lone{x.edge, x.mbps})
		add(to, true, lone{x.edge, x.mbps})
	}
	for _, j := range sets {
		if len(j.links) > 1 {
			m.probes.joint = append(m.probes.joint, j)
		}
	}
}

// alone returns the rounds of the next stage, in which no host sends, or
// receives, more than once; none if there is no stage to come.
func (m *Machine) alone() [][]edge {
	p := m.probes
	switch p.stage {
	case stageTogether:
		p.stage = stageSuspects
		if rounds := m.apart(m.suspects()); len(rounds) > 0 {
			return rounds
		}
		return nil
	case stageSuspects:
		p.stage = stageShares
		m.judgeShares()
		rounds := m.apart(m.heldBack())
		// No more rounds than the links together took: what is left is known by
		// what it gave together.
		return rounds[:min(len(rounds), max(p.done, 4))]
	}
	return nil
}

// apart divides links into rounds in which no host sends or receives twice.
func (m *Machine) apart(edges []edge) (rounds [][]edge) {
	type end struct {
		at netip.Addr
		in bool
	}
	var used []map[end]bool
	var done []edge
	for _, e := range edges {
		from, to, ok := m.ends(e)
		if !ok || slices.Contains(done, e) {
			continue
		}
		done = append(done, e)
		r := slices.IndexFunc(used, func(u map[end]bool) bool { return !u[end{from, false}] && !u[end{to, true}] })
		if r < 0 {
			r = len(used)
			used, rounds = append(used, map[end]bool{}), append(rounds, nil)
		}
		used[r][end{from, false}], used[r][end{to, true}] = true, true
		rounds[r] = append(rounds[r], e)
	}
	return rounds
}

// suspects returns one link for every host from, or to, which several were
// measured together: of the sets that gave the most, the fastest link of the
// one that was divided most evenly.
func (m *Machine) suspects() (edges []edge) {
	seen := func(j joint) func(joint) bool {
		return func(o joint) bool { return o.at == j.at && o.in == j.in }
	}
	sets := m.probes.joint
	for i, j := range sets {
		if slices.IndexFunc(sets, seen(j)) < i {
			continue
		}
		most := 0.0
		for _, o := range sets {
			if seen(j)(o) {
				most = max(most, o.total)
			}
		}
		var pick edge
		least := math.Inf(1)
		for _, o := range sets {
			if f := o.fastest(); seen(j)(o) && o.total >= nearly*most && f.mbps/o.total < least {
				pick, least = f.edge, f.mbps/o.total
			}
		}
		edges = append(edges, pick)
	}
	return edges
}

func (j joint) fastest() (best lone) {
	for _, l := range j.links {
		if l.mbps > best.mbps {
			best = l
		}
	}
	return best
}

// judgeShares decides which hosts are shares: those a link from or to which has
// given more alone than together with others.
func (m *Machine) judgeShares() {
	for _, l := range m.probes.lone {
		if from, to, ok := m.ends(l.edge); ok && l.mbps > 0 && !math.IsInf(l.mbps, 0) {
			m.judge(from, false, l)
			m.judge(to, true, l)
		}
	}
}

// judge compares what a link gave alone with what it gave together with others
// of the host.
func (m *Machine) judge(at netip.Addr, in bool, l lone) {
	c := m.uuids[l.from]
	most, together := l.mbps, 0.0
	for _, j := range m.probes.joint {
		if j.at != at || j.in != in {
			continue
		}
		most = max(most, j.total)
		for _, k := range j.links {
			if k.edge == l.edge {
				together = k.mbps
			}
		}
	}
	if together == 0 {
		return
	}
	shared := l.mbps > sharedBy*together
	c.group.setShare(at, func(s *share) {
		v := 0.0
		if shared {
			v = most
		}
		if in {
			s.in = v
		} else {
			s.out = v
		}
	})
	if !shared {
		return
	}
	way := "out"
	if in {
		way = "in"
	}
	m.about(c, "shared", false, "the peers at %v share what leads %s: %.0f Mbit/s alone, %.0f together, from %s to %s; %.0f in all",
		at, way, l.mbps, together, c.name(), m.uuids[l.to].name(), most)
	m.learn(c, l.to, l.mbps, c.link(m.uuids[l.to]).deviation)
}

// heldBack returns the links that gave what a shared host has left them, which
// says nothing about the links.
func (m *Machine) heldBack() (edges []edge) {
	for _, j := range m.probes.joint {
		c := m.uuids[j.links[0].from]
		if c == nil {
			continue
		}
		all := c.group.share(j.at).out
		if j.in {
			all = c.group.share(j.at).in
		}
		if all == 0 || j.total < nearly*all {
			continue
		}
		for _, l := range j.links {
			if l.mbps >= nearly*j.fastest().mbps && !slices.ContainsFunc(m.probes.lone, func(k lone) bool { return k.edge == l.edge }) {
				edges = append(edges, l.edge)
			}
		}
	}
	return edges
}

// crowded reports whether the link may share its way with others: another member
// is on the host at one of its ends.
func (m *Machine) crowded(c, o *client) bool {
	from, to := c.remote.Addr(), o.remote.Addr()
	return from != to && slices.ContainsFunc(m.members(c.group), func(x *client) bool {
		return x != c && x != o && (x.remote.Addr() == from || x.remote.Addr() == to)
	})
}

// learnShare takes what a link that was at work all the time gave, if what its
// ends share, and not the link itself, is what bounds it in the ring in force.
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
	out, in := part(g.share(from).out, exits), part(g.share(to).in, entries)
	if c.link(o).mbps <= min(out, in) {
		return false
	}
	if out <= in {
		g.setShare(from, func(s *share) { s.out += newShare * (mbps*float64(exits) - s.out) })
	} else {
		g.setShare(to, func(s *share) { s.in += newShare * (mbps*float64(entries) - s.in) })
	}
	return true
}

// forgetHosts drops what is known of hosts that have no member any more.
func (g *group) forgetHosts(ms []*client) {
	g.shares = slices.DeleteFunc(g.shares, func(s share) bool {
		return !slices.ContainsFunc(ms, func(c *client) bool { return c.remote.Addr() == s.at })
	})
}
