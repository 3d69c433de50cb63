package fsm

import (
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/internal/master/fsm/pace"
	"github.com/gopccl/gopccl/internal/master/fsm/rings"
	"github.com/gopccl/gopccl/internal/wire"
)

// trial compares a ring with the one that it replaced.
type trial struct {
	ring []wire.UUID
	pace pace.Pace
}

// timeRing is called when no collective of g is under way any more.
func (m *Machine) timeRing(g *group) {
	if !g.pace.End(m.now) || g.trial == nil {
		return
	}
	is, was := g.pace.Against(g.trial.pace)
	if was == 0 {
		return
	}
	old := g.trial.ring
	g.trial = nil
	if float64(is)*(1+m.cfg.Noise) < float64(was) {
		g.patience = m.cfg.Patience
	}
	// Times are medians: what they differ by says more than what links do.
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
	if len(g.refused) == maxRefused {
		g.refused = slices.Delete(g.refused, 0, 1)
	}
	g.refused = append(g.refused, slices.Clone(ring))
	g.prefer(back)
	g.postponed, g.reordered = nil, m.now
	g.patience = min(2*g.patience, calm)
}

// installed begins to time a ring that a round has put in force.
func (m *Machine) installed(g *group) {
	was := g.inForce
	g.inForce = slices.Clone(g.ring)
	switch {
	case rings.SameCycle(was, g.ring):
	case !sameMembers(was, g.ring):
		m.forget(g)
	default:
		// A ring that went back is not tried again.
		if back := slices.ContainsFunc(g.refused, func(r []wire.UUID) bool { return rings.SameCycle(r, was) }); back {
			g.trial = nil
		} else {
			g.trial = &trial{ring: was, pace: g.pace}
		}
		g.pace = pace.Pace{}
		m.fact(Fact{Kind: "ring", Group: g.id, Text: fmt.Sprintf("ring of %d peers installed", len(g.ring))})
	}
}
