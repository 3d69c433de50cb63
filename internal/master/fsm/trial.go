package fsm

import (
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/internal/master/fsm/pace"
	"github.com/gopccl/gopccl/internal/master/fsm/rings"
	"github.com/gopccl/gopccl/internal/wire"
)

// timedRing is a ring, and how fast collectives are with it.
type timedRing struct {
	ring []wire.UUID
	pace pace.Pace
}

// timeRing is called when no collective of g is under way any more.
func (m *Machine) timeRing(g *group) {
	if !g.inForce.pace.End(m.now) || g.before == nil {
		return
	}
	is, was := g.inForce.pace.Against(g.before.pace)
	if was == 0 {
		return
	}
	old := g.before.ring
	g.before = nil
	if float64(is)*(1+m.cfg.Noise) < float64(was) {
		g.search.patience = m.cfg.Patience
	}
	// Times are medians: their difference says more than that of links.
	if float64(is) <= float64(was)*(1+m.cfg.Noise/2) {
		m.fact(Fact{Kind: "ring", Group: g.id, Text: fmt.Sprintf("a collective takes %v with the new ring, %v with the one before", is, was)})
		return
	}
	m.withdraw(g)
	m.refuse(g, g.ring, old)
	m.fact(Fact{
		Kind: "ring", Warn: true, Group: g.id,
		Text: fmt.Sprintf("a collective takes %v with the new ring, %v with the one before, which comes back", is, was),
	})
	m.offer(g)
}

// refuse makes back the order of g again; ring is not tried any more while the
// members stay.
func (m *Machine) refuse(g *group, ring, back []wire.UUID) {
	g.search.refuse(ring, m.now)
	g.prefer(back)
}

// installed begins to time a ring that a round has put in force.
func (m *Machine) installed(g *group) {
	was := g.inForce
	g.inForce.ring = slices.Clone(g.ring)
	switch {
	case rings.SameCycle(was.ring, g.ring):
	case !sameMembers(was.ring, g.ring):
		m.forget(g)
	default:
		g.before = &was
		if g.search.refuses(was.ring) { // it went back, and is not tried again
			g.before = nil
		}
		g.inForce.pace = pace.Pace{}
		m.fact(Fact{Kind: "ring", Group: g.id, Text: fmt.Sprintf("ring of %d peers installed", len(g.ring))})
	}
}
