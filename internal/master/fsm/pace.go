package fsm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// What is compared between two rings: the time of equal work.
const (
	maxLoads    = 8       // kinds of work that are told apart
	maxTimes    = 9       // latest times of each
	enoughTimes = 3       // of both rings, before they are compared
	leastLoad   = 1 << 20 // bytes; smaller work measures delays, not the ring
)

// load is work between the start of a collective, with none under way, and the
// end of the last one under way.
type load struct {
	bytes, ops uint64
}

// times of one kind of work, the latest last.
type times struct {
	load  load
	taken []time.Duration
}

func (t times) median() time.Duration {
	s := slices.Clone(t.taken)
	slices.Sort(s)
	return s[len(s)/2]
}

// pace is how fast the collectives of a group were with one ring.
type pace struct {
	loads []times
	now   load
	since time.Duration
	spoil bool // the work under way was aborted
	over  bool // all of it began, and may have been over, before it was commenced
}

// trial compares a ring with the one that it replaced.
type trial struct {
	ring []wire.UUID
	pace pace
}

// begins books a collective that was commenced; alone says that no other one
// is under way.
func (p *pace) begins(o *clientOp, alone bool, now time.Duration) {
	if alone {
		p.now, p.since, p.spoil = load{}, now, false
	}
	p.now.ops++
	p.now.bytes += o.count * uint64(o.dtype.Size())
}

// ends books the end of the last collective under way; true if it is to be
// compared with others.
func (p *pace) ends(now time.Duration) bool {
	if p.spoil || p.over || p.now.bytes < leastLoad {
		return false
	}
	i := slices.IndexFunc(p.loads, func(t times) bool { return t.load == p.now })
	if i < 0 {
		if len(p.loads) == maxLoads {
			p.loads = slices.Delete(p.loads, 0, 1)
		}
		i = len(p.loads)
		p.loads = append(p.loads, times{load: p.now})
	}
	t := &p.loads[i]
	if len(t.taken) == maxTimes {
		t.taken = slices.Delete(t.taken, 0, 1)
	}
	t.taken = append(t.taken, now-p.since)
	return true
}

// against returns the time of work that both paces know, 0 if there is none.
func (p *pace) against(old pace) (is, was time.Duration) {
	for _, a := range p.loads {
		for _, b := range old.loads {
			if a.load == b.load && len(a.taken) >= enoughTimes && len(b.taken) >= enoughTimes {
				return a.median(), b.median()
			}
		}
	}
	return 0, 0
}

// performed is called when no collective of g is under way any more.
func (m *Machine) performed(g *group) {
	if !g.pace.ends(m.now) || g.trial == nil {
		return
	}
	is, was := g.pace.against(g.trial.pace)
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
	g.order, g.waiting, g.settled = slices.Clone(back), nil, m.now
	g.patience = min(2*g.patience, calm)
}

// installed begins to time a ring that a round has put in force.
func (m *Machine) installed(g *group) {
	was := g.inForce
	g.inForce = slices.Clone(g.ring)
	switch {
	case sameCycle(was, g.ring):
	case !sameMembers(was, g.ring):
		m.forget(g)
	default:
		// A ring that went back is not tried again.
		if back := slices.ContainsFunc(g.refused, func(r []wire.UUID) bool { return sameCycle(r, was) }); back {
			g.trial = nil
		} else {
			g.trial = &trial{ring: was, pace: g.pace}
		}
		g.pace = pace{}
		m.fact(Fact{Kind: "ring", Group: g.id, Text: fmt.Sprintf("ring of %d peers installed", len(g.ring))})
	}
}
