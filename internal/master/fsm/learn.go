package fsm

import (
	"cmp"
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
	lookCost  = 5 * time.Millisecond // a look at many members takes longer: for each pair of them
)

// A plan that has not been faster than the ring for the same bytes in slowTimes all-reduces,
// or took muchSlower times as long as its slowest in the first, is not used for barredTime and for
// barredOps large all-reduces: where there is one in some minutes, a time alone would be
// over after a few. Both double each time, up to mostBarred times as much. The ring is compared
// when it was timed ringTimes: its first all-reduce fills its windows. So does that of a trial, which
// is timed trialTimes unless it takes hopeless times as long as the ring. A ring that takes hopeless times as
// long as a trial is not compared a second time. Small all-reduces have a trial where members send lagging
// times what the ring has carried.
const (
	muchSlower = 1.25
	slowTimes  = 2
	barredTime = 10 * time.Minute
	barredOps  = 100
	mostBarred = 64
	ringTimes  = 2
	trialTimes = 3
	mostWorks  = 16
	mostTook   = 3

	hopeless, nearHopeless = 2.5, 1.6

	lagging = 1.5
)

// learner plans the large all-reduces of a group by what its members have shown in those
// before (docs/spec/extensions.md, "Learned rates"). It belongs to a roster.
type learner struct {
	last    plan.Options // that the members were told of last
	bytes   uint64       // of the last large all-reduce, or of the last of LeastTrial or more; 0: there was none
	news    bool         // members have said something since the plans were looked at
	want    bool         // other plans are to be told
	again   bool         // there was more to know than rates, and other plans were being made
	trials  uint64       // that have begun
	rings   uint64       // large all-reduces along the ring that have begun
	spent   bool         // ... one of the first, and the plans were not looked at since
	looked  time.Duration
	known   []float64 // rates at the last look
	changed time.Duration
	calm    time.Duration // until the next change
	works   []work
	bars    []bar
	doubt   doubt
	hopes   bool   // those that were made last are of a problem with some
	hoped   bool   // ... and those in force
	ops     uint64 // large all-reduces so far
	now     running
}

// running is the large all-reduce under way.
type running struct {
	bytes     uint64 // 0: there is none, or another one beside it
	name      string
	plan      *plan.Scheme  // nil: the ring
	predicted time.Duration // 0: nothing was, or not in hope
	since     time.Duration
}

// work is how long all-reduces of the same size took with a plan, "ring" or another one.
type work struct {
	bytes uint64
	name  string
	plan  *plan.Scheme    // that was the latest; nil: the ring
	took  []time.Duration // the latest last
	last  time.Duration   // when that was
}

// bar keeps a plan out of use until both have passed, or the ring has become slower than
// the plan was.
type bar struct {
	name  string
	bytes uint64
	took  time.Duration
	until time.Duration
	ops   uint64
	times uint64 // how much longer than the first time
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
	if n := time.Duration(len(g.roster)); l.now.bytes == 0 && m.now >= l.looked+max(lookEvery, n*n*lookCost) {
		m.lookAtPlans(g, false)
		m.offerAgain(g)
	}
}

// seen fills in what ms have shown. That is more than was measured of a member where the way to each
// other one gives less than the member can send: its connections are measured one at a time.
func (m *Machine) seen(ms []*client, p *plan.Problem) {
	n, place := len(ms), placesOf(ms)
	p.Up, p.Down, p.Seen = make([]float64, n), make([]float64, n), make([]float64, n*n)
	for range mostGave {
		p.Shown = append(p.Shown, plan.Shown{Up: make([]float64, n), Down: make([]float64, n)})
	}
	for i, c := range ms {
		for at, r := range slices.Backward(c.ways.gave) {
			shown := &p.Shown[len(c.ways.gave)-1-at]
			p.Up[i], shown.Up[i] = max(p.Up[i], r.Up), r.Up
			p.Down[i], shown.Down[i] = max(p.Down[i], r.Down), r.Down
			for _, x := range r.Pairs {
				if k, known := place[x.To]; known {
					p.Seen[i*n+k] = max(p.Seen[i*n+k], x.Mbps)
				}
			}
		}
	}
}

// atLeast fills in what the ring shows of every member: all links carry the same. Without
// it members that the ring let wait seem slower than the others. With another plan
// in force the network may have become another one since.
func (l *learner) atLeast(p *plan.Problem, partial bool) {
	if at := l.last.For(l.bytes); at != nil && at.Scheme.Name != plan.TrialName {
		return
	}
	least := 0.0
	for _, w := range l.works {
		if w.name == ringName {
			least = max(least, plan.RingRate(p.N, w.bytes, slices.Min(w.took)))
		}
	}
	for at, i := range p.Ring {
		next := p.Ring[(at+1)%p.N]
		if i < 0 || next < 0 {
			continue
		}
		way := p.Delay[i*p.N+next]
		if partial && way < 0 {
			way = plan.Over(p.Delay, p.N, i, next)
		}
		if way < plan.Far {
			continue // near ones show nothing of themselves
		}
		if p.Up[i] > 0 {
			p.Up[i] = max(p.Up[i], least)
		}
		if p.Down[next] > 0 {
			p.Down[next] = max(p.Down[next], least)
		}
	}
}

// trial returns a plan with which all members show what they can, in trialTimes all-reduces at most,
// or one that has turned out to be faster than the ring in its trial. first: it shows more than a
// ring has, or more than its first time has. partial: the members are not all connected with each other,
// as those of a large group, whose ring is of delays. They connect for a trial.
func (l *learner) trial(p *plan.Problem, partial bool) (o plan.Options, first, ok bool) {
	switch {
	case !ringIsFar(p), l.bytes > plan.MostTrial, partial && l.bytes == 0:
		return o, false, false
	case l.small() && l.trials == 0 && !partial && !l.lags(p):
		return o, false, false
	}
	ring, tried := l.took(l.bytes, ringName), l.took(l.bytes, plan.TrialName)
	switch {
	case l.trials == 0:
		first = true
	case tried == 0 || ring == 0:
		return o, false, false
	case l.begun() && hopeless*float64(tried) > float64(ring): // windows to open do not make it that slow
		return o, false, false
	default:
		first = l.untried() && tried < l.bearable(p)
		if !first && float64(tried)*leastGain > float64(ring) {
			return o, false, false
		}
	}
	o = plan.Trial(*p, l.bytes, ring)
	return o, first, len(o.List) > 0
}

// small reports whether all that is known is of all-reduces that are hardly large. It is forgotten when there
// is one of LeastTrial or more, and smaller ones say nothing from then on: plans that are good for them
// may be bad for those that move most bytes.
func (l *learner) small() bool { return l.bytes > 0 && l.bytes < plan.LeastTrial }

// lags reports whether half of the members that have shown something, or more, send lagging times as much
// as each link of a ring would have carried that takes as long as all-reduces of the size in use. What a
// trial costs a small one is worth it there.
func (l *learner) lags(p *plan.Problem) bool {
	least := time.Duration(0)
	for _, w := range l.works {
		if w.bytes == l.bytes && len(w.took) >= ringTimes && (least == 0 || slices.Min(w.took) < least) {
			least = slices.Min(w.took)
		}
	}
	up := slices.DeleteFunc(slices.Sorted(slices.Values(p.Up)), func(v float64) bool { return v == 0 })
	return least > 0 && len(up) > 0 && up[len(up)/2] >= lagging*plan.RingRate(p.N, l.bytes, least)
}

// untried reports whether the trial was timed, but not often enough to be compared. Where it
// cannot be timed, as other collectives are always under way, it is not waited for.
func (l *learner) untried() bool {
	w := l.work(l.bytes, plan.TrialName)
	return w != nil && len(w.took) < trialTimes && l.trials < trialTimes
}

// bearable is how long a trial may have taken to be timed again: some times as long as the ring. Where
// each link of the ring gave all that it has, the trial shows at once whether hosts give more. It takes
// less time than the ring then, of which the first all-reduce had windows to open, too.
func (l *learner) bearable(p *plan.Problem) time.Duration {
	took := l.work(l.bytes, ringName).took
	if ringIsFull(p) {
		return slices.Max(took)
	}
	times := hopeless
	if len(l.work(l.bytes, plan.TrialName).took) > 1 {
		times = nearHopeless
	}
	return time.Duration(times * float64(slices.Min(took)))
}

// least returns the least time of all-reduces of so many bytes, with whatever plan; 0: there was none.
func (l *learner) least(bytes uint64) (least time.Duration) {
	for _, w := range l.works {
		if took := slices.Min(w.took); w.bytes == bytes && (least == 0 || took < least) {
			least = took
		}
	}
	return least
}

// leastGain is how much faster than the ring a trial has to be for its plan to stay.
const leastGain = 1.1

// ringIsFar reports whether a link of the ring is not near.
func ringIsFar(p *plan.Problem) bool {
	return slices.ContainsFunc(ringWays(p), func(at int) bool { return p.Delay[at] >= plan.Far })
}

// ringIsFull reports whether each link of the ring that is not near was seen to give all that it has.
func ringIsFull(p *plan.Problem) bool {
	return !slices.ContainsFunc(ringWays(p), func(at int) bool { return p.Delay[at] >= plan.Far && p.Rates[at] == 0 })
}

// ringWays returns which ways of Delay and Rates are links of the ring.
func ringWays(p *plan.Problem) (list []int) {
	for i, from := range p.Ring {
		list = append(list, from*p.N+p.Ring[(i+1)%p.N])
	}
	return list
}

// begun reports whether the ring was timed, but not often enough to be compared. Where it
// cannot be timed, as other collectives are always under way, it is not waited for.
func (l *learner) begun() bool {
	w := l.work(l.bytes, ringName)
	return w != nil && len(w.took) < ringTimes
}

// work returns what is known of all-reduces of so many bytes with a plan; nil: nothing.
func (l *learner) work(bytes uint64, name string) *work {
	if i := slices.IndexFunc(l.works, func(w work) bool { return w.bytes == bytes && w.name == name }); i >= 0 {
		return &l.works[i]
	}
	return nil
}

// timed returns what all-reduces of the size in use have taken, the latest last: with other plans than the
// ring in the last time, as the network becomes another one.
func (l *learner) timed(now time.Duration) (list []plan.Timed) {
	byTime := slices.SortedStableFunc(slices.Values(l.works), func(a, b work) int { return cmp.Compare(a.last, b.last) })
	for i := range byTime {
		w := &byTime[i]
		if w.bytes != l.bytes || w.plan != nil && now-w.last >= barredTime {
			continue
		}
		list = append(list, plan.Timed{Scheme: w.plan, Bytes: w.bytes, Took: likely(w.took, 2), Often: len(w.took) > 1})
	}
	return list
}

// likely returns the least of so many of these times, on average. What varies by chance has a
// smaller least the more often it was timed.
func likely(took []time.Duration, times int) time.Duration {
	sorted := slices.Sorted(slices.Values(took))
	n := len(sorted)
	times = min(times, n)
	// The sum of the least of each choice of so many, by how many choices have each as their least.
	ways := func(of, choose int) (w float64) {
		w = 1
		for i := range choose {
			w = w * float64(of-i) / float64(i+1)
		}
		return w
	}
	sum := 0.0
	for i, d := range sorted {
		sum += float64(d) * ways(n-1-i, times-1)
	}
	return time.Duration(sum / ways(n, times))
}

// took is the least time of all-reduces of so many bytes with a plan, 0: there was none.
func (l *learner) took(bytes uint64, name string) (least time.Duration) {
	if w := l.work(bytes, name); w != nil {
		least = slices.Min(w.took)
	}
	return least
}

// begin notes a collective that was commenced; alone: no other one is under way.
func (l *learner) begin(bytes uint64, name string, alone bool, now time.Duration) {
	l.now = running{}
	if l.small() && bytes >= plan.LeastTrial {
		l.trials, l.rings, l.ops, l.works, l.bars, l.doubt, l.changed, l.calm = 0, 0, 0, nil, nil, doubt{}, 0, 0
	}
	if bytes >= plan.LeastTrial || bytes >= plan.LeastLarge && l.bytes < plan.LeastTrial {
		l.bytes = bytes
		l.ops++
		if name == ringName {
			l.rings++
		}
		if name == plan.TrialName {
			if l.trials++; l.trials <= trialTimes {
				l.spent = true
			}
		}
		if alone {
			l.now = running{bytes: bytes, name: name, since: now}
			if at := l.last.For(bytes); name != ringName && at != nil {
				if l.now.plan = at.Scheme; l.hoped {
					l.now.predicted = at.At(bytes)
				}
			}
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
	if r.plan != nil && w.plan != nil && !r.plan.Same(w.plan) {
		w.took = nil // of another plan with that name
	}
	full := len(w.took) == mostTook
	if full {
		w.took = slices.Delete(w.took, 0, 1)
	}
	w.took = append(w.took, now-r.since)
	w.plan, w.last = r.plan, now
	if r.name != plan.TrialName && l.doubt.take(r, w.took, now) {
		l.hoped = false
		return true, "" // it may be good when it is made without hope
	}
	first = first || !full && (r.name == ringName && len(w.took) == ringTimes || r.name == plan.TrialName && len(w.took) == trialTimes || l.surpassed(w))
	along := l.work(r.bytes, ringName)
	if r.name == ringName || along == nil {
		return first, ""
	}
	ring, least := likely(along.took, len(w.took)), slices.Min(w.took)
	much := float64(least) >= muchSlower*float64(slices.Max(along.took))
	if least < ring || !much && len(w.took) < slowTimes {
		return first, ""
	}
	if r.name == plan.TrialName {
		return first, "" // there is one
	}
	return first, fmt.Sprintf("all-reduces of %d bytes take %v with the plan %q, %v along the ring: it is not used for %v", r.bytes, least, r.name, ring, l.bar(r, least, now))
}

// surpassed reports whether a plan was timed twice by now, and is slower than another one that was, too.
func (l *learner) surpassed(w *work) bool {
	return len(w.took) == slowTimes && slices.ContainsFunc(l.works, func(o work) bool {
		return o.plan != nil && o.name != w.name && o.bytes == w.bytes && len(o.took) >= slowTimes && plan.TimedGain*float64(likely(o.took, 2)) <= float64(likely(w.took, 2))
	})
}

// bar keeps a plan out of use, and returns for how long. The exchange in equal parts and
// that in unequal ones are the same plan, with other rates.
func (l *learner) bar(r running, took, now time.Duration) time.Duration {
	// Both are timed again: the network may have become another one.
	l.works = slices.DeleteFunc(l.works, func(w work) bool { return w.name == r.name || w.bytes == r.bytes && w.name == ringName })
	for _, pair := range [][2]string{{"shares", "direct"}, {"direct", "shares"}} {
		if pair[0] == r.name {
			l.barOne(pair[1], r.bytes, took, now)
		}
	}
	return l.barOne(r.name, r.bytes, took, now)
}

func (l *learner) barOne(name string, bytes uint64, took, now time.Duration) time.Duration {
	i := slices.IndexFunc(l.bars, func(b bar) bool { return b.name == name })
	if i < 0 {
		i = len(l.bars)
		l.bars = append(l.bars, bar{name: name})
	}
	b := &l.bars[i]
	b.times = min(max(2*b.times, 1), mostBarred)
	long := time.Duration(b.times) * barredTime
	b.bytes, b.took, b.until, b.ops = bytes, took, now+long, l.ops+b.times*barredOps
	return long
}

// A plan that took disappointing times as long as was predicted in slowTimes all-reduces, or
// muchSlower times as long as that in the first, was made of hopes in vain. There are none
// then for doubtTime, and each time for twice as long, up to mostBarred times.
const (
	disappointing = 1.25
	doubtTime     = barredTime
)

// doubt says until when members are taken to receive no more than they were seen to.
type doubt struct {
	until time.Duration
	times uint64
}

// take notes how long all-reduces with a plan took, the latest last, and returns whether there
// are no hopes any more.
func (d *doubt) take(r running, took []time.Duration, now time.Duration) bool {
	bar := disappointing * float64(r.predicted)
	if r.predicted == 0 || now < d.until || float64(slices.Min(took)) <= bar || len(took) < slowTimes && float64(took[0]) < muchSlower*bar {
		return false
	}
	d.times = min(max(2*d.times, 1), mostBarred)
	d.until = now + time.Duration(d.times)*doubtTime
	return true
}

// barred returns the plans that have turned out to be no faster than the ring.
func (l *learner) barred(now time.Duration) (names []string) {
	for _, b := range l.bars {
		if ring := l.work(b.bytes, ringName); ring != nil && len(ring.took) >= ringTimes && float64(slices.Min(ring.took)) > leastGain*float64(b.took) {
			continue
		}
		if b.until > now || b.ops > l.ops {
			names = append(names, b.name)
		}
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
	first = first || l.again
	if !g.mesh.planned() || l.bytes == 0 || !urgent && !first && (!l.news || m.now < l.changed+l.calm) {
		return
	}
	if g.change != nil || g.mesh.draft.job != 0 {
		l.again = first // it looks when these are through
		return
	}
	l.again = false
	_, p, ok := m.problem(g, g.ring)
	if !ok {
		return
	}
	l.news, l.spent, l.looked = false, false, m.now
	if moved := l.moved(&p); moved || urgent || first {
		m.reviewPlans(g)
	}
}

// problem returns the members of g as its roster counts them and what is known of the
// ways between them; false: one of them is missing, or knows no plans.
func (m *Machine) problem(g *group, ring []wire.UUID) (ms []*client, p plan.Problem, ok bool) {
	p = plan.Problem{N: len(g.roster)}
	if p.N > plan.MaxSchemeMembers {
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
			switch {
			case i == k:
			case slices.Contains(c.place.unreached, o.uuid):
				p.Rates[i*len(ms)+k] = -1
			default:
				p.Rates[i*len(ms)+k] = c.link(o).mbps
			}
		}
	}
	p.Mbps = plan.Slowest(p.Rates, p.N)
	m.seen(ms, &p)
	g.learned.atLeast(&p, g.mesh.partial)
	p.Hopeful = m.now >= g.learned.doubt.until
	return ms, p, !slices.Contains(p.Ring, -1)
}
