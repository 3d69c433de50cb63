package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// mostOwned bounds the members of a scheme for small all-reduces times its trees: all
	// of it goes to every member.
	mostOwned = 8192
	// mostWays bounds how many others a member is connected with for the sake of a plan.
	mostWays = 128
	// frameTime is what a frame costs its sender or receiver beside its bytes, and
	// frameBytes is what it has beside its data on the wire, acknowledgements included.
	frameTime  = 100 * time.Microsecond
	frameBytes = 200
	// smallSpeedup is how much faster than the ring, or than the direct exchange, a plan
	// for small all-reduces has to be.
	smallSpeedup = 1.1
)

// MostMeshed is the size of the largest group whose members are all connected with each
// other.
const MostMeshed = 17

// Candidate is a plan that was compared, and what is predicted of it.
type Candidate struct {
	Name string
	Line
}

// Compared returns the plans that Small or Large compares for so many bytes, the fastest
// first; direct as there.
func Compared(p Problem, direct bool, bytes uint64) (list []Candidate) {
	if bytes < LeastLarge {
		m := newSmall(p)
		if m == nil {
			return nil
		}
		list = append(list, Candidate{"ring", m.frames(nil, m.ring())})
		schemes := m.few()
		if direct {
			schemes = append(schemes, Direct(p.N, nil))
		}
		for _, s := range schemes {
			list = append(list, Candidate{s.Name, m.frames(s, m.predicted(s))})
		}
	} else {
		m := newModel(p)
		if m == nil {
			return nil
		}
		list = append(list, Candidate{"ring", m.ring()})
		for _, s := range m.schemes() {
			list = append(list, Candidate{s.Name, m.line(s)})
		}
	}
	slices.SortStableFunc(list, func(a, b Candidate) int { return cmp.Compare(a.At(bytes), b.At(bytes)) })
	return list
}

// Bound returns what so many bytes take whatever the plan, without delays: 0 if that is
// not known.
func Bound(p Problem, bytes uint64) time.Duration {
	m := newModel(p)
	if m == nil || slices.Contains(m.free, true) {
		return 0
	}
	return Line{Byte: perMiB(m.bound())}.At(bytes)
}

// smallSizes are those at which plans for small all-reduces are compared.
var smallSizes = []uint64{64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10}

// Small compares the ring, and with direct the exchange between all, with plans for small
// all-reduces, which are of hops and little else: stars, in which some members own a part
// and have connections with all; grids, in which sums go along rows and then between
// them, or inside of sites first; and trees of few children. Delays of all ways have to be
// known; rates that are not are assumed. What Small returns is for sizes below those of
// Large, and below LeastTrial where nothing is known of these.
func Small(p Problem, direct bool) (o Options) {
	m := newSmall(p)
	if m == nil {
		return o
	}
	base := []Line{m.frames(nil, m.ring())}
	if direct {
		s := Direct(p.N, nil)
		base = append(base, m.frames(s, m.predicted(s)))
	}
	o.Ring = base[0]
	var found []Option
	for _, s := range m.few() {
		found = append(found, Option{Scheme: s, Line: m.frames(s, m.predicted(s))})
	}
	for i, size := range smallSizes {
		least := base[0].careful(size)
		for _, l := range base {
			least = min(least, l.careful(size))
		}
		best := Option{From: size, Line: o.Ring}
		if i == 0 {
			best.From = 0
		}
		for _, f := range found {
			t := f.careful(size)
			if t*smallSpeedup <= least && least-t >= leastGain.Seconds() && (best.Scheme == nil || t < best.careful(size)) {
				best.Scheme, best.Line = f.Scheme, f.Line
			}
		}
		if n := len(o.List); n == 0 && best.Scheme != nil || n > 0 && o.List[n-1].Scheme != best.Scheme {
			o.List = append(o.List, best)
		}
	}
	for i := range o.List {
		if at := &o.List[i]; at.Scheme != nil && at.Line.Byte > 0 && float64(at.From)/(1<<20)*float64(at.Line.Byte) > float64(at.Line.Delay) {
			at.Slowest = m.slowest(at.Scheme)
		}
	}
	if n := len(o.List); n > 0 && o.List[n-1].Scheme != nil {
		o.List = append(o.List, Option{From: LeastTrial, Line: o.Ring})
	}
	return o
}

// careful is how long so many bytes take in seconds, where rates, of which little is known,
// are taken for less.
func (l Line) careful(bytes uint64) float64 {
	return l.Delay.Seconds() + float64(bytes)/(1<<20)*l.Byte.Seconds()/caution
}

// newSmall returns a model in which members have what is assumed where nothing is known.
func newSmall(p Problem) *model {
	n := p.N
	if n < 3 || n > MaxSchemeMembers || len(p.Delay) != n*n {
		return nil
	}
	if len(p.Rates) != n*n {
		p.Rates = make([]float64, n*n)
	}
	mbps := p.Mbps
	if !(mbps > 0) || math.IsInf(mbps, 0) {
		mbps = assumedMbps
	}
	p.Up, p.Down = slices.Clone(p.Up), slices.Clone(p.Down)
	p.Timed = nil
	p.Up, p.Down = append(p.Up, make([]float64, n-min(n, len(p.Up)))...), append(p.Down, make([]float64, n-min(n, len(p.Down)))...)
	for i := range n {
		up, down := p.Up[i], p.Down[i]
		for k := range n {
			if i != k {
				up, down = max(up, p.Rates[i*n+k]), max(down, p.Rates[k*n+i])
			}
		}
		if !(up > 0) {
			p.Up[i] = mbps
		}
		if !(down > 0) {
			p.Down[i] = mbps
		}
	}
	m := modelOf(p)
	if m != nil {
		m.wire, m.perSender, m.passing = ringExcess, exchangeExcess, 0
	}
	return m
}

// frames adds to what a scheme, nil: the ring, costs what its frames do, wherever there are
// most, and that few bytes are sent on when all of them have come.
func (m *model) frames(s *Scheme, l Line) Line {
	each := func(i int) float64 {
		return frameTime.Seconds() + frameBytes/min(m.up[i], m.down[i])
	}
	most := 0.0
	if s == nil {
		for i := range m.N {
			most = max(most, 4*float64(m.N-1)*each(i))
		}
	} else {
		list := make([]int, m.N)
		var sum, again float64
		for i := range s.Trees {
			sum += float64(s.Trees[i].Weight)
		}
		for i := range s.Trees {
			t := &s.Trees[i]
			if t.Weight == 0 {
				continue
			}
			slowest := math.Inf(1)
			for k := range m.N {
				slowest = min(slowest, m.up[k], m.down[k])
				if t.Up[k] >= 0 {
					for _, at := range []int{k, t.Up[k], k, t.Down[k]} {
						list[at]++
					}
				}
			}
			again = max(again, float64(t.hops()-1)*float64(t.Weight)/sum/slowest)
		}
		l.Byte += perMiB(again)
		for i, n := range list {
			most = max(most, float64(n)*each(i))
		}
	}
	l.Delay += time.Duration(most * float64(time.Second))
	return l
}

// hops is of how many steps the longest way to the owner and back is.
func (t *Tree) hops() (sum int) {
	for _, next := range [][]int{t.Up, t.Down} {
		most := 0
		for i := range next {
			n := 0
			for at := i; next[at] >= 0; at = next[at] {
				n++
			}
			most = max(most, n)
		}
		sum += most
	}
	return sum
}

// few returns schemes for small all-reduces.
func (m *model) few() (list []*Scheme) {
	n := m.N
	add := func(s *Scheme) {
		if s != nil && s.Check(n) == nil && m.passes(s.Trees) && m.reach(s) <= mostWays {
			list = append(list, s)
		}
	}
	for k := 1; k <= n && k*n <= mostOwned && !m.stopped(); k = more(k, n) {
		name := "star"
		if k > 1 {
			name = fmt.Sprintf("stars %d", k)
		}
		add(m.owned(name, k, func(o int) (Tree, bool) { return star(n, o), m.open(o) }))
	}
	rows := [][][]int{}
	root := int(math.Ceil(math.Sqrt(float64(n))))
	for _, length := range []int{root, (root + 1) / 2, 2 * root} {
		if length > 1 && length < n {
			rows = append(rows, m.rows(length))
		}
	}
	if sites := m.sites(); len(sites) > 1 && len(sites) < n {
		rows = append(rows, sites)
	}
	for _, r := range rows {
		for k := 1; k <= n && k*n <= mostOwned && !m.stopped(); k = more(k, n) {
			name := fmt.Sprintf("grid %d x %d", len(r), len(r[0]))
			if k < n {
				name += fmt.Sprintf(", %d own", k)
			}
			add(m.owned(name, k, func(o int) (Tree, bool) { return m.through(r, o) }))
		}
	}
	center := m.central()
	for _, f := range []int{2, 4, 8, 16} {
		if t, ok := m.narrow(center, f); ok {
			add(&Scheme{Name: fmt.Sprintf("tree of %d", f), Trees: []Tree{t}})
		}
	}
	return list
}

// more is the next number of owners that is tried: 1, 4, 16, and so on, and all.
func more(k, n int) int {
	if k < n && 4*k > n {
		return n
	}
	return 4 * k
}

// owned returns the scheme with the k trees that have the shortest ways, in parts with
// which the bytes cost least; nil: there are not so many.
func (m *model) owned(name string, k int, tree func(owner int) (Tree, bool)) *Scheme {
	type candidate struct {
		t   Tree
		way time.Duration
		as  float64
	}
	var list []candidate
	for o := range m.N {
		if t, ok := tree(o); ok && m.passes([]Tree{t}) {
			list = append(list, candidate{t, m.way(t.Up, false) + m.way(t.Down, true), min(m.up[o], m.down[o])})
		}
	}
	if len(list) < k {
		return nil
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.way, b.way), cmp.Compare(b.as, a.as)) })
	if k == 1 {
		return &Scheme{Name: name, Trees: []Tree{list[0].t}}
	}
	groups := make([][]Tree, k)
	for i := range groups {
		groups[i] = []Tree{list[i].t}
	}
	return m.shared(name, groups)
}

// rows returns the members in rows of so many, in which those of the ring that follow each
// other are near to each other.
func (m *model) rows(length int) (list [][]int) {
	count := (m.N + length - 1) / length
	at := 0
	for r := range count {
		size := m.N / count
		if r < m.N%count {
			size++
		}
		list = append(list, m.Ring[at:at+size])
		at += size
	}
	return list
}

// through returns the tree of owner in which one member of each other row sums up what the
// row has, sends that to the owner, and spreads the result. Of those that are about as near
// others do it for other owners.
func (m *model) through(rows [][]int, owner int) (Tree, bool) {
	n := m.N
	up := make([]int, n)
	for _, row := range rows {
		if at := slices.Index(row, owner); at >= 0 {
			for _, i := range row {
				up[i] = owner
			}
			continue
		}
		type candidate struct {
			i   int
			way time.Duration
		}
		var list []candidate
		for _, a := range row {
			if !m.between(a, owner) {
				continue
			}
			var to, from time.Duration
			ok := true
			for _, i := range row {
				if i != a {
					ok = ok && m.between(i, a)
					to, from = max(to, m.Delay[i*n+a]), max(from, m.Delay[a*n+i])
				}
			}
			if ok {
				list = append(list, candidate{a, to + from + m.Delay[a*n+owner] + m.Delay[owner*n+a]})
			}
		}
		if len(list) == 0 {
			return Tree{}, false
		}
		least := slices.MinFunc(list, func(a, b candidate) int { return cmp.Compare(a.way, b.way) }).way
		list = slices.DeleteFunc(list, func(c candidate) bool { return c.way > least+least/8 })
		agent := list[m.turn(rows, owner)%len(list)].i
		for _, i := range row {
			up[i] = agent
		}
		up[agent] = owner
	}
	up[owner] = -1
	return Tree{Weight: 1, Up: up, Down: up}, true
}

// turn is the place of a member in its row.
func (m *model) turn(rows [][]int, member int) int {
	for _, row := range rows {
		if at := slices.Index(row, member); at >= 0 {
			return at
		}
	}
	return 0
}

// narrow returns the tree of owner in which each member has at most so many below it: the
// nearest are placed first, each where it is nearest to the owner.
func (m *model) narrow(owner, most int) (Tree, bool) {
	n := m.N
	next, kids, far := slices.Repeat([]int{-1}, n), make([]int, n), make([]time.Duration, n)
	var order []int
	for i := range n {
		if i != owner {
			order = append(order, i)
		}
	}
	near := func(i int) time.Duration { return m.Delay[i*n+owner] + m.Delay[owner*n+i] }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(near(a), near(b)) })
	placed := []int{owner}
	for _, i := range order {
		for _, k := range placed {
			if kids[k] == most || !m.between(i, k) {
				continue
			}
			if d := far[k] + m.Delay[i*n+k] + m.Delay[k*n+i]; next[i] < 0 || d < far[i] {
				next[i], far[i] = k, d
			}
		}
		if next[i] < 0 {
			return Tree{}, false
		}
		kids[next[i]]++
		placed = append(placed, i)
	}
	return Tree{Weight: 1, Up: next, Down: next}, true
}

// central returns the member whose farthest other one is the nearest.
func (m *model) central() (at int) {
	least := time.Duration(-1)
	for o := range m.N {
		t := star(m.N, o)
		if d := m.way(t.Up, false) + m.way(t.Down, true); m.open(o) && (least < 0 || d < least) {
			at, least = o, d
		}
	}
	return at
}

// reach is with how many others a member is connected at most.
func (m *model) reach(s *Scheme) (most int) {
	for _, l := range s.Ways(m.N) {
		most = max(most, len(l))
	}
	return most
}

// Ways returns with whom each of n members exchanges data, in order.
func (s *Scheme) Ways(n int) [][]int {
	with := make([]bool, n*n)
	for i := range s.Trees {
		t := &s.Trees[i]
		if t.Weight == 0 {
			continue
		}
		for k := range n {
			if t.Up[k] >= 0 {
				for _, o := range []int{t.Up[k], t.Down[k]} {
					with[k*n+o], with[o*n+k] = true, true
				}
			}
		}
	}
	list := make([][]int, n)
	for i := range n {
		for k := range n {
			if with[i*n+k] {
				list[i] = append(list[i], k)
			}
		}
	}
	return list
}

// Below returns the options for small all-reduces, and Above those for large ones.
func (o Options) Below() Options {
	if i := slices.IndexFunc(o.List, func(at Option) bool { return at.From >= LeastLarge }); i >= 0 {
		o.List = o.List[:i:i]
	}
	return o
}

// Above returns the options for large all-reduces.
func (o Options) Above() Options {
	o.List = slices.DeleteFunc(slices.Clone(o.List), func(at Option) bool { return at.From < LeastLarge })
	if len(o.List) > 0 && o.List[0].Scheme == nil {
		o.List = o.List[1:]
	}
	return o
}

// Before returns the options of o for fewer bytes than those of next, which has some, and these.
func (o Options) Before(next Options) Options {
	from := next.List[0].From
	o.List = append(slices.DeleteFunc(slices.Clone(o.List), func(at Option) bool { return at.From >= from }), next.List...)
	return o
}

// With returns the options of o, which are for small all-reduces, and those for large ones, as far
// as these are known.
func (o Options) With(large Options) Options {
	small, end := o.Below().List, uint64(LeastLarge)
	if large.Ring == (Line{}) {
		end = LeastTrial
	}
	list := slices.Concat(small, large.List)
	if n := len(small); n > 0 && small[n-1].Scheme != nil && (len(large.List) == 0 || large.List[0].From > end) {
		list = slices.Insert(list, n, Option{From: end, Line: o.Ring})
	}
	if len(large.List) > 0 {
		o.Ring = large.Ring
	}
	o.List = list
	return o
}

// SteadySmall returns fresh if small all-reduces of some size are predicted to be faster
// with it by steadyGain than with the last plans, and those otherwise.
func SteadySmall(p Problem, last, fresh Options) Options {
	m := newSmall(p)
	if m == nil {
		return fresh
	}
	cost := func(o Options, size uint64) float64 {
		at := o.For(size)
		if at == nil {
			return m.frames(nil, m.ring()).careful(size)
		}
		if at.Scheme.Check(p.N) != nil || !m.passes(at.Scheme.Trees) {
			return math.Inf(1)
		}
		return m.frames(at.Scheme, m.predicted(at.Scheme)).careful(size)
	}
	for _, size := range smallSizes {
		if cost(fresh, size)*steadyGain <= cost(last, size) {
			return fresh
		}
	}
	return last
}

// Stand reports whether there is a way for all that o has members send.
func (o Options) Stand(p Problem) bool {
	m := newSmall(p)
	return m != nil && !slices.ContainsFunc(o.List, func(at Option) bool {
		return at.Scheme != nil && (at.Scheme.Check(p.N) != nil || !m.passes(at.Scheme.Trees))
	})
}

// Complete fills in delays that are not known, between n members, with the shortest way
// over one other member: what is below 0 then is not known either.
func Complete(delay []time.Duration, n int) {
	known := slices.Clone(delay)
	for i := range n {
		for k := range n {
			if i == k || known[i*n+k] >= 0 {
				continue
			}
			delay[i*n+k] = Over(known, n, i, k)
		}
	}
}

// Over returns the delay of the shortest way from i to k, of n members, over one other
// member; below 0: none is known.
func Over(delay []time.Duration, n, i, k int) time.Duration {
	least := time.Duration(-1)
	for l := range n {
		if a, b := delay[i*n+l], delay[l*n+k]; l != i && l != k && a >= 0 && b >= 0 && (least < 0 || a+b < least) {
			least = a + b
		}
	}
	return least
}
