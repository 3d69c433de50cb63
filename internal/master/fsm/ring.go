package fsm

import (
	"fmt"
	"math"
	"slices"

	"github.com/gopccl/gopccl/internal/wire"
)

// ringMembers returns the clients of g that a ring must hold now: the accepted
// ones and, while they take part in a round, the newcomers.
func (m *Machine) ringMembers(g *group) []*client {
	var ms []*client
	for _, c := range g.clients {
		if !c.closing && (c.phase == Accepted || c.inRound) {
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
		left := make(map[wire.UUID]bool, len(ms))
		for _, c := range ms {
			left[c.uuid] = true
		}
		for _, u := range g.order {
			if left[u] {
				ring = append(ring, u)
				delete(left, u)
			}
		}
		for _, c := range ms {
			if left[c.uuid] {
				ring = m.insert(ring, c)
			}
		}
		g.order = ring
	}
	if r := m.spread(g, ring); r != nil {
		ring, g.order = r, r
	}
	bad := conflicts(ms, 0)
	if bad.violated(ms, ring) {
		if r := findRing(ms, ring, bad); r != nil {
			ring, g.order = r, r
		}
	}
	return slices.Clone(ring)
}

// spread separates guests of whom nothing is known, if any are neighbours of each
// other: it puts them between those who are known, whose word counts. nil if
// there is nothing to do.
func (m *Machine) spread(g *group, ring []wire.UUID) []wire.UUID {
	stranger := func(u wire.UUID) bool { c := m.uuids[u]; return c.guest() && c.credit() == 0 }
	var hosts, guests []wire.UUID
	beside := false
	for i, u := range ring {
		if !stranger(u) {
			hosts = append(hosts, u)
			continue
		}
		guests = append(guests, u)
		beside = beside || len(ring) > 2 && stranger(ring[(i+1)%len(ring)])
	}
	if !g.known || !beside || len(hosts) < 2 {
		return nil
	}
	out := make([]wire.UUID, 0, len(ring))
	for i, u := range hosts {
		out = append(out, u)
		out = append(out, guests[i*len(guests)/len(hosts):(i+1)*len(guests)/len(hosts)]...)
	}
	return out
}

// insert puts c between the two neighbours to and from which it is fastest.
// Without measurements it goes to the end.
func (m *Machine) insert(ring []wire.UUID, c *client) []wire.UUID {
	best, at := -1.0, len(ring)
	for i := range ring {
		prev, next := m.uuids[ring[(i+len(ring)-1)%len(ring)]], ring[i]
		if v := math.Min(prev.link(c).mbps, c.link(m.uuids[next]).mbps); v > best && v > 0 {
			best, at = v, i
		}
	}
	return slices.Insert(ring, at, c.uuid)
}

// pairs says which of n members cannot be neighbours; symmetric, because a
// neighbour is connected to in both directions.
type pairs struct {
	n   int
	bad []bool // nil: all can
}

// conflicts collects the marks among ms that are not older than round since.
func conflicts(ms []*client, since uint64) pairs {
	p := pairs{n: len(ms)}
	for i, c := range ms {
		for _, k := range c.unreachable {
			if k.round < since {
				continue
			}
			if j := slices.IndexFunc(ms, func(o *client) bool { return o.uuid == k.to }); j >= 0 {
				if p.bad == nil {
					p.bad = make([]bool, p.n*p.n)
				}
				p.bad[i*p.n+j], p.bad[j*p.n+i] = true, true
			}
		}
	}
	return p
}

func (p pairs) at(i, j int) bool { return p.bad != nil && p.bad[i*p.n+j] }

func (p pairs) any() bool { return p.bad != nil }

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
	if len(ring) == 0 {
		return nil
	}
	at := make(map[wire.UUID]int, len(ms))
	for i, c := range ms {
		at[c.uuid] = i
	}
	idx := make([]int, len(ring))
	for k, u := range ring {
		i, ok := at[u]
		if !ok {
			i = -1
		}
		idx[k] = i
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
// youngest at last. Before that, marks of earlier rounds are given up, which may
// have healed, but only once until a round succeeds: else rings would be tried
// in turns for ever.
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
		// Marks of this round have not healed yet.
		fresh := bad
		if !g.healed {
			fresh = conflicts(ms, m.round.n)
			if r := findRing(ms, ring, fresh); r != nil {
				for _, c := range ms {
					c.unreachable = slices.DeleteFunc(c.unreachable, func(k mark) bool { return k.round < m.round.n })
				}
				g.order, g.healed = r, true
				return
			}
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
		// end is not known here yet. The reporter is only asked to try again, if it
		// misses several not as often: they hardly died all together.
		limit := maxStrikes
		if named > 1 {
			limit--
		}
		if out.strikes++; out.native && out.reported && out.strikes < limit && out.missed == 0 {
			for _, o := range m.near(out) {
				if m.severed(out, o) {
					m.arbitrate(out, o)
				}
			}
			return
		}
		for _, o := range m.near(out) {
			if out.newcomer && o.stood == 0 && out.marked(o.uuid, m.round.n) {
				o.missed++
			}
		}
		m.expel(out, "kick", fmt.Sprintf("no ring of group %d avoids the peers that cannot reach each other, and most of these pairs have the peer at %v in them: %s",
			g.id, out.at(out.p2pPort), fix))
		m.forgive(out.uuid)
	}
}

// worse orders candidates for leaving that are named equally often.
func worse(a, b *client) bool {
	if a.missed != b.missed && (a.stood == 0) == (b.stood == 0) {
		return a.missed > b.missed // a third one, or newcomer after newcomer, could not reach it either
	}
	if a.newcomer != b.newcomer {
		return a.newcomer
	}
	if a.reported != b.reported {
		return a.reported
	}
	return a.id > b.id
}
