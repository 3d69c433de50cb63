package atsp

import "slices"

// near is a candidate: a node and the reduced weight of the arc to (or from) it.
type near struct{ node, w int32 }

// Local is a local search: exchanges of three and five arcs that keep the
// direction of travel, found step by step along candidate arcs, from a queue
// of nodes whose surroundings changed.
type Local struct {
	tour
	width  int
	cand   [2][]near // out- and in-neighbours, width of each node, cheapest first
	queue  []int32   // ring buffer
	head   int
	queued []bool
	count  int
	shift  uint
	rnd    rng
	better func(at []int32) // gets each new best tour of an iterated search; may be nil
}

// dear is the reduced weight of arcs that no better tour contains.
const dear = 1 << 27

// breadth is how many candidates each step of an exchange tries.
var breadth = [...]int{8, 5, 5, 3}

// NewLocal prepares a search for tours of w shorter than bound (the length of
// a known tour). a gives the duals. width is the number of candidates in either
// direction.
func NewLocal(w Weights, a *Assignment, bound int64, width int, seed uint64) *Local {
	n := w.N
	l := &Local{width: min(width, n-1), queued: make([]bool, n), queue: make([]int32, n), rnd: newRNG(seed)}
	l.tour = tour{
		n: n, w: make([]int32, n*n), wt: make([]int32, n*n), at: make([]int32, n), pos: make([]int32, n),
		inW: make([]int32, n), outW: make([]int32, n),
	}
	// An arc whose reduced weight exceeds the gap is in no shorter tour.
	gap := max(bound-a.Value, 1)
	for gap>>l.shift >= dear/2 {
		l.shift++
	}
	for i := range n {
		row, ui := w.W[i*n:i*n+n], a.U[i]
		for j, c := range row {
			r := (c - ui - a.V[j]) >> l.shift
			if r > dear || i == j {
				r = dear
			}
			l.w[i*n+j] = int32(r)
		}
	}
	const tile = 32
	for bi := 0; bi < n; bi += tile {
		for bj := 0; bj < n; bj += tile {
			for i := bi; i < min(n, bi+tile); i++ {
				for j := bj; j < min(n, bj+tile); j++ {
					l.wt[j*n+i] = l.w[i*n+j]
				}
			}
		}
	}
	l.cand[0] = candidates(l.w, n, l.width)
	l.cand[1] = candidates(l.wt, n, l.width)
	return l
}

func candidates(w []int32, n, width int) []near {
	all := make([]near, 0, n*width)
	for i := range n {
		base := len(all)
		worst := int32(0)
		for j, c := range w[i*n : i*n+n] {
			if j == i || len(all)-base == width && c >= worst {
				continue
			}
			if len(all)-base < width {
				all = append(all, near{})
			}
			k := len(all) - 1
			for ; k > base && all[k-1].w > c; k-- {
				all[k] = all[k-1]
			}
			all[k] = near{int32(j), c}
			worst = all[len(all)-1].w
		}
	}
	return all
}

// Set makes order the tour and queues every node.
func (l *Local) Set(order []int32) {
	l.set(order)
	l.clear()
	for _, i := range order {
		l.push(i)
	}
}

func (l *Local) clear() {
	for l.count > 0 {
		l.pop()
	}
}

func (l *Local) push(i int32) {
	if l.queued[i] {
		return
	}
	l.queued[i] = true
	k := l.head + l.count
	if k >= l.n {
		k -= l.n
	}
	l.queue[k] = i
	l.count++
}

func (l *Local) pop() int32 {
	i := l.queue[l.head]
	if l.head++; l.head == l.n {
		l.head = 0
	}
	l.count--
	l.queued[i] = false
	return i
}

// Order returns the tour, a copy.
func (l *Local) Order() []int32 { return slices.Clone(l.at) }

// Descend improves the tour until the queue is empty or the clock stops it.
func (l *Local) Descend(over Clock) {
	for steps := 1; l.count > 0; steps++ {
		if steps&31 == 0 && over() {
			return
		}
		a := l.pop()
		for l.improve(a, 0) || l.improve(a, 1) {
			if steps++; steps&31 == 0 && over() {
				return
			}
		}
	}
}

// improve looks for an exchange that removes the arc out of x0 (side 0) or the
// arc into it (side 1) and makes the tour shorter. Side 1 is the same search
// on the reversed digraph, in which the tour runs backwards.
func (l *Local) improve(x0 int32, side int) bool {
	n, at, pos := l.n, l.at, l.pos
	removed, closing := l.inW, l.wt
	ahead, behind := int32(1), int32(-1)
	var first int32
	if side == 1 {
		removed, closing = l.outW, l.w
		ahead, behind = -1, 1
		first = l.inW[x0]
	} else {
		first = l.outW[x0]
	}
	if first == 0 {
		return false
	}
	last := int32(n) - 1
	step := func(i, by int32) int32 {
		p := pos[i] + by
		if p < 0 {
			p = last
		} else if p > last {
			p = 0
		}
		return at[p]
	}
	cand, width := l.cand[side], l.width
	h0 := step(x0, ahead)
	closeRow := closing[int(h0)*n : int(h0)*n+n]
	p0 := pos[x0]
	// dist is how far behind x0 a node comes in the direction of this side.
	dist := func(i int32) int32 {
		d := (pos[i] - p0) * ahead
		if d < 0 {
			d += int32(n)
		}
		return d
	}
	for _, c1 := range cand[int(x0)*width : int(x0)*width+min(width, breadth[0])] {
		g1 := first - c1.w
		if g1 <= 0 {
			break
		}
		if c1.node == h0 {
			continue
		}
		g1 += removed[c1.node]
		x1 := step(c1.node, behind)
		d1 := dist(x1)
		for _, c2 := range cand[int(x1)*width : int(x1)*width+min(width, breadth[1])] {
			g2 := g1 - c2.w
			if g2 <= 0 {
				break
			}
			if c2.node == h0 || c2.node == c1.node {
				continue
			}
			g2 += removed[c2.node]
			x2 := step(c2.node, behind)
			d2 := dist(x2)
			if g2 > closeRow[x2] && d1 < d2 {
				l.apply(side, x0, x1, x2)
				return true
			}
			for _, c3 := range cand[int(x2)*width : int(x2)*width+min(width, breadth[2])] {
				g3 := g2 - c3.w
				if g3 <= 0 {
					break
				}
				if c3.node == h0 || c3.node == c1.node || c3.node == c2.node {
					continue
				}
				g3 += removed[c3.node]
				x3 := step(c3.node, behind)
				for _, c4 := range cand[int(x3)*width : int(x3)*width+min(width, breadth[3])] {
					g4 := g3 - c4.w
					if g4 <= 0 {
						break
					}
					if c4.node == h0 || c4.node == c1.node || c4.node == c2.node || c4.node == c3.node {
						continue
					}
					g4 += removed[c4.node]
					x4 := step(c4.node, behind)
					if g4 <= closeRow[x4] {
						continue
					}
					d := [5]int32{0, d1, d2, dist(x3), dist(x4)}
					if single(d[:], &forth5) {
						l.apply(side, x0, x1, x2, x3, x4)
						return true
					}
				}
			}
		}
	}
	return false
}

// apply exchanges the arcs that begin at xs in the direction of side, and
// queues their ends.
func (l *Local) apply(side int, xs ...int32) {
	var tails [5]int32
	to := &forth3
	copy(tails[:], xs)
	if side == 0 && len(xs) == 5 {
		to = &forth5
	}
	if side == 1 {
		// Backwards, the arcs into xs are meant; what follows changes places.
		if to = &back3; len(xs) == 5 {
			to = &back5
		}
		for k, x := range xs {
			tails[k] = l.prev(x)
		}
	}
	for _, x := range tails[:len(xs)] {
		l.push(x)
		l.push(l.next(x))
	}
	l.exchange(tails[:len(xs)], to)
}
