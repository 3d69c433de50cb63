// Package ring orders peers: it turns the bandwidth matrix of a problem into
// integer weights, bounds what a ring can reach, and searches with package
// atsp for the least sum, or for the fastest bottleneck and then the least sum.
package ring

import (
	"context"
	"slices"
	"sort"
	"time"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/solvers/internal/atsp"
)

// Options choose the parts that take part in a search.
type Options struct {
	// Branch: branch and bound, for proofs and where the assignment bound is
	// close.
	Branch bool
	// Prove spends the time on branch and bound as soon as there is a good ring.
	Prove bool
	// Subsets is the largest group that dynamic programming may solve, 0 to 20.
	Subsets int
	// BottleneckFirst looks for the fastest bottleneck even if the objective is
	// the sum.
	BottleneckFirst bool

	soft float64 // penalty to begin with; 0: softly
}

// run is one search.
type run struct {
	clock
	costs      *costs
	opt        Options
	p          topo.Problem
	better     func(topo.Solution)
	best       topo.Solution
	plain      *atsp.Assignment // of all links
	plainScale float64
	sum        float64 // no ring has a smaller sum
	bound      float64 // no ring has a faster bottleneck; 0: unknown
}

// few is the largest group of which all rings are tried.
const few = 7

// Solve is the Solve of a topo.Solver.
func Solve(ctx context.Context, p topo.Problem, better func(topo.Solution), opt Options) (topo.Solution, error) {
	if err := p.Check(); err != nil {
		return topo.Solution{}, err
	}
	r := &run{clock: newClock(ctx), opt: opt, p: p, better: better}
	if p.Matrix.N < 2 {
		return topo.Solution{}, &topo.NoRingError{Proved: true, Reason: "a ring has two peers or more"}
	}
	if s, ok := p.Solution(slices.Clone(p.Start)); ok {
		r.offer(s)
	}
	r.costs = newCosts(p.Matrix)
	n := p.Matrix.N
	switch {
	case n <= few:
		r.all()
	case n <= opt.Subsets && 2*subsetTime(n) < r.left():
		if n > 13 && r.end != endless {
			// An answer first, the proof behind it.
			whole := r.clock
			r.clock = r.part(0.05)
			r.search()
			r.clock = whole
		}
		r.bound, _ = bottleneckBound(p.Matrix, r.over)
		r.first()
		if !r.best.Optimal && !r.bySubsets() {
			r.search()
		}
	default:
		r.search()
	}
	return r.result()
}

func (r *run) search() {
	if r.p.Objective == topo.Sum && !r.opt.BottleneckFirst {
		r.bySum()
	} else {
		r.byBottleneck()
	}
}

func (r *run) result() (topo.Solution, error) {
	if !r.best.Optimal && r.over() {
		// Where the time was too short for a search, the order in which one
		// peer names the next is far better than the order of the numbers.
		if s, ok := r.p.Solution(r.nearest()); ok {
			r.offer(s)
		}
	}
	if len(r.best.Ring) > 0 {
		return r.bounded(r.best), nil
	}
	return topo.Solution{}, r.noRing()
}

// nearest goes from peer 0 to the one it reaches fastest of those that are
// left, and so on; nil if that ends before all are visited.
func (r *run) nearest() []int {
	n := r.p.Matrix.N
	ring, visited := make([]int, 1, n), make([]bool, n)
	visited[0] = true
	for len(ring) < n {
		next, fastest := -1, 0.0
		for j := range n {
			if v, ok := r.p.Matrix.At(ring[len(ring)-1], j); ok && !visited[j] && v > fastest {
				next, fastest = j, v
			}
		}
		if next < 0 {
			return nil
		}
		ring, visited[next] = append(ring, next), true
	}
	return ring
}

// bounded adds the bounds to a solution.
func (r *run) bounded(s topo.Solution) topo.Solution {
	s.SumLowerBound = min(r.sum, s.Sum)
	s.BottleneckBound = r.bound
	if s.Optimal {
		s = r.p.Proved(s)
	}
	return s
}

// offer keeps s if it is better than the best ring so far.
func (r *run) offer(s topo.Solution) {
	if r.p.Objective.Better(s, r.best) {
		r.best = s
		out := r.bounded(s)
		out.Ring = slices.Clone(s.Ring)
		r.better(out)
	}
}

// all tries all rings. What it has seen of them bounds nothing before the end.
func (r *run) all() {
	n := r.p.Matrix.N
	ring := make([]int, 1, n)
	least, fastest := 0.0, 0.0
	var try func(used uint)
	try = func(used uint) {
		if len(ring) == n {
			if s, ok := r.p.Solution(ring); ok {
				fastest = max(fastest, s.Bottleneck)
				if least == 0 || s.Sum < least {
					least = s.Sum
				}
				if r.p.Objective.Better(s, r.best) {
					s.Ring = slices.Clone(s.Ring)
					r.offer(s)
				}
			}
			return
		}
		for j := range n {
			if _, ok := r.p.Matrix.At(ring[len(ring)-1], j); ok && used&(1<<j) == 0 && !r.over() {
				ring = append(ring, j)
				try(used | 1<<j)
				ring = ring[:len(ring)-1]
			}
		}
	}
	try(1)
	if r.over() {
		return
	}
	r.sum, r.bound = least, fastest
	r.best.Optimal = len(r.best.Ring) > 0
}

// bySum minimises the sum over all rings.
func (r *run) bySum() {
	if r.bound == 0 {
		r.bound, _ = bottleneckBound(r.p.Matrix, r.over)
	}
	if g := newDigraph(r.p.Matrix.N); len(r.best.Ring) == 0 {
		g.fill(r.p.Matrix, 0, nil)
		if !g.admits() {
			return
		}
	}
	if r.polish(r.clock, 0, 0) {
		r.best.Optimal = true
	}
}

// order returns a ring in the form of package atsp.
func order(ring []int) []int32 {
	o := make([]int32, len(ring))
	for k, i := range ring {
		o[k] = int32(i)
	}
	return o
}

// evaluate offers the ring of order and returns it; false if it is none over
// links of at least floor.
func (r *run) evaluate(order []int32, floor float64) (topo.Solution, bool) {
	ring := make([]int, len(order))
	for k, i := range order {
		ring[k] = int(i)
	}
	s, ok := r.p.Solution(ring)
	if ok {
		r.offer(s)
	}
	return s, ok && s.Bottleneck >= floor
}

// softly is what a link below the floor costs more than it does, in links of
// the floor. A ring that has a few of them on the way from one valid ring to
// another must not look hopeless, or the search never leaves the valid rings
// that it met first.
const softly = 4

// polish searches the least sum over links of at least floor; true if what it
// found is proved to be that.
func (r *run) polish(c clock, floor float64, seed uint64) bool {
	var known topo.Solution // best ring at floor
	if len(r.best.Ring) > 0 && r.best.Bottleneck >= floor {
		known = r.best
	}
	soft := r.opt.soft
	if soft == 0 {
		soft = softly
	}
	for {
		top := float64(topo.MaxCost)
		penalty := flat(float64(r.p.Matrix.N) * r.costs.top)
		if len(known.Ring) > 0 {
			// No link of a better ring costs more than the whole known one.
			top = min(top, known.Sum)
			most, more := 2*known.Sum, 0.0
			if floor > 0 {
				more = soft * 1000 / floor
			}
			penalty = func(cost float64) float64 {
				if cost > top || more == 0 {
					return most
				}
				return min(most, cost+more)
			}
		}
		w := r.costs.weigh(floor, top, penalty)
		again, clean := false, len(known.Ring) > 0
		s := &atsp.Search{W: w.Weights, Seed: r.p.Seed*31 + seed, Over: c.over, Left: c.left, Branch: r.opt.Branch, Prove: r.opt.Prove}
		if len(known.Ring) > 0 {
			s.Start = append(s.Start, order(known.Ring))
			s.Duals = r.duals(w)
		}
		s.Report = func(o []int32, _ int64) bool {
			v, ok := r.evaluate(o, floor)
			if clean && !ok && soft*1000/floor < 2*known.Sum {
				// A slow link pays for itself.
				soft *= 4
				again = true
				return true
			}
			clean = ok
			if ok && (len(known.Ring) == 0 || v.Sum < known.Sum) {
				known = v
			}
			// If the dearest link dwarfs the ring, the scale was too rough.
			again = ok && !w.exact && w.top > 1e3*v.Sum
			return again
		}
		s.Run()
		if again && !c.over() {
			continue
		}
		if floor == 0 && s.Bound > 0 {
			r.sum = max(r.sum, float64(s.Bound)/w.scale-w.error())
		}
		return s.Proved && clean && w.error() <= topo.Tolerance*known.Sum
	}
}

// find looks for any ring over links of at least floor: slower links cost four
// times what the slowest of these does, and more the slower they are.
func (r *run) find(c clock, floor float64, seed uint64) bool {
	dear := r.costs.top
	if floor > 0 {
		dear = min(dear, 1000/floor)
	}
	grade := float64(1 - seed%2) // searches that go on take the two in turns
	w := r.costs.weigh(floor, topo.MaxCost, func(cost float64) float64 { return 4*dear + grade*min(cost, 16*dear) })
	found := false
	s := &atsp.Search{W: w.Weights, Seed: r.p.Seed*31 + seed, Over: c.over, Left: c.left}
	if len(r.best.Ring) > 0 {
		s.Start = append(s.Start, order(r.best.Ring))
		s.Duals = r.duals(w)
	}
	s.Report = func(o []int32, _ int64) bool {
		_, ok := r.evaluate(o, floor)
		found = found || ok
		return found
	}
	s.Run()
	return found
}

// many is the group from which on an assignment problem of its own is too dear
// for every threshold.
const many = 128

// short is a time for which one assignment problem is too dear.
const short = 200 * time.Millisecond

// duals returns the duals of all links for weights of w with penalties, which
// are dearer; nil where the weights should have their own.
func (r *run) duals(w scaled) *atsp.Assignment {
	if r.plain == nil || w.scale != r.plainScale || w.N <= many || r.left() > short {
		return nil
	}
	return r.plain
}

// first solves the assignment problem of all links: a bound for the sum, duals,
// and, patched, the first ring.
func (r *run) first() {
	w := r.costs.weigh(0, topo.MaxCost, flat(float64(r.p.Matrix.N)*r.costs.top))
	a := atsp.Assign(w.Weights, r.over)
	if a == nil {
		return
	}
	r.plain, r.plainScale = a, w.scale
	r.sum = max(0, float64(a.Value)/w.scale-w.error())
	r.evaluate(atsp.Patched(w.Weights, a, r.over), 0)
}

// byBottleneck looks for a ring at the highest threshold that could admit one,
// then between that and the best found, and spends the rest on the sum.
func (r *run) byBottleneck() {
	bound, tight := bottleneckBound(r.p.Matrix, r.over)
	if bound == 0 {
		return
	}
	r.bound = bound
	objective := r.p.Objective
	r.p.Objective = topo.BottleneckThenSum
	r.first()
	// The bound itself is met more often than not; if there is little time, what
	// is below it counts more.
	at, below := 0.2, 0.5
	if r.left() < short {
		at, below = 0.1, 0.6
	}
	if r.best.Bottleneck < bound && !r.find(r.part(at), bound, 0) {
		r.bisect(r.part(below), 0)
	}
	if len(r.best.Ring) == 0 {
		r.find(r.clock, 0, 0)
	}
	if len(r.best.Ring) == 0 {
		return
	}
	if r.p.Objective = objective; objective == topo.Sum {
		r.bySum()
		return
	}
	for seed := uint64(0); !r.over(); seed++ {
		met := r.best.Bottleneck >= bound
		share := 1.0
		if !met && r.end != endless {
			share = 0.5
		}
		proved := r.polish(r.part(share), r.best.Bottleneck, seed)
		if met {
			r.best.Optimal = proved && tight
			return
		}
		// Another look for a faster ring, from another side.
		before := r.best.Bottleneck
		if !r.find(r.part(0.3), bound, seed+1) {
			r.bisect(r.part(0.3), seed+1)
		}
		if r.best.Bottleneck == before && seed >= 3 {
			r.polish(r.clock, before, seed+1)
			return
		}
	}
}

// bisect looks for rings of a bottleneck between the best found and the bound.
func (r *run) bisect(c clock, seed uint64) {
	rates := thresholds(r.p.Matrix, r.best.Bottleneck, r.bound)
	hi := len(rates) - 1 // tried already
	for !c.over() {
		lo := -1
		if len(r.best.Ring) > 0 {
			lo = sort.SearchFloat64s(rates, r.best.Bottleneck)
		}
		next := (lo + hi) / 2
		if next = max(next, lo+1); next >= hi {
			return
		}
		if !r.find(c.part(0.3), rates[next], seed) {
			hi = next
		}
	}
}
