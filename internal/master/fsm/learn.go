package fsm

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// What members say of their connections (C2M 76) is kept for so many reports. Plans are
// looked at again when a rate has moved by rateMoves, and change at most once in a time
// that begins with leastCalm and doubles with every change, up to mostCalm.
const (
	mostGave  = 8
	rateMoves = 1.1
	leastCalm = 2 * time.Second
	mostCalm  = 10 * time.Minute
	lookEvery = time.Second
)

// A plan that took slowPlan times as long as the ring for the same bytes, in slowTimes
// all-reduces or more, is not used for barredTime.
const (
	slowPlan   = 1.1
	slowTimes  = 2
	barredTime = 10 * time.Minute
	mostWorks  = 16
	mostTook   = 3
)

// learner plans the large all-reduces of a group by what its members have shown in those
// before (docs/spec/extensions.md, "Learned rates"). It belongs to a roster.
type learner struct {
	last    plan.Options // that the members were told of last
	bytes   uint64       // of the last large all-reduce; 0: there was none
	news    bool         // members have said something since the plans were looked at
	want    bool         // other plans are to be told
	tried   bool         // a trial has begun
	spent   bool         // ... and the plans were not looked at since
	looked  time.Duration
	known   []float64 // rates at the last look
	changed time.Duration
	calm    time.Duration // until the next change
	works   []work
	bars    []bar
	now     running
}

// running is the large all-reduce under way.
type running struct {
	bytes uint64 // 0: there is none, or another one beside it
	name  string
	since time.Duration
}

// work is how long all-reduces of the same size took with a plan, "ring" or another one.
type work struct {
	bytes uint64
	name  string
	took  []time.Duration // the latest last
}

// bar keeps a plan out of use.
type bar struct {
	name  string
	until time.Duration
}

const ringName = "ring"

// rates takes what the connections of c gave at most.
func (m *Machine) rates(c *client, p wire.C2MRates) {
	g := c.group
	sound := func(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }
	if !c.can.rates || !sound(p.Up) || !sound(p.Down) || len(g.roster) > plan.MostPlanned {
		return
	}
	kept := wire.C2MRates{Up: p.Up, Down: p.Down}
	for _, x := range p.Pairs {
		o := m.uuids[x.To]
		if o == nil || o == c || o.group != g || !sound(x.Mbps) || len(kept.Pairs) == plan.MostPlanned {
			continue
		}
		kept.Pairs = append(kept.Pairs, x)
	}
	if len(c.ways.gave) == mostGave {
		c.ways.gave = slices.Delete(c.ways.gave, 0, 1)
	}
	c.ways.gave = append(c.ways.gave, kept)
	l := &g.learned
	l.news = true
	// The end of what is timed has a look itself. There is no such end where collectives
	// are under way all the time.
	if l.now.bytes == 0 && m.now >= l.looked+lookEvery {
		m.lookAtPlans(g, false)
		m.offerAgain(g)
	}
}

// seen fills in what ms have shown. A member whose links were all measured has nothing
// to show: connections in use give no more.
func (m *Machine) seen(ms []*client, p *plan.Problem) {
	n := len(ms)
	p.Up, p.Down, p.Seen = make([]float64, n), make([]float64, n), make([]float64, n*n)
	measured := func(from, to int) bool { return from == to || p.Rates[from*n+to] > 0 }
	for i, c := range ms {
		out, in := true, true
		for k := range n {
			out, in = out && measured(i, k), in && measured(k, i)
		}
		for _, r := range c.ways.gave {
			if !out {
				p.Up[i] = max(p.Up[i], r.Up)
			}
			if !in {
				p.Down[i] = max(p.Down[i], r.Down)
			}
			for _, x := range r.Pairs {
				if k := slices.IndexFunc(ms, func(o *client) bool { return o.uuid == x.To }); k >= 0 {
					p.Seen[i*n+k] = max(p.Seen[i*n+k], x.Mbps)
				}
			}
		}
	}
}

// atLeast fills in what the ring shows of every member: all links carry the same. Without
// it members that the ring let wait seem slower than the others. With another plan
// in force the network may have become another one since.
func (l *learner) atLeast(p *plan.Problem) {
	if at := l.last.For(l.bytes); at != nil && at.Scheme.Name != plan.TrialName {
		return
	}
	least := 0.0
	for _, w := range l.works {
		if w.name == ringName {
			least = max(least, plan.RingRate(p.N, w.bytes, slices.Min(w.took)))
		}
	}
	for i := range p.N {
		if p.Up[i] > 0 {
			p.Up[i] = max(p.Up[i], least)
		}
		if p.Down[i] > 0 {
			p.Down[i] = max(p.Down[i], least)
		}
	}
}

// settled returns the plans for large all-reduces of g: those that are the best by p, or
// those in force if these are about as good, or a trial.
func (m *Machine) settled(g *group, p plan.Problem) plan.Options {
	l := &g.learned
	barred := l.barred(m.now)
	fresh := plan.Large(p).Without(barred)
	if l.bytes == 0 { // nothing large is under way that could show what a plan is worth
		if m.shown(p) {
			return plan.Options{}
		}
		return fresh
	}
	if len(l.last.List) > 0 && l.last.For(l.bytes) != nil && l.last.For(l.bytes).Scheme.Name != plan.TrialName {
		return plan.Steady(p, l.last.Without(barred), fresh, l.bytes)
	}
	if at := fresh.For(l.bytes); at == nil || l.beats(ringName, at.At(l.bytes)) {
		if at != nil {
			fresh = fresh.Without([]string{at.Scheme.Name})
		}
		if o, ok := l.trial(&p); ok {
			return o
		}
		if len(l.last.List) > 0 && l.last.For(l.bytes) == nil {
			return l.last.Without(barred) // what differs is not in use
		}
	}
	return fresh
}

// shown reports whether what is known was not measured, but shown in collectives.
func (m *Machine) shown(p plan.Problem) bool {
	return slices.ContainsFunc(p.Up, func(v float64) bool { return v > 0 }) || slices.ContainsFunc(p.Down, func(v float64) bool { return v > 0 })
}

// trial returns a plan with which all members show what they can, or that has turned out
// to be faster than the ring in its trial.
func (l *learner) trial(p *plan.Problem) (o plan.Options, ok bool) {
	ring, tried := l.took(l.bytes, ringName), l.took(l.bytes, plan.TrialName)
	far := slices.ContainsFunc(p.Delay, func(d time.Duration) bool { return d >= trialDelay })
	if !far || ring == 0 || l.bytes < plan.LeastTrial || l.bytes > plan.MostTrial || l.tried && tried == 0 {
		return o, false
	}
	if tried > 0 && float64(tried)*slowPlan > float64(ring) {
		return o, false
	}
	return plan.Trial(p.N, l.bytes, ring), true
}

// trialDelay is the delay of members that are far from each other: near ones show nothing.
const trialDelay = time.Millisecond

// beats reports whether a plan that was timed is about as fast as one that is predicted to
// take so long, or faster.
func (l *learner) beats(name string, predicted time.Duration) bool {
	took := l.took(l.bytes, name)
	return took > 0 && float64(predicted)*slowPlan > float64(took)
}

// took is the least time of all-reduces of so many bytes with a plan, 0: there was none.
func (l *learner) took(bytes uint64, name string) (least time.Duration) {
	for i := range l.works {
		if w := &l.works[i]; w.bytes == bytes && w.name == name {
			least = slices.Min(w.took)
		}
	}
	return least
}

// begin notes a collective that was commenced; alone: no other one is under way.
func (l *learner) begin(bytes uint64, name string, alone bool, now time.Duration) {
	l.now = running{}
	if bytes >= plan.LeastTrial {
		l.bytes = bytes
		if name == plan.TrialName && !l.tried {
			l.tried, l.spent = true, true
		}
		if alone {
			l.now = running{bytes, name, now}
		}
	}
}

// end notes that no collective is under way any more, and returns whether the plan was
// timed for the first time with so many bytes, and what it has turned out to be, if it
// is slower than the ring.
func (l *learner) end(now time.Duration) (first bool, slow string) {
	r := l.now
	l.now = running{}
	if r.bytes == 0 {
		return false, ""
	}
	i := slices.IndexFunc(l.works, func(w work) bool { return w.bytes == r.bytes && w.name == r.name })
	if first = i < 0; first {
		if len(l.works) == mostWorks {
			l.works = slices.Delete(l.works, 0, 1)
		}
		i = len(l.works)
		l.works = append(l.works, work{bytes: r.bytes, name: r.name})
	}
	w := &l.works[i]
	if len(w.took) == mostTook {
		w.took = slices.Delete(w.took, 0, 1)
	}
	w.took = append(w.took, now-r.since)
	ring, least := l.took(r.bytes, ringName), slices.Min(w.took)
	own := r.name != ringName && r.name != plan.TrialName
	if !own || ring == 0 || len(w.took) < slowTimes || float64(least) < slowPlan*float64(ring) {
		return first, ""
	}
	l.bars = append(l.bars, bar{r.name, now + barredTime})
	l.works = slices.Delete(l.works, i, i+1)
	return first, fmt.Sprintf("all-reduces of %d bytes take %v with the plan %q, %v along the ring: it is not used for %v", r.bytes, least, r.name, ring, barredTime)
}

// barred returns the plans that have turned out to be slower than the ring.
func (l *learner) barred(now time.Duration) (names []string) {
	l.bars = slices.DeleteFunc(l.bars, func(b bar) bool { return b.until <= now })
	for _, b := range l.bars {
		names = append(names, b.name)
	}
	return names
}

// moved reports whether what is known of rates has moved since the last look.
func (l *learner) moved(p *plan.Problem) bool {
	known := slices.Concat(p.Rates, p.Up, p.Down, p.Seen)
	same := len(known) == len(l.known)
	for i := 0; same && i < len(known); i++ {
		same = known[i] <= rateMoves*l.known[i] && l.known[i] <= rateMoves*known[i]
	}
	if !same {
		l.known = known
	}
	return !same
}

// timePlan is called when no collective of g is under way any more: it looks at what the
// last one has shown.
func (m *Machine) timePlan(g *group) {
	first, slow := g.learned.end(m.now)
	if slow != "" {
		m.tell(g, "plan", true, "%s", slow)
	}
	m.lookAtPlans(g, first || slow != "")
}

// lookAtPlans has other plans offered if what is known makes them better. first: there is
// more to know than rates.
func (m *Machine) lookAtPlans(g *group, first bool) {
	l := &g.learned
	urgent := l.spent
	if g.mesh.state != meshDirect || l.bytes == 0 || !urgent && !first && (!l.news || m.now < l.changed+l.calm) {
		return
	}
	_, p, ok := m.problem(g, g.ring)
	if !ok {
		return
	}
	l.news, l.spent, l.looked = false, false, m.now
	if moved := l.moved(&p); moved || urgent || first {
		l.want = m.choose(g, g.ring) != g.mesh.direct
	}
}

// problem returns the members of g as its roster counts them and what is known of the
// ways between them; false: one of them is missing, or knows no plans.
func (m *Machine) problem(g *group, ring []wire.UUID) (ms []*client, p plan.Problem, ok bool) {
	p = plan.Problem{N: len(g.roster)}
	if p.N > plan.MostPlanned {
		return nil, p, false
	}
	for _, u := range g.roster {
		c := m.uuids[u]
		if c == nil || c.group != g || !c.can.schemes {
			return nil, p, false
		}
		ms = append(ms, c)
	}
	p.Ring, p.Delay, p.Rates = indices(ms, ring), g.mesh.delays(ms), make([]float64, len(ms)*len(ms))
	for i, c := range ms {
		for k, o := range ms {
			if i != k {
				p.Rates[i*len(ms)+k] = c.link(o).mbps
			}
		}
	}
	m.seen(ms, &p)
	g.learned.atLeast(&p)
	return ms, p, !slices.Contains(p.Ring, -1)
}
