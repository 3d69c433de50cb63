package atsp

import (
	"cmp"
	"slices"
)

// Branch looks for a tour shorter than upper by branch and bound on the
// assignment problem (Carpaneto, Dell'Amico, Toth, ACM TOMS 21, 1995), depth
// first. Arcs whose reduced weight proves that no shorter tour has them are
// removed at the start. It returns the shortest tour found (nil: none is
// shorter), and whether the search was complete; then no tour is shorter than
// the one returned, or than upper if there is none. improved is called with
// each shorter tour.
func Branch(w Weights, a *Assignment, upper int64, over Clock, improved func(order []int32, length int64)) (complete bool) {
	if a.Value >= upper {
		return true
	}
	n := w.N
	b := &brancher{n: n, upper: upper, over: over, improved: improved, start: make([]int32, n+1)}
	for i := range n {
		for j, c := range w.W[i*n : i*n+n] {
			if j != i && c-a.U[i]-a.V[j] < upper-a.Value {
				b.to = append(b.to, int32(j))
				b.w = append(b.w, c)
			}
		}
		b.start[i+1] = int32(len(b.to))
	}
	b.excluded = make([]bool, len(b.to))
	b.fixed, b.taken = make([]bool, n), make([]bool, n)
	b.dist, b.prev, b.state = make([]int64, n), make([]int32, n), make([]int8, n)
	root := &relaxed{succ: slices.Clone(a.Succ), pred: slices.Clone(a.Pred), v: slices.Clone(a.V), arc: make([]int32, n), value: a.Value}
	for i, j := range root.succ {
		root.arc[i] = b.find(int32(i), j)
	}
	b.visit(root)
	return !b.stopped
}

type brancher struct {
	n        int
	start    []int32 // arcs of row i are start[i] to start[i+1]
	to       []int32
	w        []int64
	excluded []bool // arcs
	fixed    []bool // rows whose successor is decided
	taken    []bool // columns that a fixed row has
	upper    int64
	over     Clock
	stopped  bool
	improved func([]int32, int64)

	dist  []int64
	prev  []int32 // arc by which a column was reached
	state []int8  // of a column: 0 untouched, 1 reached, 2 scanned
	front []int32
	done  []int32
}

// relaxed is an assignment under the exclusions of a node of the search tree.
type relaxed struct {
	succ, pred []int32
	arc        []int32 // the arc of each row's successor
	v          []int64
	value      int64
}

func (r *relaxed) clone() *relaxed {
	return &relaxed{slices.Clone(r.succ), slices.Clone(r.pred), slices.Clone(r.arc), slices.Clone(r.v), r.value}
}

func (b *brancher) find(i, j int32) int32 {
	for e := b.start[i]; e < b.start[i+1]; e++ {
		if b.to[e] == j {
			return e
		}
	}
	return -1
}

// tail returns the row of an arc.
func (b *brancher) tail(e int32) int32 {
	i, _ := slices.BinarySearch(b.start, e+1)
	return int32(i - 1)
}

func (b *brancher) visit(r *relaxed) {
	if b.stopped = b.stopped || b.over(); b.stopped {
		return
	}
	label, sizes := Cycles(r.succ)
	if len(sizes) == 1 {
		b.upper = r.value
		b.improved(order(r.succ, make([]int32, 0, b.n)), r.value)
		return
	}
	// One of the arcs of a cycle must go: that with the fewest open arcs.
	open := make([]int, len(sizes))
	for i, c := range label {
		if !b.fixed[i] {
			open[c]++
		}
	}
	pick := 0
	for c := range open {
		if open[c] < open[pick] {
			pick = c
		}
	}
	type child struct {
		*relaxed
		at int // index of the excluded arc in cut
	}
	var cut []int32 // rows
	for i, c := range label {
		if int(c) == pick && !b.fixed[i] {
			cut = append(cut, int32(i))
		}
	}
	var children []child
	for k, i := range cut {
		if b.stopped = b.stopped || b.over(); b.stopped {
			break
		}
		e := r.arc[i]
		b.excluded[e] = true
		if c := b.without(r, i); c != nil {
			children = append(children, child{c, k})
		}
		b.excluded[e] = false
		b.fixed[i], b.taken[r.succ[i]] = true, true
	}
	for _, i := range cut {
		b.fixed[i], b.taken[r.succ[i]] = false, false
	}
	slices.SortStableFunc(children, func(x, y child) int { return cmp.Compare(x.value, y.value) })
	for _, c := range children {
		if c.value >= b.upper || b.stopped {
			break
		}
		for _, i := range cut[:c.at] {
			b.fixed[i], b.taken[r.succ[i]] = true, true
		}
		e := r.arc[cut[c.at]]
		b.excluded[e] = true
		b.visit(c.relaxed)
		b.excluded[e] = false
		for _, i := range cut[:c.at] {
			b.fixed[i], b.taken[r.succ[i]] = false, false
		}
	}
}

// without reassigns row, whose arc was excluded, by a shortest alternating
// path to the column it had; nil if that is not below the upper bound.
func (b *brancher) without(r *relaxed, row int32) *relaxed {
	goal := r.succ[row]
	base := r.value - b.w[r.arc[row]] + r.v[goal]
	defer func() {
		for _, j := range b.front {
			b.state[j] = 0
		}
		for _, j := range b.done {
			b.state[j] = 0
		}
		b.front, b.done = b.front[:0], b.done[:0]
	}()
	scan := func(i int32, offset int64) {
		for e := b.start[i]; e < b.start[i+1]; e++ {
			j := b.to[e]
			if b.excluded[e] || b.taken[j] || b.state[j] == 2 {
				continue
			}
			d := offset + b.w[e] - r.v[j]
			if b.state[j] == 0 {
				b.state[j] = 1
				b.front = append(b.front, j)
			} else if d >= b.dist[j] {
				continue
			}
			b.dist[j], b.prev[j] = d, e
		}
	}
	scan(row, 0)
	for {
		if len(b.front) == 0 {
			return nil
		}
		k := 0
		for x, j := range b.front {
			if b.dist[j] < b.dist[b.front[k]] {
				k = x
			}
		}
		j := b.front[k]
		least := b.dist[j]
		if base+least >= b.upper {
			return nil
		}
		b.front[k] = b.front[len(b.front)-1]
		b.front = b.front[:len(b.front)-1]
		b.state[j] = 2
		b.done = append(b.done, j)
		if j == goal {
			c := r.clone()
			c.value = base + least
			for _, q := range b.done {
				c.v[q] += b.dist[q] - least
			}
			for {
				e := b.prev[j]
				i := b.tail(e)
				c.pred[j] = i
				c.arc[i] = e
				c.succ[i], j = j, c.succ[i]
				if i == row {
					return c
				}
			}
		}
		i := r.pred[j]
		scan(i, least-(b.w[r.arc[i]]-r.v[j]))
	}
}
