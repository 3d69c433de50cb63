package hierarchical

import (
	"context"
	"math"
	"slices"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/contention"
)

// allRings is the largest group whose rings are all tried, 7! of them.
const allRings = 8

// planBudget bounds the sets of transfers that the planner asks the model for.
const planBudget = 2000

// SolveShared implements topo.SharingSolver: the ring that is fastest while all
// of its links are in use. Up to 8 peers it tries all rings. For larger groups
// it begins with the start ring and with the planner's, which enters every host
// once and so shares least, and improves the better one by moving and reversing
// segments and by random kicks until ctx ends or nothing was found for long.
func (Solver) SolveShared(ctx context.Context, p topo.Problem, s *topo.Sharing, better func(topo.Solution)) (topo.Solution, error) {
	if err := p.Check(); err != nil {
		return topo.Solution{}, err
	}
	d := &descent{p: p, s: s, ctx: ctx, better: better, rng: p.Seed + 1}
	if p.Matrix.N < 2 {
		return topo.Solution{}, topo.ErrNoRing
	}
	d.try(p.Start)
	if p.Matrix.N <= allRings {
		return d.all()
	}
	d.try(contiguousShared(ctx, p, s))
	if d.best.Ring == nil {
		// Any ring of the links will do to begin with.
		auto, err := topo.Lookup("auto")
		if err != nil {
			return topo.Solution{}, err
		}
		first, err := auto.Solve(ctx, p, func(topo.Solution) {})
		if err != nil {
			return topo.Solution{}, err
		}
		d.try(first.Ring)
	}
	d.improve()
	return d.best, nil
}

// contiguousShared asks the planner for a ring that enters every host once; nil
// if the hosts are too many or too large for it, or there is none.
func contiguousShared(ctx context.Context, p topo.Problem, s *topo.Sharing) []int {
	n := p.Matrix.N
	alone := topo.NewMatrix(n)
	sites := make([][]int, len(s.Out))
	for i := range n {
		sites[s.Host[i]] = append(sites[s.Host[i]], i)
		for j := range n {
			v, ok := p.Matrix.At(i, j)
			if !ok {
				continue
			}
			if s.Host[i] != s.Host[j] {
				v = min(v, bound(s.Out[s.Host[i]]), bound(s.In[s.Host[j]]))
			}
			alone.Set(i, j, v)
		}
	}
	sites = slices.DeleteFunc(sites, func(m []int) bool { return len(m) == 0 })
	planner := Planner{
		Meter: contention.Shared(n, p.Matrix.Mbps, s.Host, s.Out, s.In),
		Alone: alone, Sites: sites, Budget: planBudget,
	}
	plan, err := planner.Plan(ctx)
	if err != nil {
		return nil
	}
	return plan.Ring
}

func bound(mbps float64) float64 {
	if mbps > 0 {
		return mbps
	}
	return math.Inf(1)
}

// descent is a local search among rings valued by what they share.
type descent struct {
	p      topo.Problem
	s      *topo.Sharing
	ctx    context.Context
	better func(topo.Solution)
	rng    uint64
	best   topo.Solution
}

func (d *descent) value(ring []int) (topo.Solution, bool) {
	b, sum, ok := d.s.Value(d.p.Matrix, ring)
	return topo.Solution{Ring: ring, Bottleneck: b, Sum: sum}, ok
}

// try makes ring the best one if it is; the ring stays the caller's.
func (d *descent) try(ring []int) bool {
	v, ok := d.value(ring)
	if !ok || !d.p.Objective.Better(v, d.best) {
		return false
	}
	v.Ring = slices.Clone(ring)
	d.best = v
	d.better(topo.Solution{Ring: slices.Clone(ring), Bottleneck: v.Bottleneck, Sum: v.Sum})
	return true
}

// all tries every ring.
func (d *descent) all() (topo.Solution, error) {
	ring := make([]int, d.p.Matrix.N)
	for i := range ring {
		ring[i] = i
	}
	var permute func(k int)
	permute = func(k int) {
		if k == len(ring) {
			d.try(ring)
			return
		}
		for i := k; i < len(ring); i++ {
			ring[k], ring[i] = ring[i], ring[k]
			permute(k + 1)
			ring[k], ring[i] = ring[i], ring[k]
		}
	}
	permute(1)
	if d.best.Ring == nil {
		return topo.Solution{}, &topo.NoRingError{Proved: true}
	}
	d.best = d.p.Proved(d.best)
	return d.best, nil
}

// improve descends from the best ring, again and again after a random kick.
func (d *descent) improve() {
	n := d.p.Matrix.N
	at := d.best
	for fruitless := 0; fruitless < 50+5*n && d.ctx.Err() == nil; fruitless++ {
		at = d.descend(at)
		if d.try(at.Ring) {
			fruitless = 0
		}
		at = d.kick(d.best.Ring)
	}
}

// descend moves segments of up to three peers elsewhere, turned around or not,
// and reverses segments, as long as that helps.
func (d *descent) descend(at topo.Solution) topo.Solution {
	n := len(at.Ring)
	next := make([]int, 0, n)
	take := func() bool {
		v, ok := d.value(next)
		if !ok || at.Ring != nil && !d.p.Objective.Better(v, at) {
			return false
		}
		v.Ring = slices.Clone(next)
		at = v
		return true
	}
	for again := true; again; {
		again = false
		for length := 1; length <= min(3, n-2); length++ {
			for from := 0; from < n && d.ctx.Err() == nil; from++ {
				turned := append(slices.Clone(at.Ring[from:]), at.Ring[:from]...)
				segment, rest := turned[:length], turned[length:]
				back := slices.Clone(segment)
				slices.Reverse(back)
				for to := 1; to < len(rest); to++ {
					for _, seg := range [][]int{segment, back} {
						next = append(append(append(next[:0], rest[:to]...), seg...), rest[to:]...)
						again = take() || again
					}
				}
			}
		}
		for i := 0; i < n-1 && d.ctx.Err() == nil; i++ {
			for j := i + 2; j <= n; j++ {
				next = append(next[:0], at.Ring...)
				slices.Reverse(next[i:j])
				again = take() || again
			}
		}
		if d.ctx.Err() != nil {
			break
		}
	}
	return at
}

// kick cuts a ring into four segments and swaps the two in the middle.
func (d *descent) kick(ring []int) topo.Solution {
	n := len(ring)
	cuts := []int{1 + d.draw(n-1), 1 + d.draw(n-1), 1 + d.draw(n-1)}
	slices.Sort(cuts)
	r := slices.Concat(ring[:cuts[0]], ring[cuts[1]:cuts[2]], ring[cuts[0]:cuts[1]], ring[cuts[2]:])
	v, ok := d.value(r)
	if !ok {
		v = topo.Solution{Ring: r, Bottleneck: 0, Sum: math.Inf(1)}
	}
	return v
}

// draw returns a number in [0, k) (splitmix64).
func (d *descent) draw(k int) int {
	d.rng += 0x9e3779b97f4a7c15
	z := d.rng
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) % uint64(k))
}
