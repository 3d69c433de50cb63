package fsm

import (
	"math"
	"slices"

	"github.com/gopccl/gopccl/core/wire"
)

// ringMembers returns the clients of g that a ring must hold now: the accepted
// ones and, while they take part in a round, the newcomers.
func (m *Machine) ringMembers(g *group) []*client {
	var ms []*client
	for _, c := range m.clients {
		if c.group == g && !c.closing && (c.phase == Accepted || c.inRound) {
			ms = append(ms, c)
		}
	}
	return ms
}

// arrange returns the ring of g (control spec, section 8): sorted by uuid, or,
// once an optimization or unreachable pairs gave another order, that order
// without the peers that left and with newcomers where they cost least.
func (m *Machine) arrange(g *group) []wire.UUID {
	ms := m.ringMembers(g)
	if len(ms) == 0 {
		g.order = nil
		return nil
	}
	slices.SortFunc(ms, func(a, b *client) int { return a.uuid.Compare(b.uuid) })
	ring := make([]wire.UUID, 0, len(ms))
	if g.order == nil {
		for _, c := range ms {
			ring = append(ring, c.uuid)
		}
	} else {
		for _, u := range g.order {
			if slices.ContainsFunc(ms, func(c *client) bool { return c.uuid == u }) {
				ring = append(ring, u)
			}
		}
		for _, c := range ms {
			if !slices.Contains(ring, c.uuid) {
				ring = m.insert(ring, c)
			}
		}
		g.order = ring
	}
	bad := conflicts(ms, 0)
	if bad.violated(ms, ring) {
		if r := findRing(ms, ring, bad); r != nil {
			ring, g.order = r, r
		}
	}
	return slices.Clone(ring)
}

// insert puts c between the two neighbours to and from which it is fastest.
// Without measurements it goes to the end.
func (m *Machine) insert(ring []wire.UUID, c *client) []wire.UUID {
	best, at := -1.0, len(ring)
	for i := range ring {
		prev, next := m.uuids[ring[(i+len(ring)-1)%len(ring)]], ring[i]
		if v := math.Min(prev.links[c.uuid].mbps, c.links[next].mbps); v > best && v > 0 {
			best, at = v, i
		}
	}
	return slices.Insert(ring, at, c.uuid)
}

// pairs says which of n members cannot be neighbours; symmetric, because a
// neighbour is connected to in both directions.
type pairs struct {
	n   int
	bad []bool
}

// conflicts collects the marks among ms that are not older than round since.
func conflicts(ms []*client, since uint64) pairs {
	p := pairs{len(ms), make([]bool, len(ms)*len(ms))}
	for i, c := range ms {
		for _, k := range c.unreachable {
			if k.round < since {
				continue
			}
			if j := slices.IndexFunc(ms, func(o *client) bool { return o.uuid == k.to }); j >= 0 {
				p.bad[i*p.n+j], p.bad[j*p.n+i] = true, true
			}
		}
	}
	return p
}

func (p pairs) at(i, j int) bool { return p.bad[i*p.n+j] }

func (p pairs) any() bool { return slices.Contains(p.bad, true) }

func (p pairs) violated(ms []*client, ring []wire.UUID) bool {
	return p.any() && p.count(indices(ms, ring)) > 0
}

// count returns the forbidden adjacencies of a ring.
func (p pairs) count(ring []int) int {
	bad := 0
	for k, i := range ring {
		if j := ring[(k+1)%len(ring)]; i != j && p.at(i, j) {
			bad++
		}
	}
	return bad
}

func indices(ms []*client, ring []wire.UUID) []int {
	var idx []int
	for _, u := range ring {
		idx = append(idx, slices.IndexFunc(ms, func(c *client) bool { return c.uuid == u }))
	}
	return idx
}

// findRing looks for a ring over ms without forbidden neighbours, starting
// from ring: exactly for small groups, by local search for large ones. nil if
// none was found.
func findRing(ms []*client, ring []wire.UUID, p pairs) []wire.UUID {
	var idx []int
	if p.n <= 12 {
		idx = p.exact()
	} else {
		idx = p.search(indices(ms, ring))
	}
	if idx == nil {
		return nil
	}
	out := make([]wire.UUID, len(idx))
	for k, i := range idx {
		out[k] = ms[i].uuid
	}
	return out
}

// exact finds a Hamiltonian cycle by dynamic programming over subsets: ends[s]
// holds the possible last members of a path from member 0 through exactly s.
func (p pairs) exact() []int {
	if p.n == 1 {
		return []int{0}
	}
	full := 1<<p.n - 1
	ends := make([]uint16, full+1)
	ends[1] = 1
	for s := 1; s <= full; s += 2 {
		for last := 0; last < p.n; last++ {
			if ends[s]&(1<<last) == 0 {
				continue
			}
			for next := 1; next < p.n; next++ {
				if s&(1<<next) == 0 && !p.at(last, next) {
					ends[s|1<<next] |= 1 << next
				}
			}
		}
	}
	ring := make([]int, p.n)
	s, after := full, 0
	for k := p.n - 1; k > 0; k-- {
		found := false
		for last := 1; last < p.n && !found; last++ {
			if ends[s]&(1<<last) != 0 && !p.at(last, after) {
				ring[k], after, found = last, last, true
				s &^= 1 << last
			}
		}
		if !found {
			return nil
		}
	}
	return ring
}

// search removes forbidden adjacencies by reversing segments, with a bounded
// number of fixed kicks out of local minima.
func (p pairs) search(ring []int) []int {
	for i := range p.n {
		free := 0
		for j := range p.n {
			if i != j && !p.at(i, j) {
				free++
			}
		}
		if free < 2 {
			return nil
		}
	}
	ring = slices.Clone(ring)
	rnd := uint32(1)
	cut := func() int {
		rnd = rnd*1664525 + 1013904223
		return int(rnd>>8) % p.n
	}
	for range 200 {
		p.descend(ring)
		if p.count(ring) == 0 {
			return ring
		}
		for range 3 {
			i, j := cut(), cut()
			slices.Reverse(ring[min(i, j):max(i, j)])
		}
	}
	return nil
}

// descend reverses segments as long as that removes forbidden adjacencies.
func (p pairs) descend(ring []int) {
	bad := func(i, j int) int {
		if p.at(i, j) {
			return 1
		}
		return 0
	}
	n := len(ring)
	for improved := true; improved; {
		improved = false
		for i := 0; i < n; i++ {
			a, b := ring[i], ring[(i+1)%n]
			if !p.at(a, b) {
				continue
			}
			for j := 0; j < n; j++ {
				c, d := ring[j], ring[(j+1)%n]
				if j == i || c == b || d == a {
					continue
				}
				if bad(a, c)+bad(b, d) < bad(a, b)+bad(c, d) {
					lo, hi := min(i, j), max(i, j)
					slices.Reverse(ring[lo+1 : hi+1])
					improved = true
					break
				}
			}
		}
	}
}

// maxStrikes is how many rounds in a row may find no ring before the peer that
// is to blame has to go.
const maxStrikes = 3

// reroute finds a ring around the pairs that were reported unreachable. Only
// where there is none somebody has to go: who is named most often, a newcomer
// rather than an accepted peer, a reporter rather than a silent one, the
// youngest at last.
func (m *Machine) reroute(g *group) {
	for {
		ms := m.ringMembers(g)
		slices.SortFunc(ms, func(a, b *client) int { return a.uuid.Compare(b.uuid) })
		bad := conflicts(ms, 0)
		if !bad.any() {
			return
		}
		ring := m.arrange(g)
		if !bad.violated(ms, ring) {
			return
		}
		// Marks of earlier rounds may have healed; those of this one have not.
		fresh := conflicts(ms, m.round.n)
		if r := findRing(ms, ring, fresh); r != nil {
			for _, c := range ms {
				c.unreachable = slices.DeleteFunc(c.unreachable, func(k mark) bool { return k.round < m.round.n })
			}
			g.order = r
			return
		}
		var out *client
		named := -1
		for i, c := range ms {
			n := 0
			for j := range ms {
				if fresh.at(i, j) {
					n++
				}
			}
			if n > 0 && (n > named || n == named && worse(c, out)) {
				out, named = c, n
			}
		}
		if out == nil {
			return
		}
		// Often the peer that a reporter could not reach has just died, and its
		// end is not known here yet. The reporter is only asked to try again.
		if out.strikes++; out.native && out.reported && out.strikes < maxStrikes {
			return
		}
		m.kick(out, "no ring of group %d avoids the peers that cannot reach each other", g.id)
	}
}

// worse orders candidates for leaving that are named equally often.
func worse(a, b *client) bool {
	if a.newcomer != b.newcomer {
		return a.newcomer
	}
	if a.reported != b.reported {
		return a.reported
	}
	return a.id > b.id
}
