package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// deepest bounds the ways of trees that are searched for, in each direction.
const deepest = 3

// grow returns the tree over which every member reaches the root, or is reached from it,
// by ways that cost little: way(i, k) is what it costs i to be below k, infinite where it
// cannot be. Nil: somebody cannot be reached in few steps.
func grow(n, root, deepest int, way func(i, k int) float64) []int {
	next, depth, cost := make([]int, n), make([]int, n), make([]float64, n)
	for i := range n {
		next[i], depth[i], cost[i] = root, -1, way(i, root)
	}
	next[root], depth[root] = -1, 0
	for range n - 1 {
		at := -1
		for i := range n {
			if depth[i] < 0 && (at < 0 || cost[i] < cost[at]) {
				at = i
			}
		}
		if math.IsInf(cost[at], 1) {
			return nil
		}
		if depth[at] = depth[next[at]] + 1; depth[at] == deepest {
			continue
		}
		for i := range n {
			if depth[i] >= 0 {
				continue
			}
			if c := way(i, at); c < cost[i]*(1-1e-3) {
				next[i], cost[i] = at, c
			}
		}
	}
	kids := make([]int, n)
	for _, k := range next {
		if k >= 0 {
			kids[k]++
		}
	}
	for i := range n { // those with nobody below may have a better place by now
		if kids[i] > 0 || i == root {
			continue
		}
		for k := range n {
			if k == i || depth[k] == deepest {
				continue
			}
			if c := way(i, k); c < cost[i]*(1-1e-3) {
				kids[next[i]]--
				kids[k]++
				next[i], cost[i], depth[i] = k, c, depth[k]+1
			}
		}
	}
	return next
}

// treeOf returns the tree of owner over which transfers cost little; false: there is none.
func (m *model) treeOf(owner int, ways []float64) (Tree, bool) {
	up := grow(m.N, owner, deepest, func(i, k int) float64 { return ways[i*m.N+k] })
	down := grow(m.N, owner, deepest, func(i, k int) float64 { return ways[k*m.N+i] })
	return Tree{Weight: 1, Up: up, Down: down}, up != nil && down != nil
}

// ways returns what transfers cost at these prices of the resources, infinite where there
// is no way.
func (m *model) ways(price costs) []float64 {
	n := m.N
	list := make([]float64, n*n)
	for i := range n {
		for k := range n {
			at := i*n + k
			if i == k || m.closed[at] {
				list[at] = math.Inf(1)
				continue
			}
			m.moves(i, k, func(r int, cost float64) { list[at] += price[r] * cost })
		}
	}
	return list
}

// firstly are prices to begin with: what each resource costs counts the same.
func (m *model) firstly() costs {
	price := m.costs()
	for i := range price {
		price[i] = 1
	}
	return price
}

// relayed searches for trees in which members pass on what others cannot send to the
// owner as well, and returns a scheme of them, if there are any. From the parts of
// the trees that are known follows what each resource is worth, and from that which
// trees would be cheaper.
func (m *model) relayed(known []*Scheme) []*Scheme {
	n := m.N
	var trees []Tree
	var columns [][]load
	all := m.costs()
	add := func(t Tree) {
		trees = append(trees, t)
		columns = append(columns, m.column([]Tree{t}, all))
	}
	first := m.ways(m.firstly())
	for o := range n {
		if t, ok := m.treeOf(o, first); ok {
			add(t)
		}
		if m.open(o) {
			add(star(n, o))
		}
	}
	for at, s := range known {
		if slices.ContainsFunc(known[:at], s.sameTrees) {
			continue
		}
		for _, t := range s.Trees {
			if t.Weight > 0 {
				add(t)
			}
		}
	}
	if len(trees) == 0 {
		return nil
	}
	var best *Scheme
	factor := m.excess(nil)
	turns := relayTurns
	if n > mostThorough {
		turns = relayTurns / 4
	}
	for range turns {
		if m.stopped() {
			break
		}
		b := m.balance(columns, factor, true)
		var s *Scheme
		for _, part := range [][]float64{b.even, b.part} {
			s = &Scheme{Name: "relays"}
			for i, w := range part {
				if w*float64(n) >= smallPart && len(s.Trees) < mostRelays {
					t := trees[i]
					t.Weight = uint32(math.Round(w * partUnits))
					s.Trees = append(s.Trees, t)
				}
			}
			if s.Check(n) == nil && (best == nil || float64(m.predicted(s).Byte) < evenWorth*float64(m.predicted(best).Byte)) {
				best = s
			}
		}
		factor = m.excess(s.Trees)
		price := m.costs()
		scale := 0.0 // what a unit of data is worth
		for r, v := range b.price {
			price[r] = v * factor[r]
		}
		for i := range columns {
			if b.part[i] > 0 {
				scale = max(scale, worth(columns[i], price))
			}
		}
		if scale == 0 {
			break
		}
		floor := 0.0
		for _, v := range price {
			floor = max(floor, v)
		}
		for r := range price { // of ways that cost nothing, fast ones are better
			price[r] += 1e-4 * floor
		}
		ways, more := m.ways(price), false
		for o := range n {
			if t, ok := m.treeOf(o, ways); ok && worth(m.column([]Tree{t}, all), price) < scale*(1-1e-2) {
				add(t)
				more = true
			}
		}
		if !more {
			break
		}
	}
	if best == nil {
		return nil
	}
	return []*Scheme{best}
}

// mostRelays bounds the trees that are told, all of which go to every member.
const mostRelays = 128

// relayTurns is how often cheaper trees are looked for.
const relayTurns = 12

// worth is what a unit of data costs at these prices.
func worth(c []load, price costs) (sum float64) {
	for _, l := range c {
		sum += l.cost * price[l.resource]
	}
	return sum
}

// star is the tree in which all send to the owner, and get the result from it.
func star(n, owner int) Tree {
	up := slices.Repeat([]int{owner}, n)
	up[owner] = -1
	return Tree{Weight: 1, Up: up, Down: up}
}

// open reports whether all others can send to a member, and it to them.
func (m *model) open(i int) bool {
	for k := range m.N {
		if k != i && !m.between(i, k) {
			return false
		}
	}
	return true
}

// aroundClosed returns the trees of the direct exchange. Where there is no way between a member and an owner,
// the one on the shortest way around passes on. Nil: there is none.
func (m *model) aroundClosed() (trees []Tree) {
	for o := range m.N {
		t := star(m.N, o)
		for i := range m.N {
			if i == o || m.between(i, o) {
				continue
			}
			via, least := -1, time.Duration(0)
			for k := range m.N {
				if k == i || k == o || !m.between(i, k) || !m.between(k, o) {
					continue
				}
				if way := m.Delay[i*m.N+k] + m.Delay[k*m.N+o]; via < 0 || way < least {
					via, least = k, way
				}
			}
			if via < 0 {
				return nil
			}
			t.Up[i] = via
		}
		trees = append(trees, t)
	}
	return trees
}

// between reports whether each of two members can send to the other.
func (m *model) between(i, k int) bool { return !m.closed[i*m.N+k] && !m.closed[k*m.N+i] }

// behind returns schemes in which slow members have one other member each, which adds what
// they give and passes on to them what they get: then only few send to a slow one, and
// nobody waits for more than it has to send anyway.
func (m *model) behind() (list []*Scheme) {
	n := m.N
	rate := make([]float64, n)
	order := make([]int, n)
	for i := range n {
		rate[i], order[i] = min(m.up[i], m.down[i]), i
	}
	slices.SortFunc(order, func(i, k int) int { return cmp.Or(cmp.Compare(rate[i], rate[k]), cmp.Compare(i, k)) })
	was := 0
	for _, by := range []float64{1.5, 3, 6, 12, 24} {
		slow := 0
		for slow < n-2 && rate[order[slow]] < by*rate[order[0]] {
			slow++
		}
		if slow == was {
			continue
		}
		was = slow
		if s := m.leaning(order[:slow], order[slow:], rate); s != nil {
			list = append(list, s)
		}
	}
	return list
}

// leaning returns the scheme in which each of the slow ones has one of the fast ones; nil:
// one of them reaches none.
func (m *model) leaning(slow, fast []int, rate []float64) *Scheme {
	n := m.N
	on := slices.Repeat([]int{-1}, n)
	carries := make([]float64, n) // transfers of all data
	for i := len(slow) - 1; i >= 0; i-- {
		at, least := -1, math.Inf(1)
		for _, k := range fast {
			way, back := slow[i]*n+k, k*n+slow[i]
			if !m.between(slow[i], k) {
				continue
			}
			cost := max((2+carries[k])/rate[k], 1/m.pair[way], 1/m.pair[back])
			if cost < least {
				at, least = k, cost
			}
		}
		if at < 0 {
			return nil
		}
		on[slow[i]] = at
		carries[at]++
	}
	var groups [][]Tree
	for _, o := range fast {
		up, ok := make([]int, n), true
		for i := range n {
			if up[i] = on[i]; on[i] < 0 && i != o {
				up[i] = o
				ok = ok && m.between(i, o)
			}
		}
		if up[o] = -1; ok {
			groups = append(groups, []Tree{{Weight: 1, Up: up, Down: up}})
		}
	}
	if len(groups) == 0 {
		return nil
	}
	return m.shared(fmt.Sprintf("shares, %d behind others", len(slow)), groups)
}
