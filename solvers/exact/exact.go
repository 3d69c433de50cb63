// Package exact finds the best ring of a small group by dynamic programming
// over subsets (Held and Karp) and proves it. Memory and time double with
// every peer: 12 peers take milliseconds, MaxPeers a second.
package exact

import (
	"context"
	"fmt"
	"math"

	"github.com/gopccl/gopccl/core/topo"
)

// MaxPeers is the largest group that Solve accepts.
const MaxPeers = 16

func init() { topo.Register(Solver{}) }

// Solver is the solver "exact".
type Solver struct{}

// Name returns "exact".
func (Solver) Name() string { return "exact" }

// Solve returns the best ring, proved. If ctx ends first it returns Start, if
// that is a ring, else ctx's error. More than MaxPeers are an error.
func (Solver) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	if err := p.Check(); err != nil {
		return topo.Solution{}, err
	}
	n := p.Matrix.N
	if n > MaxPeers {
		return topo.Solution{}, fmt.Errorf("exact: %d peers, at most %d can be solved exactly", n, MaxPeers)
	}
	if n < 2 {
		return topo.Solution{}, topo.ErrNoRing
	}
	start, have := p.Solution(append([]int(nil), p.Start...))
	if have {
		better(start)
	}
	interrupted := func() (topo.Solution, error) {
		if have {
			return start, nil
		}
		return topo.Solution{}, fmt.Errorf("exact: interrupted: %w", ctx.Err())
	}

	d := dp{n: n, rate: make([]float64, n*n)}
	for i := range n {
		for j := range n {
			d.rate[i*n+j], _ = p.Matrix.At(i, j)
		}
	}
	floor := 0.0
	if p.Objective != topo.Sum {
		var ok bool
		if floor, ok = d.bottleneck(ctx); !ok {
			return interrupted()
		}
		if floor == 0 {
			return topo.Solution{}, topo.ErrNoRing
		}
	}
	ring, ok := d.shortest(ctx, floor)
	if !ok {
		return interrupted()
	}
	if ring == nil {
		return topo.Solution{}, topo.ErrNoRing
	}
	best, ok := p.Solution(ring)
	if !ok {
		return topo.Solution{}, topo.ErrNoRing
	}
	// Of equal rings the one in force stays.
	if have && !p.Objective.Better(best, start) {
		best = start
	} else {
		better(best)
	}
	return p.Proved(best), nil
}

// dp works on paths from peer n-1 through a set of the others; table[set*k+last].
type dp struct {
	n    int
	rate []float64 // 0: no link
}

func (d dp) each(ctx context.Context, visit func(set, last int)) bool {
	k := d.n - 1
	for set := 1; set < 1<<k; set++ {
		if set&0xff == 0 && ctx.Err() != nil {
			return false
		}
		for last := range k {
			if set&(1<<last) != 0 {
				visit(set, last)
			}
		}
	}
	return ctx.Err() == nil
}

// bottleneck returns the largest slowest link of any ring, 0 if there is none;
// false if ctx ended.
func (d dp) bottleneck(ctx context.Context) (float64, bool) {
	n, k := d.n, d.n-1
	table := make([]float64, k<<k)
	done := d.each(ctx, func(set, last int) {
		rest := set &^ (1 << last)
		v := 0.0
		if rest == 0 {
			v = d.rate[k*n+last]
		}
		for prev := 0; prev < k; prev++ {
			if rest&(1<<prev) != 0 {
				v = max(v, min(table[rest*k+prev], d.rate[prev*n+last]))
			}
		}
		table[set*k+last] = v
	})
	best := 0.0
	for last := range k {
		best = max(best, min(table[((1<<k)-1)*k+last], d.rate[last*n+k]))
	}
	return best, done
}

// shortest returns the ring with the least sum of 1000/rate over links of at
// least floor; nil if there is none, false if ctx ended.
func (d dp) shortest(ctx context.Context, floor float64) ([]int, bool) {
	n, k := d.n, d.n-1
	cost := make([]float64, n*n)
	for i, r := range d.rate {
		cost[i] = math.Inf(1)
		if r > 0 && r >= floor {
			cost[i] = 1000 / r
		}
	}
	table := make([]float64, k<<k)
	from := make([]uint8, k<<k)
	done := d.each(ctx, func(set, last int) {
		rest := set &^ (1 << last)
		v, at := math.Inf(1), uint8(k)
		if rest == 0 {
			v = cost[k*n+last]
		}
		for prev := 0; prev < k; prev++ {
			if rest&(1<<prev) != 0 {
				if c := table[rest*k+prev] + cost[prev*n+last]; c < v {
					v, at = c, uint8(prev)
				}
			}
		}
		table[set*k+last], from[set*k+last] = v, at
	})
	if !done {
		return nil, false
	}
	set := 1<<k - 1
	best, last := math.Inf(1), -1
	for l := range k {
		if c := table[set*k+l] + cost[l*n+k]; c < best {
			best, last = c, l
		}
	}
	if last < 0 {
		return nil, true
	}
	ring := make([]int, n)
	ring[0] = k
	for i := n - 1; i > 0; i-- {
		ring[i] = last
		set, last = set&^(1<<last), int(from[set*k+last])
	}
	return ring, true
}
