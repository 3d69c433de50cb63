package plan

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Line is what a plan of an all-reduce costs, without the votes: a time for the way,
// and one for each byte of data.
type Line struct {
	Delay time.Duration
	Byte  time.Duration // of 1,048,576 bytes
}

// At returns how long so many bytes take.
func (l Line) At(bytes uint64) time.Duration {
	return l.Delay + time.Duration(float64(bytes)/(1<<20)*float64(l.Byte))
}

// Option is a plan for all-reduces of From bytes and more, up to the next option.
type Option struct {
	From   uint64
	Scheme *Scheme // nil: the ring
	Line
	Slowest string // what it waits for, for people; "": not known
}

// Options are the plans for large all-reduces, the same on all members. From rises.
type Options struct {
	Ring Line // for comparison
	List []Option
}

// For returns the option for an all-reduce of so many bytes; nil: the ring.
func (o *Options) For(bytes uint64) *Option {
	if o == nil {
		return nil
	}
	for i := len(o.List) - 1; i >= 0; i-- {
		if at := &o.List[i]; at.From <= bytes {
			if at.Scheme == nil {
				return nil
			}
			return at
		}
	}
	return nil
}

// Why says what decides, for people: what is predicted for so many bytes.
func (o *Options) Why(at *Option, bytes uint64) string {
	if at.Scheme != nil && at.Scheme.Name == TrialName && at.Slowest == "" {
		return "members show what they can send and receive: the next plan is made of it"
	}
	why := fmt.Sprintf("predicted %v, %v along the ring", round(at.At(bytes)), round(o.Ring.At(bytes)))
	if at.Slowest != "" {
		why += "; the slowest is " + at.Slowest
	}
	return why
}

func round(d time.Duration) time.Duration {
	if d >= time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(100 * time.Microsecond)
}

const (
	// leastSpeedup is how much faster than the ring a plan for large all-reduces has to
	// be: the ring needs no connections beside its own.
	leastSpeedup = 1.1
	// worthOther is how much less of the time a plan has to take than one that is simpler.
	worthOther = 0.97
	// LeastLarge is the size of the least operation that is large: its plans are made of what
	// members have shown. Those of smaller ones are of delays and little else, and they may
	// begin before the vote, with the ring or the direct exchange.
	LeastLarge = 1 << 20
	// mostLarge is the largest size that is compared: larger ones have the same plans.
	mostLarge = 1 << 34
)

// MostPlanned is the size of the largest group that Large plans for. The search takes some
// 10 ms with 32 members, and some 100 with 64, and twice that with hopes.
const MostPlanned = 64

// Large compares the ring with other plans for large all-reduces: the direct exchange in
// unequal parts, sums inside of sites, slow members behind others, and trees in which
// members pass on what others cannot send. Delays of all ways have to be known, and what
// each member can send and receive.
//
// Hopes are followed as far as the plan is bearable if they are in vain.
func Large(p Problem) Options {
	o := large(p)
	if !p.Hopes() {
		return o
	}
	m, hoped := newModel(p), large(p.hoped())
	if m == nil {
		return o
	}
	cost := func(at *Option) Line {
		if at == nil {
			return m.ring()
		}
		return m.line(at.Scheme)
	}
	for size := uint64(LeastLarge); size <= mostLarge; size *= 2 {
		is, becomes := cost(o.For(size)), cost(hoped.For(size))
		if float64(becomes.At(size)) > bearable*float64(is.At(size)) {
			return o
		}
	}
	return hoped
}

// bearable is how much longer than the best plan one of hopes may take if these are in vain.
const bearable = 1.5

// hope is how much more than they were seen to members may receive, and the least is what
// they send: ways into a home have several times the rate of those out of it, and the ways of
// others have the same.
const hope = 2

// Hopes reports whether a member may receive more than it was seen to.
func (p Problem) Hopes() bool { return !slices.Equal(p.hoped().Down, p.Down) }

// hoped returns p with what members may receive.
func (p Problem) hoped() Problem {
	if !p.Hopeful {
		return p
	}
	p.Down, p.Shown = slices.Clone(p.Down), slices.Clone(p.Shown)
	for k := range p.Shown {
		p.Shown[k].Down = slices.Clone(p.Shown[k].Down)
	}
	for i, v := range p.Down {
		if v > 0 && i < len(p.Up) && v < slices.Max(p.Up) && !p.measuredTo(i) { // as much as any sends is enough
			p.Down[i] = max(hope*v, p.Up[i])
			for _, shown := range p.Shown {
				if i < len(shown.Down) {
					shown.Down[i] *= p.Down[i] / v
				}
			}
		}
	}
	return p
}

// measuredTo reports whether all ways to a member were measured: what comes over the best of them it
// receives, and nobody hopes for more.
func (p *Problem) measuredTo(i int) bool {
	if len(p.Rates) != p.N*p.N {
		return false
	}
	for from := range p.N {
		if from != i && p.Rates[from*p.N+i] == 0 {
			return false
		}
	}
	return true
}

// Of measured ways that give less than wayShare of what both of their ends do on other ways, more than
// fewWays in all have to be to say that ways are what limits.
const (
	wayShare = 0.7
	fewWays  = 0.25
)

// WaysLimit reports whether many ways that are not near were measured to give less than their ends do on
// other ways. What a member gives on all of its ways together is more than was measured then, or, where
// members share a way out, less.
func (p *Problem) WaysLimit() bool {
	n := p.N
	if len(p.Rates) != n*n || len(p.Delay) != n*n {
		return false
	}
	up, down := p.mostMeasured(p.far)
	far, less := 0, 0
	for at, r := range p.Rates {
		if r > 0 && p.far(at/n, at%n) {
			far++
			if r < wayShare*min(up[at/n], down[at%n]) {
				less++
			}
		}
	}
	return float64(less) > fewWays*float64(far)
}

// mostMeasured returns the most that was measured of each member on the ways that count, in Mbit/s, from it and
// to it; 0: nothing was.
func (p *Problem) mostMeasured(counts func(from, to int) bool) (up, down []float64) {
	up, down = make([]float64, p.N), make([]float64, p.N)
	for at, r := range p.Rates {
		if from, to := at/p.N, at%p.N; r > 0 && !math.IsInf(r, 0) && counts(from, to) {
			up[from], down[to] = max(up[from], r), max(down[to], r)
		}
	}
	return up, down
}

// far reports whether a way is not near.
func (p *Problem) far(from, to int) bool { return p.Delay[from*p.N+to] >= Far }

func large(p Problem) (o Options) {
	m := newModel(p)
	if m == nil {
		return o
	}
	ring := m.ring()
	o.Ring = ring
	type candidate struct {
		Option
		timed bool
	}
	var found []candidate
	timed := false
	look := func(s *Scheme) {
		c := candidate{Option{Scheme: s, Line: m.line(s), Slowest: m.slowest(s)}, m.timed(s) != nil}
		found, timed = append(found, c), timed || c.timed
	}
	schemes := m.schemes()
	for _, s := range schemes {
		if s.Check(p.N) == nil { // weights are rounded: all may have become nothing
			look(s)
		}
	}
	predicted := len(found)
	along := slices.ContainsFunc(p.Timed, func(t Timed) bool { return t.Scheme == nil })
	for _, s := range m.others(schemes) {
		look(s)
	}
	// The best of many predictions is too good. What has been timed is left for what is better by more.
	cost := func(c candidate, size uint64) float64 {
		if timed && !c.timed {
			return steadyGain * float64(c.At(size))
		}
		return float64(c.At(size))
	}
	for size := uint64(LeastLarge); size <= mostLarge; size *= 2 {
		best := candidate{Option: Option{Line: ring}}
		for i, c := range found {
			if i >= predicted && best.Scheme == nil {
				break // what was timed is in place of a plan, and not of the ring, which may have to be timed yet
			}
			gain := leastSpeedup
			if c.timed && !along {
				gain = 1 // both predictions of plans and that of the ring are worth less than a time
			}
			if gain*float64(c.At(size)) <= float64(ring.At(size)) && (best.Scheme == nil || cost(c, size) < worthOther*cost(best, size)) {
				best = c
			}
		}
		best.From = size
		if n := len(o.List); n == 0 && best.Scheme != nil || n > 0 && o.List[n-1].Scheme != best.Scheme {
			o.List = append(o.List, best.Option)
		}
	}
	return o
}

// others returns the schemes that were timed, and are none of list whose times are known.
func (m *model) others(list []*Scheme) (timed []*Scheme) {
	for _, t := range slices.Backward(m.Timed) {
		s := t.Scheme
		known := func(o *Scheme) bool { return o.like(s) && m.timed(o) != nil }
		if s != nil && t.Took > 0 && s.Check(m.N) == nil && m.passes(s.Trees) && !slices.ContainsFunc(slices.Concat(list, timed), known) {
			timed = append(timed, s)
		}
	}
	return timed
}

// How much faster other plans have to be than those in force: TimedGain if both were timed more than once,
// and otherwise steadyGain.
const (
	steadyGain = 1.15
	TimedGain  = 1.05
)

// Steady returns fresh if all-reduces of so many bytes are predicted to be faster with it
// by steadyGain than with the plans in force, and those otherwise: what is known of a network moves
// all the time, and plans do not. Of two plans that were both timed more than once the fresh one has to be
// faster by TimedGain only; the ring always by steadyGain.
func Steady(p Problem, last, fresh Options, bytes uint64) Options {
	m := newModel(p.hoped())
	if m == nil {
		return last
	}
	is, becomes, gain := m.ring(), m.ring(), steadyGain
	at, next := last.For(bytes), fresh.For(bytes)
	if at != nil {
		if at.Scheme.Check(p.N) != nil || !m.passes(at.Scheme.Trees) {
			return fresh
		}
		is = m.line(at.Scheme)
	}
	if next != nil {
		becomes = m.line(next.Scheme)
	}
	if at != nil && next != nil && m.timedOften(at.Scheme) && m.timedOften(next.Scheme) {
		gain = TimedGain
	}
	if float64(becomes.At(bytes))*gain <= float64(is.At(bytes)) {
		return fresh
	}
	return last
}

// timedOften reports whether a scheme was timed more than once.
func (m *model) timedOften(s *Scheme) bool {
	t := m.timed(s)
	return t != nil && t.Often
}

// Without returns o without the plans of these names.
func (o Options) Without(names []string) Options {
	if len(names) == 0 {
		return o
	}
	list := o.List
	o.List = nil
	for _, at := range list {
		if at.Scheme != nil && slices.Contains(names, at.Scheme.Name) {
			at.Scheme, at.Line, at.Slowest = nil, o.Ring, ""
		}
		if n := len(o.List); n == 0 && at.Scheme != nil || n > 0 && o.List[n-1].Scheme != at.Scheme {
			o.List = append(o.List, at)
		}
	}
	return o
}

// TrialName is that of a plan that is in force for up to three all-reduces, and stays if it has
// turned out to be fast.
const TrialName = "a trial"

// LeastTrial and MostTrial bound the bytes of an all-reduce that tries a plan. Smaller ones that are
// large do in groups whose members are not all connected with each other, and where the ring is far
// slower than its members are.
const (
	LeastTrial = 2 << 20
	MostTrial  = 64 << 20
	// mostAround is how many sites a trial goes around: the way is longer with each.
	mostAround = 4
)

// Trial returns a plan for an all-reduce in which all members show what they can send and
// receive, when nothing is known but how far they are from each other: the direct exchange in
// equal parts, or, as ways between sites may be shared, sums inside of them: through sites, or
// around a few. A ring shows little of it, as all wait for its slowest link, and in the order in
// which members came that may be a bad one. bytes are those of the all-reduces that follow, and took is how long
// these have taken along the ring; 0: not known. Where there is no way between two members, another one passes
// on what they send to each other. No members, or a delay that is not known: there is no trial.
func Trial(p Problem, bytes uint64, took time.Duration) (o Options) {
	n := p.N
	if n < 3 || n > MostPlanned || len(p.Delay) != n*n {
		return o
	}
	m := &model{Problem: p, closed: make([]bool, n*n)}
	for at, d := range p.Delay {
		m.closed[at] = at < len(p.Rates) && p.Rates[at] < 0
		if at/n != at%n && d < 0 && !m.closed[at] {
			return o
		}
	}
	s := &Scheme{Name: TrialName}
	switch sites := m.sites(); {
	case len(sites) > mostAround, len(sites) == 2:
		s.Trees = equally(m.throughSites(sites, few(sites)))
	case len(sites) > 2:
		s.Trees = equally(m.aroundSites(sites))
	}
	if len(s.Trees) == 0 || !m.passes(s.Trees) {
		s.Trees = m.aroundClosed()
	}
	if s.Check(n) != nil || m.reach(s) > mostWays {
		return o
	}
	if took > 0 {
		o.Ring.Byte = time.Duration(float64(took) / (float64(bytes) / (1 << 20)))
	}
	from := uint64(LeastTrial)
	if bytes > 0 {
		from = min(from, bytes)
	}
	o.List = []Option{{From: from, Scheme: s, Line: o.Ring}, {From: MostTrial + 1, Line: o.Ring}}
	return o
}

// RingAtBest returns how long an all-reduce of so many bytes takes along the ring if each link gives what its
// ends have: links of which little was asked have shown little. What was measured of a link bounds it. Of members
// that are near to others little may have been asked, too: they are taken for no less than half of all members have
// shown. 0: not known what members have.
func RingAtBest(p Problem, bytes uint64) time.Duration {
	m := newModel(p)
	if m == nil {
		return 0
	}
	// Near ways say nothing of what is not near.
	up, down := p.mostMeasured(p.far)
	for i := range m.N {
		up[i], down[i] = max(up[i], mbpsOf(p.Up, i)), max(down[i], mbpsOf(p.Down, i))
	}
	line := func(rates []float64, i int) float64 {
		for k, s := range m.site {
			if k != i && s == m.site[i] && slices.Max(m.site) > 0 {
				return max(rates[i], slices.Sorted(slices.Values(rates))[m.N/2])
			}
		}
		return rates[i]
	}
	slowest := math.Inf(1)
	for i, from := range m.Ring {
		to := m.Ring[(i+1)%m.N]
		at := from*m.N + to
		if r := p.Rates[at]; r > 0 && !math.IsInf(r, 0) {
			slowest = min(slowest, r)
		} else if !m.free[at] {
			slowest = min(slowest, line(up, from), line(down, to))
		}
	}
	if slowest == 0 {
		return 0
	}
	each := 2 * float64(m.N-1) / float64(m.N) * 8 / 1e6 / slowest
	return (Line{Delay: m.alongRing(), Byte: perMiB(each * (1 + wireExcess))}).At(bytes)
}

// RingRate returns what each link of a ring of n gave at least, in Mbit/s, if bytes took so
// long along it.
func RingRate(n int, bytes uint64, took time.Duration) float64 {
	if n < 2 || took <= 0 {
		return 0
	}
	return 2 * float64(n-1) / float64(n) * float64(bytes) * 8 / 1e6 / took.Seconds() * (1 + wireExcess)
}
