package atsp

import (
	"math"
	"slices"
)

// Pool is a population of tours that are bred with one another by edge
// assembly crossover (Nagata and Soler, "A new genetic algorithm for the
// asymmetric traveling salesman problem", Expert Systems with Applications
// 39, 2012). A child takes from the second parent all arcs of one cycle of
// arcs in which the parents differ; if that falls into several cycles, they
// are patched at candidate arcs.
type Pool struct {
	l      *Local
	tours  []member
	uses   []uint16  // how many tours have an arc, by from*n+to
	weight []float64 // x*log(x) for x of len(tours) uses
	changes
	label  []int32
	marked []bool
	least  member
}

// member is a tour as successors and predecessors.
type member struct {
	succ, pred []int32
	length     int64
}

// changes are successors that a child has changed, with the old ones.
type changes struct {
	node, old []int32
	delta     int64
}

func (m *member) order() []int32 { return order(m.succ, make([]int32, 0, len(m.succ))) }

func newMember(at []int32, length int64) member {
	n := len(at)
	m := member{succ: make([]int32, n), pred: make([]int32, n), length: length}
	prev := at[n-1]
	for _, i := range at {
		m.succ[prev], m.pred[i] = i, prev
		prev = i
	}
	return m
}

// NewPool fills a population with size tours: local optima from random
// starts, refined by rounds of iterated search each, and the tour that l holds.
// It returns fewer, at least one, if the clock stops it.
func NewPool(l *Local, size, rounds int, heat func(r int) float64, over Clock) *Pool {
	n := l.n
	p := &Pool{l: l, uses: make([]uint16, n*n), label: make([]int32, n), marked: make([]bool, n)}
	l.Descend(over)
	p.add(newMember(l.at, l.length))
	for len(p.tours) < size && !over() {
		l.Set(l.wander())
		l.Descend(over)
		if rounds > 0 {
			best, _ := l.Iterate(rounds, heat, over)
			l.Set(best)
			l.clear()
		}
		if l.count > 0 { // stopped half way
			l.clear()
			break
		}
		p.add(newMember(l.at, l.length))
	}
	return p
}

func (p *Pool) add(m member) {
	p.tours = append(p.tours, m)
	for i, j := range m.succ {
		p.uses[i*p.l.n+int(j)]++
	}
	p.keep(&m)
}

func (p *Pool) keep(m *member) {
	if p.least.succ == nil || m.length < p.least.length {
		p.least = member{succ: slices.Clone(m.succ), pred: slices.Clone(m.pred), length: m.length}
	}
}

// Best returns the shortest tour seen, and its length in reduced weights.
func (p *Pool) Best() ([]int32, int64) { return p.least.order(), p.least.length }

// wander returns a tour that goes on to one of the nearest nodes at random.
func (l *Local) wander() []int32 {
	n := l.n
	at := make([]int32, 0, n)
	used := make([]bool, n)
	rest := make([]int32, n) // nodes not visited, and where in it each node is
	where := make([]int32, n)
	for i := range rest {
		rest[i], where[i] = int32(i), int32(i)
	}
	i := int32(l.rnd.intn(n))
	for {
		at = append(at, i)
		used[i] = true
		end := rest[len(rest)-1]
		rest[where[i]], where[end] = end, where[i]
		rest = rest[:len(rest)-1]
		if len(rest) == 0 {
			return at
		}
		next := int32(-1)
		for _, c := range l.cand[0][int(i)*l.width : int(i)*l.width+l.width] {
			if !used[c.node] {
				next = c.node
				if l.rnd.next()&3 != 0 {
					break
				}
			}
		}
		if next < 0 {
			row := l.w[int(i)*n : int(i)*n+n]
			next = rest[0]
			for _, j := range rest {
				if row[j] < row[next] {
					next = j
				}
			}
		}
		i = next
	}
}

// Breed lets generations follow one another until the population is uniform or
// several in a row brought nothing, or the clock stops it. children is how
// many a pair may have. improved is called after each generation with a
// shorter tour.
func (p *Pool) Breed(children int, over Clock, improved func()) {
	var mates []int
	for i := range p.tours {
		mates = append(mates, i)
	}
	if len(mates) < 2 {
		return
	}
	p.weight = p.weight[:0]
	for x := range len(p.tours) + 2 {
		v := float64(x) / float64(len(p.tours))
		if x > 0 {
			v *= math.Log(v)
		}
		p.weight = append(p.weight, v)
	}
	const patience = 3
	for idle, several := 0, false; ; {
		for i := len(mates) - 1; i > 0; i-- {
			j := p.l.rnd.intn(i + 1)
			mates[i], mates[j] = mates[j], mates[i]
		}
		before := p.least.length
		changed := 0
		for k, i := range mates {
			if over() {
				break
			}
			if p.mate(i, mates[(k+1)%len(mates)], children, several) {
				changed++
			}
		}
		if p.least.length < before {
			improved()
		}
		if over() {
			return
		}
		if changed > 0 {
			if idle = 0; p.least.length == before && changed*20 < len(mates) {
				idle = 1
			}
			continue
		}
		if idle++; idle >= patience {
			if several {
				return
			}
			several, idle = true, 0
		}
	}
}

// mate replaces tour a by its best child with tour b, if that is shorter.
// Children that keep the population diverse are preferred. several: a child
// takes about half of the cycles instead of one.
func (p *Pool) mate(a, b, children int, several bool) bool {
	t, u := &p.tours[a], &p.tours[b]
	clear(p.marked)
	var cycles [][]int32
	for i := range t.succ {
		if p.marked[i] || t.succ[i] == u.succ[i] {
			continue
		}
		var cycle []int32
		for j := int32(i); !p.marked[j]; j = u.pred[t.succ[j]] {
			p.marked[j] = true
			cycle = append(cycle, j)
		}
		cycles = append(cycles, cycle)
	}
	if len(cycles) < 2 {
		return false
	}
	var best changes
	value := 0.0
	for c := range min(len(cycles), children) {
		k := c + p.l.rnd.intn(len(cycles)-c)
		cycles[c], cycles[k] = cycles[k], cycles[c]
		p.node, p.old, p.delta = p.node[:0], p.old[:0], 0
		for _, i := range cycles[c] {
			p.change(t, i, u.succ[i])
		}
		if several {
			for k, cycle := range cycles {
				if k == c || p.l.rnd.next()&1 == 0 {
					continue
				}
				for _, i := range cycle {
					p.change(t, i, u.succ[i])
				}
			}
		}
		p.join(t)
		if p.delta < 0 {
			if v := p.worth(t); v > value {
				value = v
				best.delta = p.delta
				best.node = append(best.node[:0], p.node...)
				best.old = best.old[:0]
				for _, i := range p.node {
					best.old = append(best.old, t.succ[i])
				}
			}
		}
		p.revert(t)
	}
	if value == 0 {
		return false
	}
	// best.old are the new successors here.
	p.node, p.old, p.delta = p.node[:0], p.old[:0], 0
	for k, i := range best.node {
		p.change(t, i, best.old[k])
	}
	for _, i := range p.node {
		p.l.push(i)
		p.l.push(t.succ[i])
	}
	p.commit(t)
	p.keep(t)
	return true
}

// change gives i another successor.
func (p *Pool) change(t *member, i, to int32) {
	w, n := p.l.w, p.l.n
	p.node = append(p.node, i)
	p.old = append(p.old, t.succ[i])
	p.delta += int64(w[int(i)*n+int(to)]) - int64(w[int(i)*n+int(t.succ[i])])
	t.succ[i] = to
	t.pred[to] = i
}

// revert undoes the changes.
func (p *Pool) revert(t *member) {
	for k := len(p.node) - 1; k >= 0; k-- {
		t.succ[p.node[k]] = p.old[k]
	}
	for _, i := range p.node {
		t.pred[t.succ[i]] = i
	}
}

// commit makes the changes part of the population.
func (p *Pool) commit(t *member) {
	n := p.l.n
	for k, i := range p.node {
		p.uses[int(i)*n+int(p.old[k])]--
		p.uses[int(i)*n+int(t.succ[i])]++
	}
	t.length += p.delta
	p.l.clear()
}

// worth weighs the gain of a child against the diversity (entropy of the arcs
// of the population) that it costs.
func (p *Pool) worth(t *member) float64 {
	n := p.l.n
	entropy := 0.0
	for k, i := range p.node {
		from, to := p.old[k], t.succ[i]
		if from == to {
			continue
		}
		f, g := p.uses[int(i)*n+int(from)], p.uses[int(i)*n+int(to)]
		if f == 0 { // changed twice: counted with the first change
			continue
		}
		entropy += p.weight[f] - p.weight[f-1] + p.weight[g] - p.weight[g+1]
	}
	gain := -float64(p.delta)
	if entropy >= 0 {
		return gain * 1e9
	}
	return gain / -entropy
}

// join patches the cycles of t into one, always the smallest one first.
func (p *Pool) join(t *member) {
	type cycle struct{ first, size int32 }
	var cycles []cycle
	for i := range p.label {
		p.label[i] = -1
	}
	left := p.l.n
	for _, i := range p.node {
		if p.label[i] >= 0 {
			continue
		}
		c := cycle{first: i}
		for j := i; p.label[j] < 0; j = t.succ[j] {
			p.label[j] = int32(len(cycles))
			c.size++
		}
		cycles = append(cycles, c)
		if left -= int(c.size); left == 0 {
			break
		}
	}
	l, n := p.l, p.l.n
	for alive := len(cycles); alive > 1; alive-- {
		small := int32(-1)
		for c := range cycles {
			if s := cycles[c].size; s > 0 && (small < 0 || s < cycles[small].size) {
				small = int32(c)
			}
		}
		// Exchange the successors of u inside and v outside.
		best, bu, bv := int64(never), int32(-1), int32(-1)
		try := func(u, v int32) {
			su, sv := t.succ[u], t.succ[v]
			d := int64(l.w[int(u)*n+int(sv)]) + int64(l.w[int(v)*n+int(su)]) - int64(l.w[int(u)*n+int(su)]) - int64(l.w[int(v)*n+int(sv)])
			if d < best {
				best, bu, bv = d, u, v
			}
		}
		u := cycles[small].first
		for range cycles[small].size {
			for _, c := range l.cand[0][int(u)*l.width : int(u)*l.width+l.width] {
				if p.label[c.node] != small {
					try(u, t.pred[c.node])
				}
			}
			for _, c := range l.cand[1][int(t.succ[u])*l.width : int(t.succ[u])*l.width+l.width] {
				if p.label[c.node] != small {
					try(u, c.node)
				}
			}
			u = t.succ[u]
		}
		if bu < 0 {
			for range cycles[small].size {
				for v := range n {
					if p.label[v] != small {
						try(u, int32(v))
					}
				}
				u = t.succ[u]
			}
		}
		into := p.label[bv]
		for range cycles[small].size {
			p.label[u] = into
			u = t.succ[u]
		}
		cycles[into].size += cycles[small].size
		cycles[small].size = 0
		su, sv := t.succ[bu], t.succ[bv]
		p.change(t, bu, sv)
		p.change(t, bv, su)
	}
}
