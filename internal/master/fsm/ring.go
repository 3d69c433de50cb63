package fsm

import (
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/internal/master/fsm/rings"
	"github.com/gopccl/gopccl/internal/wire"
)

// ringMembers returns the clients of g that a ring must hold now: the accepted
// ones and, while they take part in a round, the newcomers.
func (m *Machine) ringMembers(g *group) []*client {
	var ms []*client
	for _, c := range g.clients {
		if !c.closing && (c.phase == Accepted || c.round.in) {
			ms = append(ms, c)
		}
	}
	return ms
}

// arrange returns the ring that g ought to have (control spec, section 8):
// sorted by uuid, or, once an optimization, guests or unreachable pairs gave
// another order, that order without the peers that left and with newcomers where
// they cost least. own says that it is such an order. It changes nothing.
func (m *Machine) arrange(g *group) (ring []wire.UUID, own bool) {
	ms := m.ringMembers(g)
	if len(ms) == 0 {
		return nil, false
	}
	slices.SortFunc(ms, byUUID)
	ring, own = uuids(ms), g.order != nil
	if own {
		ring = rings.Update(g.order, ring, func(from, to wire.UUID) float64 { return m.uuids[from].link(m.uuids[to]).mbps })
	}
	// Guests of whom nothing is known are put between those who are known, whose
	// word counts.
	if g.round.known {
		if r := rings.Spread(ring, func(u wire.UUID) bool { c := m.uuids[u]; return c.guest() && c.credit() == 0 }); r != nil {
			ring, own = r, true
		}
	}
	if bad := conflicts(ms, 0); violated(bad, ms, ring) {
		if r := around(ms, ring, bad); r != nil {
			ring, own = r, true
		}
	}
	return ring, own
}

// normalise makes the ring that g ought to have the order from which the next
// one is made, so that it stays when the reasons for it are gone, and returns it.
func (m *Machine) normalise(g *group) []wire.UUID {
	ring, own := m.arrange(g)
	if own {
		g.prefer(ring)
	} else {
		g.prefer(nil)
	}
	return ring
}

// prefer is the one place where the order of g is written. nil: by uuid.
func (g *group) prefer(order []wire.UUID) { g.order = slices.Clone(order) }

func byUUID(a, b *client) int { return a.uuid.Compare(b.uuid) }

func uuids(ms []*client) []wire.UUID {
	us := make([]wire.UUID, len(ms))
	for i, c := range ms {
		us[i] = c.uuid
	}
	return us
}

// conflicts collects the marks among ms that are not older than round since.
func conflicts(ms []*client, since uint64) rings.Pairs {
	p := rings.NewPairs(len(ms))
	for i, c := range ms {
		for _, k := range c.ways.unreachable {
			if k.round < since {
				continue
			}
			if j := slices.IndexFunc(ms, func(o *client) bool { return o.uuid == k.to }); j >= 0 {
				p.Forbid(i, j)
			}
		}
	}
	return p
}

// indices returns the places of a ring's peers in ms, -1 for strangers.
func indices(ms []*client, ring []wire.UUID) []int { return rings.Indices(uuids(ms), ring) }

// violated reports whether ring has neighbours that bad forbids.
func violated(bad rings.Pairs, ms []*client, ring []wire.UUID) bool {
	return bad.Any() && bad.Violations(indices(ms, ring)) > 0
}

// around looks for a ring over ms that bad does not forbid, starting from ring;
// nil if none was found.
func around(ms []*client, ring []wire.UUID, bad rings.Pairs) []wire.UUID {
	idx := bad.Ring(indices(ms, ring))
	if idx == nil {
		return nil
	}
	out := make([]wire.UUID, len(idx))
	for k, i := range idx {
		out[k] = ms[i].uuid
	}
	return out
}

// maxStrikes is how many rounds in a row may find no ring before the peer that
// is to blame has to go.
const maxStrikes = 3

// reroute finds a ring around the pairs that were reported unreachable. Only
// where there is none one peer has to go: the one named most often, a newcomer
// rather than an accepted peer, a reporter rather than a silent one, the
// youngest at last. Before that, marks of earlier rounds are given up, which may
// have healed, but only once until a round succeeds: else rings would be tried
// in turns for ever.
func (m *Machine) reroute(g *group) {
	for {
		ms := m.ringMembers(g)
		slices.SortFunc(ms, byUUID)
		bad := conflicts(ms, 0)
		if !bad.Any() {
			return
		}
		ring := m.normalise(g)
		if !violated(bad, ms, ring) {
			return
		}
		// Marks of this round have not healed yet.
		fresh := bad
		if !g.round.healed {
			fresh = conflicts(ms, m.round.n)
			if r := around(ms, ring, fresh); r != nil {
				for _, c := range ms {
					c.ways.unreachable = slices.DeleteFunc(c.ways.unreachable, func(k mark) bool { return k.round < m.round.n })
				}
				g.prefer(r)
				g.round.healed = true
				return
			}
		}
		var out *client
		named := -1
		for i, c := range ms {
			n := 0
			for j := range ms {
				if fresh.Forbidden(i, j) {
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
		if out.record.strikes++; out.native && out.round.reported && out.record.strikes < limit && out.record.missed == 0 {
			for _, o := range m.near(out) {
				if m.severed(out, o) {
					m.arbitrate(out, o)
				}
			}
			return
		}
		for _, o := range m.near(out) {
			if out.round.newcomer && o.record.stood == 0 && out.marked(o.uuid, m.round.n) {
				o.record.missed++
			}
		}
		m.expel(out, "kick", fmt.Sprintf("no ring of group %d avoids the peers that cannot reach each other, and most of these pairs have the peer at %v in them: %s",
			g.id, out.at(out.listens.p2p), fix))
		m.forgive(out.uuid)
	}
}

// worse orders candidates for leaving that are named equally often.
func worse(a, b *client) bool {
	if a.record.missed != b.record.missed && (a.record.stood == 0) == (b.record.stood == 0) {
		return a.record.missed > b.record.missed // a third one, or newcomer after newcomer, could not reach it either
	}
	if a.round.newcomer != b.round.newcomer {
		return a.round.newcomer
	}
	if a.round.reported != b.round.reported {
		return a.round.reported
	}
	return a.id > b.id
}
