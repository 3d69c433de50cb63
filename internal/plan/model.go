package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

const (
	// smallPart is the least part of the mean that is worth the frames to all others.
	smallPart = 1.0 / 64
	// partUnits is the sum of the weights, but for rounding.
	partUnits = 1 << 16
)

// model is what is assumed of a network: what each member can send and receive, what
// each pair can, and how long the ways are. Rates are in bytes per second.
type model struct {
	Problem
	up, down  []float64
	pair      []float64         // by from and to
	free      []bool            // as pair: what goes there is none of what was seen of members
	closed    []bool            // as pair: nothing goes there
	site      []int             // of each member; all 0: there are none
	out, in   []float64         // what was seen of sites; infinite: nothing
	wire      float64           // by how much longer the wire takes than the bytes need
	perSender float64           // ... for each that sends to one at a time
	passing   float64           // as passingOn
	over      [families]float64 // how many times as long as predicted schemes of a family took
}

// newModel returns nil if a delay is not known, or what a member can send or receive,
// and for more members than are planned for.
func newModel(p Problem) *model {
	if p.N > MostPlanned {
		return nil
	}
	return modelOf(p)
}

func modelOf(p Problem) *model {
	n := p.N
	if n < 3 || len(p.Ring) != n || len(p.Delay) != n*n || len(p.Rates) != n*n {
		return nil
	}
	m := &model{Problem: p, wire: wireExcess, perSender: pacedExcess, passing: passingOn, up: make([]float64, n), down: make([]float64, n), pair: make([]float64, n*n), free: make([]bool, n*n), closed: make([]bool, n*n)}
	for i := range n {
		for k := range n {
			if i == k {
				continue
			}
			if m.closed[i*n+k] = p.Rates[i*n+k] < 0; m.closed[i*n+k] {
				continue
			}
			if p.Delay[i*n+k] < 0 {
				return nil
			}
			if r := p.Rates[i*n+k]; r > 0 && !math.IsInf(r, 0) {
				m.pair[i*n+k] = r * 1e6 / 8
				m.up[i], m.down[k] = max(m.up[i], r*1e6/8), max(m.down[k], r*1e6/8)
			} else {
				m.free[i*n+k] = max(p.Delay[i*n+k], p.Delay[k*n+i]) < Far
			}
		}
	}
	m.add(p.Up, m.up)
	m.add(p.Down, m.down)
	m.site = make([]int, n)
	for s, members := range m.sites() {
		for _, i := range members {
			m.site[i] = s
		}
	}
	farOut, farIn := p.mostMeasured(func(i, k int) bool { return m.site[i] != m.site[k] })
	m.out = m.ofSites(p.Up, m.up, farOut, func(s Shown) []float64 { return s.Up })
	m.in = m.ofSites(p.Down, m.down, farIn, func(s Shown) []float64 { return s.Down })
	for i := range n {
		if m.up[i] == 0 || m.down[i] == 0 {
			return nil
		}
	}
	m.assume()
	m.compare()
	return m
}

// Far is the delay from which on a way is not near: connections to near members do not
// show what they give, and what was seen of a member does not have it.
const Far = time.Millisecond

// freeMbps is taken for ways between near members of which nothing is known.
const freeMbps = 1000

// add raises rates to what was seen.
func (m *model) add(seen, rates []float64) {
	for i := range rates {
		rates[i] = max(rates[i], bytesPerSecond(seen, i))
	}
}

// bytesPerSecond returns what was seen of member i; 0: nothing was.
func bytesPerSecond(seen []float64, i int) float64 { return mbpsOf(seen, i) * 1e6 / 8 }

// mbpsOf returns the same in Mbit/s, as seen has it.
func mbpsOf(seen []float64, i int) float64 {
	if i >= len(seen) || !(seen[i] > 0) || math.IsInf(seen[i], 0) {
		return 0
	}
	return seen[i]
}

// assume says what pairs carry of which no rate is known: what their ends do. Between
// sites it is what was seen there, because the paths between sites are what sums inside
// of sites spare: if they carry more after all, little is lost.
func (m *model) assume() {
	n := m.N
	for i := range n {
		for k := range n {
			at := i*n + k
			if m.free[at] {
				m.pair[at] = freeMbps * 1e6 / 8
			}
			if m.pair[at] == 0 && m.site[i] != m.site[k] && len(m.Seen) == n*n && m.Seen[at] > 0 && !math.IsInf(m.Seen[at], 0) {
				m.pair[at] = m.Seen[at] * 1e6 / 8
			}
			if m.pair[at] == 0 {
				m.pair[at] = min(m.up[i], m.down[k])
			}
		}
	}
}

// costs are seconds per byte of data, one for each resource: what members send, what
// they receive, what goes over each pair, what leaves each site, and what comes to it.
type costs []float64

func (m *model) costs() costs { return make(costs, 4*m.N+m.N*m.N) }

// of returns what a tree costs by itself, as if all data went along it.
func (m *model) of(t *Tree) costs {
	c := m.costs()
	m.each(t, func(r int, cost float64) { c[r] += cost })
	return c
}

// each tells what each transfer of a tree costs each resource.
func (m *model) each(t *Tree, costs func(r int, cost float64)) {
	for i := range m.N {
		if t.Up[i] >= 0 {
			m.moves(i, t.Up[i], costs)
			m.moves(t.Down[i], i, costs)
		}
	}
}

// moves tells what a transfer costs.
func (m *model) moves(from, to int, costs func(r int, cost float64)) {
	n := m.N
	costs(2*n+from*n+to, 1/m.pair[from*n+to])
	if m.free[from*n+to] {
		return
	}
	costs(from, 1/m.up[from])
	costs(n+to, 1/m.down[to])
	if a, b := m.site[from], m.site[to]; a != b {
		costs(2*n+n*n+a, 1/m.out[a])
		costs(3*n+n*n+b, 1/m.in[b])
	}
}

// Time on the wire is longer than the bytes need, by wireExcess, and for a member to which many send by
// pacedExcess for each of them. In large all-reduces members are paced: in tests/wan/contest, with hosts of 40
// Mbit/s that are 20 ms from each other and profile regional, they took 1.05 to 1.1 times as long as the bytes
// need along the ring, and 1.25 times directly with four members, 1.3 with six, 1.42 with eight.
const (
	wireExcess  = 0.1
	pacedExcess = 0.06
)

// passingOn is how long members wait for each other, in parts of a stripe, where what comes from one that is not
// near is passed on to another one. Without losses and queues they hardly do; in tests/wan/contest (report6,
// drawn42, drawn47) relays took 1.3 to 1.6 times as long as was predicted without it.
const passingOn = 0.4

// excess is by how much longer the wire takes than the bytes need, by resource. Where
// many send to one at a time, queues overflow, as far as they can send more than it can
// receive: with as much each as it can, by perSender for each of them. What sites share nobody paces: there it
// is exchangeExcess for each.
func (m *model) excess(trees []Tree) costs {
	n := m.N
	senders := make([]float64, n) // what they can send, in parts of what the member can receive
	seen := make([]bool, n*n)
	for i := range trees {
		if trees[i].Weight == 0 {
			continue
		}
		for k := range n {
			for _, e := range [][2]int{{k, trees[i].Up[k]}, {trees[i].Down[k], k}} {
				if e[0] >= 0 && e[1] >= 0 && !seen[e[0]*n+e[1]] && !m.free[e[0]*n+e[1]] {
					seen[e[0]*n+e[1]] = true
					senders[e[1]] += min(m.pair[e[0]*n+e[1]]/m.down[e[1]], 1)
				}
			}
		}
	}
	f := m.costs()
	for i := range f {
		f[i] = 1 + m.wire
	}
	for i := range n {
		f[n+i] = 1 + max(m.wire, m.perSender*senders[i])
		f[3*n+n*n+i] = 1 + max(m.wire, exchangeExcess*m.sendingSites(seen, i))
	}
	return f
}

// line returns what a scheme costs: what it was timed with, or what is predicted. Sums inside of sites may have
// been timed in a trial.
func (m *model) line(s *Scheme) Line {
	l := m.predicted(s)
	if t := m.timed(s); t != nil {
		return l.from(*t)
	}
	by := m.overOf(s)
	l.Delay, l.Byte = time.Duration(by*float64(l.Delay)), time.Duration(min(by*float64(l.Byte), math.MaxInt64/2))
	return l
}

// timed returns what a scheme took last; nil: it was not timed.
func (m *model) timed(s *Scheme) *Timed {
	for i, t := range slices.Backward(m.Timed) {
		if t.Scheme != nil && t.Took > 0 && t.Bytes > 0 && (t.Scheme.Name == s.Name || m.familyOf(s) == insideSites) && t.Scheme.like(s) {
			return &m.Timed[i]
		}
	}
	return nil
}

// from returns what was timed as a line: the delay is that of l, as far as it took so long.
func (l Line) from(t Timed) Line {
	took := t.settled()
	l.Delay = min(l.Delay, took/2)
	l.Byte = perMiB((took - l.Delay).Seconds() / float64(t.Bytes))
	return l
}

func (m *model) predicted(s *Scheme) Line {
	all, factor := m.load(s)
	l := Line{Byte: perMiB(all.most(factor))}
	for i := range s.Trees {
		if t := &s.Trees[i]; t.Weight > 0 {
			l.Delay = max(l.Delay, m.way(t.Up, false)+m.way(t.Down, true))
		}
	}
	// No more than a window of stripes is under way.
	l.Byte = max(l.Byte, perMiB(l.Delay.Seconds()/(Window*stripeBytes)))
	if m.passing > 0 && slices.ContainsFunc(s.Trees, m.passesOnFar) {
		l.Delay += time.Duration(m.passing * float64(l.Byte) * stripeBytes / (1 << 20))
	}
	return l
}

// passesOnFar reports whether a member passes on to one that is not near what comes from another such one.
func (m *model) passesOnFar(t Tree) bool {
	far := m.far
	for i := range m.N {
		if via := t.Up[i]; t.Weight > 0 && via >= 0 && t.Up[via] >= 0 && far(i, via) && far(via, t.Up[via]) {
			return true
		}
		if via := t.Down[i]; t.Weight > 0 && via >= 0 && t.Down[via] >= 0 && far(via, i) && far(t.Down[via], via) {
			return true
		}
	}
	return false
}

// family is what schemes have in common whose predictions have errors in common.
type family int

const (
	exchange    family = iota // all send to each other, or without sites some pass on
	insideSites               // sums inside of sites
	acrossSites               // others that pass on where there are sites: they use the ways that sites share
	families
)

func (m *model) familyOf(s *Scheme) family {
	switch {
	case slices.Max(m.site) == 0 || !slices.ContainsFunc(s.Trees, passesOn):
		return exchange
	case strings.HasPrefix(s.Name, sitesName) || s.Name == TrialName:
		return insideSites
	default:
		return acrossSites
	}
}

// overOf returns how many times as long as predicted a scheme is taken to take.
func (m *model) overOf(s *Scheme) float64 {
	f := m.familyOf(s)
	if f == acrossSites {
		return max(m.over[f], m.over[insideSites])
	}
	return m.over[f]
}

// passesOn reports whether a member passes on what another one has sent to it.
func passesOn(t Tree) bool {
	return slices.ContainsFunc(t.Up, func(to int) bool { return to >= 0 && t.Up[to] >= 0 })
}

// A prediction is at most mostOver times too good.
const mostOver = 4

// compare takes what plans took more than is predicted of them.
func (m *model) compare() {
	over := [families]float64{1, 1, 1}
	for _, t := range m.Timed {
		if t.Scheme == nil || t.Took <= 0 || t.Scheme.Check(m.N) != nil {
			continue
		}
		l := m.predicted(t.Scheme)
		f := m.familyOf(t.Scheme)
		over[f] = max(over[f], min(float64(t.settled())/float64(max(l.At(t.Bytes), 1)), mostOver))
	}
	m.over = over
}

// load returns what a scheme costs each resource.
func (m *model) load(s *Scheme) (all, factor costs) {
	var sum float64
	for i := range s.Trees {
		sum += float64(s.Trees[i].Weight)
	}
	all, factor = m.costs(), m.excess(s.Trees)
	for i := range s.Trees {
		if s.Trees[i].Weight == 0 {
			continue
		}
		part := float64(s.Trees[i].Weight) / sum
		m.each(&s.Trees[i], func(r int, c float64) { all[r] += float64(c * part) })
	}
	return all, factor
}

// dearest returns the resource that a scheme waits for.
func (m *model) dearest(s *Scheme) (at int) {
	all, factor := m.load(s)
	for i := range all {
		v, most := all[i]*factor[i], all[at]*factor[at]
		if v > most || i >= 2*m.N+m.N*m.N && v > most*(1-1e-6) { // a site rather than its members
			at = i
		}
	}
	return at
}

// ofPair reports whether a resource is what goes over a pair.
func (m *model) ofPair(r int) bool { return r >= 2*m.N && r < 2*m.N+m.N*m.N }

// slowest says for people which resource a scheme waits for.
func (m *model) slowest(s *Scheme) string {
	at := m.dearest(s)
	mbps := func(rate float64) string { return fmt.Sprintf("%.3g Mbit/s", rate*8/1e6) }
	switch n := m.N; {
	case at < n:
		return fmt.Sprintf("what member %d sends, %s", at, mbps(m.up[at]))
	case at < 2*n:
		return fmt.Sprintf("what member %d receives, %s", at-n, mbps(m.down[at-n]))
	case at >= 3*n+n*n:
		at -= 3*n + n*n
		return fmt.Sprintf("what comes to the site of member %d, %s", slices.Index(m.site, at), mbps(m.in[at]))
	case at >= 2*n+n*n:
		at -= 2*n + n*n
		return fmt.Sprintf("what leaves the site of member %d, %s", slices.Index(m.site, at), mbps(m.out[at]))
	default:
		at -= 2 * n
		return fmt.Sprintf("the way from member %d to %d, %s", at/n, at%n, mbps(m.pair[at]))
	}
}

func perMiB(seconds float64) time.Duration {
	return time.Duration(min(seconds*(1<<20)*float64(time.Second), math.MaxInt64/2))
}

// most returns the dearest resource's.
func (c costs) most(factor costs) (most float64) {
	for i, v := range c {
		most = max(most, v*factor[i])
	}
	return most
}

// way returns the longest way of a tree.
func (m *model) way(next []int, down bool) (longest time.Duration) {
	for i := range next {
		var d time.Duration
		for at := i; next[at] >= 0; at = next[at] {
			if from, to := at, next[at]; down {
				d += m.Delay[to*m.N+from]
			} else {
				d += m.Delay[from*m.N+to]
			}
		}
		longest = max(longest, d)
	}
	return longest
}

// ring returns what the ring costs.
func (m *model) ring() Line {
	slowest := math.Inf(1)
	for i, from := range m.Ring {
		to := m.Ring[(i+1)%m.N]
		slowest = min(slowest, m.pair[from*m.N+to])
		if !m.free[from*m.N+to] {
			slowest = min(slowest, m.up[from], m.down[to])
		}
	}
	each := 2 * float64(m.N-1) / float64(m.N) / slowest
	l := Line{Delay: m.alongRing(), Byte: perMiB(each * (1 + m.wire))}
	for _, t := range m.Timed {
		if t.Scheme == nil && t.Took > 0 && t.Bytes > 0 {
			l = l.from(t)
		}
	}
	return l
}

// schemes returns the plans that are compared with the ring, the simpler ones first.
func (m *model) schemes() []*Scheme {
	var list []*Scheme
	var groups [][]Tree
	for i := range m.N {
		if m.open(i) {
			groups = append(groups, []Tree{star(m.N, i)})
		}
	}
	if len(groups) > 0 {
		s := m.shared("direct", groups)
		for i := range s.Trees {
			if len(s.Trees) != m.N || s.Trees[i].Weight != s.Trees[0].Weight {
				s.Name = "shares"
			}
		}
		list = append(list, s)
	}
	list = append(list, m.withSites()...)
	for _, more := range []func() []*Scheme{m.behind, func() []*Scheme { return m.relayed(list) }} {
		if !slices.ContainsFunc(list, m.least) && !m.stopped() {
			list = append(list, more()...)
		}
	}
	return list
}

// bound is what bytes cost at least, whatever the plan: a member sends all data once and
// receives it once, and all of them together do it as often as in a ring.
func (m *model) bound() float64 {
	n := float64(m.N)
	least, up, down := 0.0, 0.0, 0.0
	for i := range m.N {
		least = max(least, 1/m.up[i], 1/m.down[i])
		up, down = up+m.up[i], down+m.down[i]
	}
	return max(least, 2*(n-1)/up, 2*(n-1)/down)
}

// least reports whether a scheme costs as little as can be, but for a little.
func (m *model) least(s *Scheme) bool {
	if slices.Contains(m.free, true) {
		return false // what goes there counts for nobody
	}
	return float64(m.predicted(s).Byte) <= 1.02*float64(perMiB(m.bound()*(1+m.wire)))
}

// passes reports whether there is a way for every transfer of trees.
func (m *model) passes(trees []Tree) bool {
	for i := range trees {
		t := &trees[i]
		for k := range m.N {
			if t.Up[k] >= 0 && (m.closed[k*m.N+t.Up[k]] || m.closed[t.Down[k]*m.N+k]) {
				return false
			}
		}
	}
	return true
}

// shared gives the groups of trees the parts with which all of it costs least. Where many
// send to one depends on who has a part: it is tried with fewer of them as well.
func (m *model) shared(name string, groups [][]Tree) *Scheme {
	all := m.costs()
	columns := make([][]load, len(groups))
	for g := range groups {
		columns[g] = m.column(groups[g], all)
	}
	order := make([]int, len(groups)) // those with the largest parts first
	for g := range order {
		order[g] = g
	}
	try := func(k int, evenly bool) (even, first *Scheme, b balanced) {
		var trees []Tree
		some := make([][]load, k)
		for i, g := range order[:k] {
			trees = append(trees, groups[g]...)
			some[i] = columns[g]
		}
		b = m.balance(some, m.excess(trees), evenly)
		scheme := func(part []float64) *Scheme {
			s, of := &Scheme{Name: name}, make([]float64, len(groups))
			for i, g := range order[:k] {
				if part[i]*float64(k) >= smallPart {
					of[g] = part[i]
				}
			}
			for g, list := range groups {
				for _, t := range list {
					t.Weight = uint32(math.Round(of[g] / float64(len(list)) * partUnits))
					s.Trees = append(s.Trees, t)
				}
			}
			return s
		}
		return scheme(b.even), scheme(b.part), b
	}
	best, first, b := try(len(groups), true)
	slices.SortStableFunc(order, func(g, h int) int { return cmp.Compare(b.part[h]+b.even[h], b.part[g]+b.even[g]) })
	better := func(s *Scheme) bool { return float64(m.predicted(s).Byte) < evenWorth*float64(m.predicted(best).Byte) }
	if better(first) {
		best = first
	}
	few := 0
	for k := len(groups) * 2 / 3; k > 0 && !m.least(best) && m.N <= mostThorough && !m.stopped(); k = k * 2 / 3 {
		if _, s, _ := try(k, false); better(s) {
			best, few = s, k
		}
	}
	if few > 0 {
		if s, _, _ := try(few, true); m.predicted(s).Byte <= m.predicted(best).Byte+m.predicted(best).Byte/50 {
			best = s
		}
	}
	return best
}

// mostThorough is the size of the largest group for which all that can be tried is.
const mostThorough = 32

// evenWorth is how much less another scheme has to cost than the first one, which is even.
const evenWorth = 0.98
