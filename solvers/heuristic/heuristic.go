// Package heuristic finds good rings of any number of peers within a time
// limit: a lower bound on the bottleneck, then iterated local search with
// moves that keep the direction of travel, first for a ring at that bound,
// then for the least sum.
package heuristic

import (
	"context"
	"math"
	"slices"
	"sort"

	"github.com/gopccl/gopccl/core/topo"
)

func init() { topo.Register(Solver{}) }

// Solver is the solver "heuristic".
type Solver struct{}

// Name returns "heuristic".
func (Solver) Name() string { return "heuristic" }

// Costs of arcs below the threshold and of missing ones. They exceed any sum
// of real costs (clamped to maxCost each) of 2^15 peers.
const (
	maxCost = 1e5
	slow    = 1e10
	missing = 1e12
)

// tryAll is the largest group of which all rings are tried: with few peers and
// few links a local search has nowhere to go.
const tryAll = 8

// Solve returns the best ring found; topo.ErrNoRing if there is none or none
// was found. Optimal is set only for small groups, of which it tries all rings.
func (Solver) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	if err := p.Check(); err != nil {
		return topo.Solution{}, err
	}
	n := p.Matrix.N
	if n < 2 {
		return topo.Solution{}, topo.ErrNoRing
	}
	r := &run{ctx: ctx, p: p, better: better, rnd: 0x9e3779b97f4a7c15}
	if s, ok := p.Solution(slices.Clone(p.Start)); ok {
		r.offer(s)
	}
	if n <= tryAll {
		r.permute(make([]int, 1, n), 1)
		if len(r.best.Ring) > 0 && ctx.Err() == nil {
			r.best = p.Proved(r.best)
		}
		return r.result()
	}
	if p.Objective == topo.Sum {
		r.search(0)
		return r.result()
	}
	r.byBottleneck()
	return r.result()
}

// run is one call of Solve.
type run struct {
	ctx    context.Context
	p      topo.Problem
	better func(topo.Solution)
	best   topo.Solution
	rnd    uint64
}

func (r *run) result() (topo.Solution, error) {
	if len(r.best.Ring) == 0 {
		return topo.Solution{}, topo.ErrNoRing
	}
	return r.best, nil
}

func (r *run) offer(s topo.Solution) {
	if r.p.Objective.Better(s, r.best) {
		r.best = s
		r.better(topo.Solution{Ring: slices.Clone(s.Ring), Bottleneck: s.Bottleneck, Sum: s.Sum})
	}
}

// permute tries all rings that begin with ring; used has a bit per member.
func (r *run) permute(ring []int, used uint) {
	n := r.p.Matrix.N
	if r.ctx.Err() != nil {
		return
	}
	if len(ring) == n {
		if s, ok := r.p.Solution(ring); ok && r.p.Objective.Better(s, r.best) {
			s.Ring = slices.Clone(ring)
			r.offer(s)
		}
		return
	}
	for j := range n {
		if _, ok := r.p.Matrix.At(ring[len(ring)-1], j); ok && used&(1<<j) == 0 {
			r.permute(append(ring, j), used|1<<j)
		}
	}
}

// byBottleneck looks for a ring at the highest threshold that could admit one,
// then between that and the best found, and spends the rest on the sum.
func (r *run) byBottleneck() {
	rates := r.rates()
	// rates[:hi] could hold the bottleneck of a ring, as far as cheap necessary
	// conditions tell.
	hi := sort.Search(len(rates), func(i int) bool { return !admits(r.p.Matrix, rates[i]) })
	if hi == 0 {
		return
	}
	// A quick pass brackets the bottleneck, a thorough one tries the rest.
	for _, restarts := range [...]int{1, 1 + 512/r.p.Matrix.N} {
		r.bisect(rates, hi, restarts)
	}
	if len(r.best.Ring) > 0 {
		r.search(r.best.Bottleneck)
	}
}

// bisect looks for rings of a bottleneck better than the best found and below
// rates[hi], from the top.
func (r *run) bisect(rates []float64, hi, restarts int) {
	lo := r.rank(rates)
	for next := hi - 1; lo < hi-1 && r.ctx.Err() == nil; next = max(lo+1, (lo+hi)/2) {
		r.find(rates[next], restarts)
		if lo = r.rank(rates); lo < next {
			hi = next
		}
	}
}

// rank is the index of the best bottleneck found, -1 without a ring.
func (r *run) rank(rates []float64) int {
	if len(r.best.Ring) == 0 {
		return -1
	}
	return sort.SearchFloat64s(rates, r.best.Bottleneck)
}

// rates returns the distinct rates of the matrix, ascending.
func (r *run) rates() []float64 {
	m := r.p.Matrix
	var rates []float64
	for i := range m.N {
		for j := range m.N {
			if v, ok := m.At(i, j); ok {
				rates = append(rates, v)
			}
		}
	}
	slices.Sort(rates)
	return slices.Compact(rates)
}

// search minimises the sum of a ring over arcs of at least floor.
func (r *run) search(floor float64) {
	t := newTour(r.p.Matrix, floor, r.best.Ring)
	r.iterate(t, 100*t.n+2000, math.Inf(-1))
}

// find looks for any ring over arcs of at least floor, from the best ring and
// then from random ones.
func (r *run) find(floor float64, restarts int) {
	t := newTour(r.p.Matrix, floor, r.best.Ring)
	for range restarts {
		if r.iterate(t, 20*t.n+100, slow) < slow || r.ctx.Err() != nil {
			return
		}
		for i := t.n - 1; i > 0; i-- {
			j := r.random(i + 1)
			t.ring[i], t.ring[j] = t.ring[j], t.ring[i]
		}
		t.index()
	}
}

// iterate kicks and repairs t until patience kicks in a row brought nothing or
// its cost is below enough. It returns the cost reached.
func (r *run) iterate(t *tour, patience int, enough float64) float64 {
	r.descend(t)
	r.take(t)
	current := t.cost()
	saved := slices.Clone(t.ring)
	for idle := 0; idle < patience && current >= enough && r.ctx.Err() == nil; idle++ {
		r.kick(t)
		r.descend(t)
		switch cost := t.cost(); {
		case cost < current-1e-6:
			current, idle = cost, 0
			copy(saved, t.ring)
			r.take(t)
		case cost <= current+1e-6:
			copy(saved, t.ring)
		default:
			t.restore(saved)
		}
	}
	return current
}

func (r *run) take(t *tour) {
	if s, ok := r.p.Solution(slices.Clone(t.ring)); ok {
		r.offer(s)
	}
}

func (r *run) random(n int) int {
	r.rnd ^= r.rnd << 13
	r.rnd ^= r.rnd >> 7
	r.rnd ^= r.rnd << 17
	return int(r.rnd % uint64(n))
}

// kick swaps two neighbouring short segments at a random place.
func (r *run) kick(t *tour) {
	longest := max(1, min(30, t.n/3))
	a := r.random(t.n)
	l1, l2 := 1+r.random(longest), 1+r.random(longest)
	if l1+l2 >= t.n {
		l1, l2 = 1, 1
	}
	t.swap(a, (a+l1)%t.n, (a+l1+l2)%t.n)
}

// descend applies improving moves until there is none.
func (r *run) descend(t *tour) {
	steps := 0
	over := func() bool {
		steps++
		return steps&0xff == 0 && r.ctx.Err() != nil
	}
	for len(t.queue) > 0 && !over() {
		a := t.queue[0]
		t.queue = t.queue[1:]
		t.queued[a] = false
		// Rounding may let two moves undo each other where costs differ by
		// many orders of magnitude: the end of ctx ends that, too.
		for t.improve(a) {
			if over() {
				return
			}
		}
	}
}

// tour is a ring under change.
type tour struct {
	n      int
	w      []float64 // n*n costs
	ring   []int     // position -> peer
	pos    []int     // peer -> position
	out    [][]int32 // cheapest targets of each peer
	in     [][]int32 // cheapest sources of each peer
	queue  []int
	queued []bool
	tmp    []int
}

// neighboursOf is how many candidates each peer has in either direction.
const neighboursOf = 10

func newTour(m topo.Matrix, floor float64, start []int) *tour {
	n := m.N
	t := &tour{
		n: n, w: make([]float64, n*n), ring: make([]int, n), pos: make([]int, n),
		queued: make([]bool, n), tmp: make([]int, n), out: make([][]int32, n), in: make([][]int32, n),
	}
	for i := range n {
		for j := range n {
			switch v, ok := m.At(i, j); {
			case !ok:
				t.w[i*n+j] = missing
			default:
				t.w[i*n+j] = math.Min(1000/v, maxCost)
				if v < floor {
					t.w[i*n+j] += slow
				}
			}
		}
	}
	for i := range n {
		t.out[i] = t.cheapest(i, func(j int) float64 { return t.w[i*n+j] })
		t.in[i] = t.cheapest(i, func(j int) float64 { return t.w[j*n+i] })
	}
	if len(start) == n {
		copy(t.ring, start)
	} else {
		t.greedy()
	}
	t.index()
	return t
}

func (t *tour) cheapest(i int, cost func(int) float64) []int32 {
	c := make([]int32, 0, t.n-1)
	for j := range t.n {
		if j != i {
			c = append(c, int32(j))
		}
	}
	slices.SortFunc(c, func(a, b int32) int {
		switch ca, cb := cost(int(a)), cost(int(b)); {
		case ca < cb:
			return -1
		case ca > cb:
			return 1
		}
		return int(a - b)
	})
	return c[:min(len(c), neighboursOf)]
}

// greedy goes to the nearest peer not yet visited.
func (t *tour) greedy() {
	used := make([]bool, t.n)
	at := 0
	for k := range t.n {
		t.ring[k], used[at] = at, true
		next := -1
		for j := range t.n {
			if !used[j] && (next < 0 || t.w[at*t.n+j] < t.w[at*t.n+next]) {
				next = j
			}
		}
		at = next
	}
}

// index rebuilds what depends on ring and queues every peer.
func (t *tour) index() {
	t.queue = t.queue[:0]
	for k, i := range t.ring {
		t.pos[i] = k
		t.queue = append(t.queue, i)
		t.queued[i] = true
	}
}

// restore goes back to a ring that is a local optimum.
func (t *tour) restore(ring []int) {
	copy(t.ring, ring)
	for k, i := range ring {
		t.pos[i] = k
		t.queued[i] = false
	}
	t.queue = t.queue[:0]
}

func (t *tour) push(i int) {
	if !t.queued[i] {
		t.queued[i] = true
		t.queue = append(t.queue, i)
	}
}

func (t *tour) cost() float64 {
	sum := 0.0
	for k, i := range t.ring {
		sum += t.w[i*t.n+t.ring[(k+1)%t.n]]
	}
	return sum
}

func (t *tour) next(i int) int { return t.ring[(t.pos[i]+1)%t.n] }
func (t *tour) prev(i int) int { return t.ring[(t.pos[i]+t.n-1)%t.n] }

// ahead is how far behind a the peer b comes in the direction of travel.
func (t *tour) ahead(a, b int) int { return (t.pos[b] - t.pos[a] + t.n) % t.n }

// improve tries to give a another successor by the one exchange of three arcs
// that keeps the direction: with b after a, c any candidate, e after d and d
// between c and a, the segments b..before c and c..d change places.
func (t *tour) improve(a int) bool {
	n, w := t.n, t.w
	b := t.next(a)
	ab := w[a*n+b]
	for _, c32 := range t.out[a] {
		c := int(c32)
		gain := ab - w[a*n+c]
		if gain <= 1e-9 {
			break
		}
		if c == b {
			continue
		}
		cp := t.prev(c) // the end of the first segment
		gain += w[cp*n+c]
		reach := t.ahead(c, a) // d may lie 0..reach behind c, a included
		for _, d32 := range t.in[b] {
			d := int(d32)
			if t.ahead(c, d) > reach || d == a {
				continue
			}
			e := t.next(d)
			if gain+w[d*n+e]-w[d*n+b]-w[cp*n+e] > 1e-6 {
				t.apply(a, b, c, cp, d, e)
				return true
			}
		}
		// The same with the cheapest way out of cp instead of into b.
		for _, e32 := range t.out[cp] {
			e := int(e32)
			d := t.prev(e)
			if t.ahead(c, d) > reach || d == a {
				continue
			}
			if gain+w[d*n+e]-w[d*n+b]-w[cp*n+e] > 1e-6 {
				t.apply(a, b, c, cp, d, e)
				return true
			}
		}
	}
	return false
}

func (t *tour) apply(a, b, c, cp, d, e int) {
	t.swap(t.pos[b], t.pos[c], t.pos[e])
	for _, i := range [...]int{a, b, c, cp, d, e} {
		t.push(i)
	}
}

// swap exchanges the segments of positions [i,j) and [j,k), cyclic. The rest
// of the ring is a third segment; exchanging any two is the same ring, so the
// longest stays where it is.
func (t *tour) swap(i, j, k int) {
	n := t.n
	l1, l2 := (j-i+n)%n, (k-j+n)%n
	l3 := n - l1 - l2
	switch {
	case l1 >= l2 && l1 >= l3:
		i, l1, l2 = j, l2, l3
	case l2 >= l1 && l2 >= l3:
		i, l1, l2 = k%n, l3, l1
	}
	for x := range l1 {
		t.tmp[x] = t.ring[(i+x)%n]
	}
	for x := range l2 {
		t.place((i+x)%n, t.ring[(i+l1+x)%n])
	}
	for x := range l1 {
		t.place((i+l2+x)%n, t.tmp[x])
	}
	t.push(t.ring[(i+n-1)%n])
	t.push(t.ring[i])
	t.push(t.ring[(i+l2-1)%n])
	t.push(t.ring[(i+l2)%n])
	t.push(t.ring[(i+l1+l2-1)%n])
	t.push(t.ring[(i+l1+l2)%n])
}

func (t *tour) place(at, i int) {
	t.ring[at] = i
	t.pos[i] = at
}
