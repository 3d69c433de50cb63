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
	// siteGap is how much longer the ways between sites are than those inside.
	siteGap = 3
	// leastDelay is taken for shorter ones: on one machine there are no sites.
	leastDelay = 100 * time.Microsecond
	// smallPart is the least part of the mean that is worth the frames to all others.
	smallPart = 1.0 / 64
	// partUnits is the sum of the weights, but for rounding.
	partUnits = 1 << 16
)

// model is what is assumed of a network: what each member can send and receive, what
// each pair can, and how long the ways are. Rates are in bytes per second.
type model struct {
	Problem
	up, down []float64
	pair     []float64  // by from and to
	free     []bool     // as pair: what goes there is none of what was seen of members
	closed   []bool     // as pair: nothing goes there
	site     []int      // of each member; all 0: there are none
	out, in  []float64  // what was seen of sites; infinite: nothing
	over     [2]float64 // by how much more plans of a kind took than was predicted
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
	m := &model{Problem: p, up: make([]float64, n), down: make([]float64, n), pair: make([]float64, n*n), free: make([]bool, n*n), closed: make([]bool, n*n)}
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
	m.out, m.in = m.ofSites(p.Up, m.up), m.ofSites(p.Down, m.down)
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

// ofSites returns what was seen of sites: the sum of what was seen of their members, as
// these may share a way out, and use only one of them for it. Members that have shown
// nothing, since what they had was for near ones, have what others of their site have.
func (m *model) ofSites(seen, rates []float64) []float64 {
	sum := slices.Repeat([]float64{math.Inf(1)}, m.N)
	if slices.Max(m.site) == 0 {
		return sum
	}
	most, total := make([]float64, m.N), make([]float64, m.N)
	for i, s := range m.site {
		most[s] = max(most[s], rates[i])
		if i < len(seen) && seen[i] > 0 && !math.IsInf(seen[i], 0) {
			total[s] += seen[i] * 1e6 / 8
		}
	}
	for i, s := range m.site {
		if rates[i] == 0 {
			rates[i] = most[s]
		}
		if total[s] > 0 {
			sum[s] = total[s]
		}
	}
	return sum
}

// add raises rates to what was seen.
func (m *model) add(seen, rates []float64) {
	for i, r := range seen {
		if i < len(rates) && r > 0 && !math.IsInf(r, 0) {
			rates[i] = max(rates[i], r*1e6/8)
		}
	}
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

// excess is by how much longer the wire takes than the bytes need, by resource. Where
// many send to one at a time, queues overflow, as far as they can send more than it can
// receive: with as much each as it can, by exchangeExcess for each of them.
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
		f[i] = 1 + ringExcess
	}
	for i := range n {
		f[n+i] = 1 + max(ringExcess, exchangeExcess*senders[i])
	}
	return f
}

// line returns what a scheme costs: what it was timed with, or what is predicted.
func (m *model) line(s *Scheme) Line {
	l := m.predicted(s)
	for _, t := range m.Timed {
		if t.Scheme != nil && t.Took > 0 && t.Bytes > 0 && t.Scheme.Same(s) {
			return l.from(t)
		}
	}
	by := m.over[kindOf(s)]
	l.Delay, l.Byte = time.Duration(by*float64(l.Delay)), time.Duration(min(by*float64(l.Byte), math.MaxInt64/2))
	return l
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
	return l
}

// Exchanges, in which all send to each other, and sums inside of sites have errors of
// their own in what is predicted of them.
func kindOf(s *Scheme) int {
	if strings.HasPrefix(s.Name, "sites") || s.Name == TrialName && slices.ContainsFunc(s.Trees, passesOn) {
		return 1
	}
	return 0
}

// passesOn reports whether a member passes on what another one has sent to it.
func passesOn(t Tree) bool {
	return slices.ContainsFunc(t.Up, func(to int) bool { return to >= 0 && t.Up[to] >= 0 })
}

// A prediction is at most mostOver times too good.
const mostOver = 4

// compare takes what plans took more than is predicted of them.
func (m *model) compare() {
	over := [2]float64{1, 1}
	for _, t := range m.Timed {
		if t.Scheme == nil || t.Took <= 0 || t.Scheme.Check(m.N) != nil {
			continue
		}
		l := m.predicted(t.Scheme)
		k := kindOf(t.Scheme)
		over[k] = max(over[k], min(float64(t.settled())/float64(max(l.At(t.Bytes), 1)), mostOver))
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

// slowest says for people which resource a scheme waits for.
func (m *model) slowest(s *Scheme) string {
	all, factor := m.load(s)
	at := 0
	for i := range all {
		v, most := all[i]*factor[i], all[at]*factor[at]
		if v > most || i >= 2*m.N+m.N*m.N && v > most*(1-1e-6) { // a site rather than its members
			at = i
		}
	}
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
	l := Line{Delay: m.alongRing(), Byte: perMiB(each * (1 + ringExcess))}
	for _, t := range m.Timed {
		if t.Scheme == nil && t.Took > 0 && t.Bytes > 0 {
			l = l.from(t)
		}
	}
	return l
}

// schemes returns the plans that are compared with the ring.
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
	if sites := m.sites(); len(sites) > 1 {
		groups, name := m.throughSites(sites), fmt.Sprintf("sites %d", len(sites))
		groups = slices.DeleteFunc(groups, func(trees []Tree) bool { return !m.passes(trees) })
		if len(groups) > 0 {
			list = append(list, m.shared(name, groups))
		}
	}
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
	return float64(m.predicted(s).Byte) <= 1.02*float64(perMiB(m.bound()*(1+ringExcess)))
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

// sites returns the members in groups that are near to each other, and nil if there is
// no gap between the ways inside of groups and those between them. Ways are joined from
// the shortest on; the gap is where the next one is siteGap times as long or more.
func (m *model) sites() [][]int {
	type link struct {
		d    time.Duration
		i, k int
	}
	var links []link
	for i := range m.N {
		for k := range i {
			if m.Delay[i*m.N+k] < 0 && m.Delay[k*m.N+i] < 0 {
				continue // there is no way
			}
			links = append(links, link{max(m.Delay[i*m.N+k], m.Delay[k*m.N+i], leastDelay), k, i})
		}
	}
	slices.SortFunc(links, func(a, b link) int {
		return cmp.Or(cmp.Compare(a.d, b.d), cmp.Compare(a.i, b.i), cmp.Compare(a.k, b.k))
	})
	of := make([]int, m.N) // the least member of each one's group
	for i := range of {
		of[i] = i
	}
	gap, last := float64(siteGap), time.Duration(0)
	var best []int
	for _, l := range links {
		a, b := min(of[l.i], of[l.k]), max(of[l.i], of[l.k])
		if a == b {
			continue
		}
		if ratio := float64(l.d) / float64(max(last, 1)); last > 0 && ratio >= gap {
			gap, best = ratio, slices.Clone(of)
		}
		for i := range of {
			if of[i] == b {
				of[i] = a
			}
		}
		last = l.d
	}
	if best == nil {
		return nil
	}
	index, list := map[int]int{}, [][]int{}
	for i, g := range best {
		if _, ok := index[g]; !ok {
			index[g] = len(list)
			list = append(list, nil)
		}
		list[index[g]] = append(list[index[g]], i)
	}
	return list
}

// throughSites returns trees for each member: in every other site one member sums up,
// sends that to the owner, and spreads the result. A member has so many trees that all
// pairs between two sites carry the same.
func (m *model) throughSites(sites [][]int) [][]Tree {
	most := 0
	for _, s := range sites {
		most = max(most, len(s))
	}
	groups := make([][]Tree, m.N)
	for _, home := range sites {
		for at, owner := range home {
			for turn := range most {
				up := make([]int, m.N)
				for _, s := range sites {
					agent := s[(at+turn)%len(s)]
					if s[0] == home[0] {
						agent = owner
					}
					for _, i := range s {
						up[i] = agent
					}
					up[agent] = owner
				}
				up[owner] = -1
				groups[owner] = append(groups[owner], Tree{Weight: 1, Up: up, Down: up})
			}
		}
	}
	return groups
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
