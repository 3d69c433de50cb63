package fsm

import (
	"cmp"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// plannedInStep is Config.PlannedInStep by default: with 8 members plans take half a
// millisecond, with 17 four, with 64 and more some hundred (BenchmarkPlans in internal/plan).
const plannedInStep = 8

// Basis is all that the plans of a group are made by, as it was when they were asked for. It is
// constant: they may be made beside the machine.
type Basis struct {
	direct  wire.Direct  // which all-reduces go directly from each member to each other
	problem plan.Problem // as the roster counts; no members: not all of them know more than that
	meshed  bool         // all are connected with each other
	partial bool         // ... or only some, and delays over others count
	small   bool         // all know plans for small all-reduces
	told    bool         // they have been told of plans
	inForce plan.Options // ... of these
	last    plan.Options // ... or, before the round, of these: those for large ones
	bytes   uint64       // of the last large all-reduce; 0: there was none
	begun   bool         // ... and the ring is not timed yet
	barred  []string
	least   time.Duration // of all-reduces of so many bytes, while none went along the ring; 0: one did
	trial   *plan.Options // that may be made; nil: none
	first   bool          // ... and shows more than is known
	larger  plan.Options  // a trial for larger ones than there were; none: they have none of their own
}

// basis returns what the plans of g beside that ring are made by; nil: there are none. All
// members have to know the other plans.
func (m *Machine) basis(g *group, ring []wire.UUID) *Basis {
	if !g.mesh.planned() || slices.ContainsFunc(m.members(g), func(c *client) bool { return !c.can.plans }) {
		return nil
	}
	b := &Basis{meshed: g.mesh.state == meshDirect, partial: g.mesh.partial}
	if b.meshed {
		var ok bool
		if b.direct, ok = m.exchange(g, ring); !ok {
			return nil
		}
	}
	ms, p, ok := m.problem(g, ring)
	if !ok {
		return b
	}
	l := &g.learned
	p.Timed, l.hopes = l.timed(m.now), p.Hopes()
	b.problem, b.small = p, needNoMesh(ms)
	b.told, b.inForce, b.last = g.mesh.direct != (wire.Direct{}), g.mesh.large, l.last.Above()
	b.bytes, b.begun, b.barred = l.bytes, l.begun(), l.barred(m.now)
	if l.rings == 0 {
		b.least = l.least(l.bytes)
	}
	if p.N > plan.MostPlanned || slices.ContainsFunc(ms, func(c *client) bool { return !c.can.rates }) {
		return b
	}
	if b.partial {
		p = filled(p)
	}
	if o, first, ok := l.trial(&p, b.partial); ok {
		b.trial, b.first = &o, first
	}
	if l.small() && !b.partial && ringIsFar(&p) {
		b.larger = plan.Trial(p, 0, 0)
	}
	return b
}

// exchange says which all-reduces of g use its mesh and not that ring: none of two members of
// which one does not know the exchange of a hop. False: the members are not those of the ring.
func (m *Machine) exchange(g *group, ring []wire.UUID) (d wire.Direct, ok bool) {
	ms, x := m.matrix(g)
	p := plan.Problem{N: len(ms), Ring: indices(ms, ring), Mbps: plan.Slowest(x.Mbps, len(ms)), Delay: g.mesh.delays(ms)}
	if slices.Contains(p.Ring, -1) {
		return d, false
	}
	if len(ms) == 2 && slices.ContainsFunc(ms, func(c *client) bool { return !c.can.pairs }) {
		return d, true
	}
	if c := plan.Choose(p); c.Most > 0 {
		d.Most, d.RingUS, d.ExchangeUS = c.Most, uint32(c.Ring.Microseconds()), uint32(c.Exchange.Microseconds())
		d.Kbps = uint32(min(c.Mbps*1000, 1<<32-1))
	}
	return d, true
}

// Make makes the plans, and gives up soon when stopped says so: what it returns then means
// nothing. Nil: it never does.
func (b *Basis) Make(stopped func() bool) wire.Direct {
	d := b.direct
	if b.problem.N > 0 {
		p := b.problem
		p.Stopped = stopped
		if b.partial {
			p = filled(p)
		}
		d.Schemes = b.schemes(p)
	}
	return d
}

// filled returns p with delays that are not known taken over others, but for ways that there are not.
func filled(p plan.Problem) plan.Problem {
	p.Delay = slices.Clone(p.Delay)
	plan.Complete(p.Delay, p.N)
	for at, r := range p.Rates {
		if r < 0 {
			p.Delay[at] = -1
		}
	}
	return p
}

// schemes says which plans all-reduces have, beside the ring. Members are named as in the
// roster, which all of them know. If they are too much to tell, those for small all-reduces
// are left out.
func (b *Basis) schemes(p plan.Problem) string {
	large := b.settled(p).Above()
	if planned := allMeasured(&p) && !p.WaysLimit() && large.For(plan.LeastTrial) != nil; len(b.larger.List) > 0 && !planned {
		large = large.Before(b.larger)
	}
	list := []plan.Options{large}
	if b.small {
		small := b.inForce.Below()
		// What members show moves all the time: small ones are planned when the others are.
		if last := b.inForce.Above(); !b.told || !slices.Equal(last.Encode(), large.Encode()) || !small.Stand(p) {
			small = plan.SteadySmall(p, small, plan.Small(p, b.meshed))
		}
		list = []plan.Options{small.With(large), large}
	}
	for _, o := range list {
		if b := o.Encode(); len(o.List) <= plan.MaxOptions && len(b) <= wire.MaxSchemes {
			return string(b)
		}
	}
	return ""
}

// settled returns the plans for large all-reduces: those that are the best by p, or those
// in force if these are about as good, or a trial.
func (b *Basis) settled(p plan.Problem) plan.Options {
	known := allMeasured(&p)
	if known && b.bytes == 0 { // what was shown was shown in other collectives
		p.Up, p.Down, p.Seen, p.Shown = nil, nil, nil, nil
	}
	barred := b.barred
	if len(barred) > 0 { // a trial is a plan of the same kind, and is compared with the ring by itself
		barred = append(slices.Clone(barred), plan.TrialName)
	}
	last := b.last.For(b.bytes)
	fresh := plan.Large(p).Without(barred)
	if at := fresh.For(b.bytes); at != nil && b.least > 0 {
		ring, best := fresh.Ring.At(b.bytes), plan.RingAtBest(p, b.bytes)
		if best > 0 && best < min(b.least, at.At(b.bytes)) && ring < mostRing*b.least {
			return plan.Options{Ring: fresh.Ring} // whose links may give more than they have shown
		}
	}
	if last != nil && last.Scheme.Name == plan.TrialName {
		if at := fresh.For(b.bytes); at != nil && at.Scheme.Name == plan.TrialName {
			return b.last // nothing else is as fast as it was
		}
		last = nil
	}
	planned := known && !p.WaysLimit() && fresh.For(cmp.Or(b.bytes, plan.MostTrial)) != nil
	if b.trial != nil && b.first && last == nil && !planned {
		return *b.trial
	}
	switch {
	case b.bytes == 0 && !known: // nothing large is under way that could show what a plan is worth
		return plan.Options{}
	case b.bytes == 0:
		return fresh
	case last != nil:
		return plan.Steady(p, b.last.Without(b.barred), fresh, b.bytes)
	}
	at := fresh.For(b.bytes)
	if at != nil && b.begun && float64(at.At(b.bytes))*clearGain > float64(fresh.Ring.At(b.bytes)) {
		fresh, at = fresh.Without([]string{at.Scheme.Name}), nil
	}
	if at == nil {
		if b.trial != nil {
			return *b.trial
		}
		if len(b.last.List) > 0 && b.last.For(b.bytes) == nil {
			o := b.last.Without(b.barred) // what differs is not in use
			if o.Ring == (plan.Line{}) {
				o.Ring = fresh.Ring // nothing was known when they were made
			}
			return o
		}
	}
	return fresh
}

// mostRing is how many times as long as the fastest all-reduce one along the ring may take, by what its links
// have shown, for it to be tried once.
const mostRing = 8

// clearGain is how much faster than the first all-reduce along the ring a plan has to be for
// the second one, with windows that have opened, not to be waited for.
const clearGain = 1.5

// allMeasured reports whether what is known was measured, and not only shown in collectives.
func allMeasured(p *plan.Problem) bool {
	for at, r := range p.Rates {
		from, to := at/p.N, at%p.N
		if from != to && r == 0 && (p.Up[from] > 0 || p.Down[to] > 0) {
			return false
		}
	}
	return true
}

// draft are plans of which the members of a group were not told yet. It belongs to their mesh,
// and so to a roster; those that were in force before are until they are told of others.
type draft struct {
	ring   []wire.UUID // beside which they are
	job    uint64      // that makes them; 0: they are made
	direct wire.Direct
}

// plans returns those of g beside that ring. false: they are made beside the machine, and
// plansMade goes on when they are there.
func (m *Machine) plans(g *group, ring []wire.UUID) (d wire.Direct, made bool) {
	x := &g.mesh.draft
	if x.ring != nil && slices.Equal(x.ring, ring) {
		return x.direct, x.job == 0
	}
	*x = draft{}
	b := m.basis(g, ring)
	if b == nil {
		return wire.Direct{}, true
	}
	x.ring = ring
	if b.problem.N > m.cfg.PlannedInStep {
		m.numbers.plans++
		x.job = m.numbers.plans
		m.out = append(m.out, MakePlans{Job: x.job, Group: g.id, Basis: b})
		return wire.Direct{}, false
	}
	x.direct = b.Make(nil)
	return x.direct, true
}

// reviewPlans has the plans made that g ought to have with the ring in force, by what is known
// now.
func (m *Machine) reviewPlans(g *group) {
	g.mesh.draft = draft{}
	if d, made := m.plans(g, g.ring); made {
		g.weigh(d)
	}
}

// weigh notes whether members have to be told of other plans.
func (g *group) weigh(d wire.Direct) {
	g.learned.want = d != g.mesh.direct
	if g.mesh.direct == (wire.Direct{}) {
		g.mesh.spares = d != (wire.Direct{})
	}
}

// plansMade takes plans that were made beside the machine, if the members, their mesh and the
// ring are still those that they were asked for.
func (m *Machine) plansMade(e PlansMade) {
	for _, g := range m.groups {
		x := &g.mesh.draft
		if x.job == 0 || x.job != e.Job {
			continue
		}
		if m.departed(g) != "" {
			*x = draft{} // a round follows
			return
		}
		x.job, x.direct = 0, e.Direct
		g.weigh(e.Direct)
		g.mesh.late = false
		m.offer(g)
		return
	}
}
