// Package antcolony orders peers with an ant colony, the method that PCCL's
// own solver is named after. It is here for comparison: "auto" is better at
// any budget.
package antcolony

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/solvers/internal/ring"
)

func init() { topo.Register(Solver{}) }

// Solver is the solver "antcolony".
type Solver struct{}

// Name returns "antcolony".
func (Solver) Name() string { return "antcolony" }

// Parameters of the MAX-MIN ant system (Stuetzle and Hoos, Future Generation
// Computer Systems 16, 2000).
const (
	enumerate   = 7 // groups of which all rings are tried
	ants        = 16
	nearest     = 15 // links that an ant weighs at each step, if they are open
	evaporation = 0.1
	patience    = 200 // rounds without a better ring
)

// Solve lets ants walk until ctx ends or rounds in a row brought nothing.
func (Solver) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	if p.Matrix.N <= enumerate || p.Check() != nil {
		return ring.Solve(ctx, p, better, ring.Options{})
	}
	c := newColony(p)
	now, end := topo.Clock(ctx)
	over := func() bool { return ctx.Err() != nil || now() >= end }
	var best topo.Solution
	take := func(s topo.Solution) bool {
		if !p.Objective.Better(s, best) {
			return false
		}
		best = s
		out := s
		out.Ring = slices.Clone(s.Ring)
		better(out)
		return true
	}
	if s, ok := p.Solution(slices.Clone(p.Start)); ok {
		take(s)
	}
	for idle := 0; idle < patience && !over(); idle++ {
		var round topo.Solution
		for range ants {
			if s, ok := p.Solution(c.walk(over)); ok && p.Objective.Better(s, round) {
				round = s
			}
			if over() {
				break
			}
		}
		if len(round.Ring) > 0 && take(round) {
			idle = -1
		}
		c.update(best, round, idle)
	}
	if len(best.Ring) == 0 {
		// No ant came through: another method says whether anybody can.
		return ring.Solve(ctx, p, better, ring.Options{})
	}
	return best, nil
}

// colony is the trail on every link, and what draws an ant to it.
type colony struct {
	n     int
	cost  []float64 // infinite: no link
	pull  []float64 // trail times attraction
	trail []float64
	near  [][]int32
	rnd   *rand.Rand
}

func newColony(p topo.Problem) *colony {
	n := p.Matrix.N
	c := &colony{
		n: n, cost: make([]float64, n*n), pull: make([]float64, n*n), trail: make([]float64, n*n),
		near: make([][]int32, n), rnd: rand.New(rand.NewPCG(p.Seed, 1)),
	}
	for i := range n {
		for j := range n {
			c.cost[i*n+j], c.trail[i*n+j] = math.Inf(1), 1
			if v, ok := p.Matrix.Cost(i, j); ok {
				c.cost[i*n+j] = v
				c.near[i] = append(c.near[i], int32(j))
			}
		}
		slices.SortStableFunc(c.near[i], func(a, b int32) int {
			switch ca, cb := c.cost[i*n+int(a)], c.cost[i*n+int(b)]; {
			case ca < cb:
				return -1
			case ca > cb:
				return 1
			}
			return 0
		})
	}
	c.weigh()
	return c
}

// weigh recomputes the pull of the links that ants weigh.
func (c *colony) weigh() {
	for i, near := range c.near {
		for _, j := range near[:min(nearest, len(near))] {
			k := i*c.n + int(j)
			c.pull[k] = c.trail[k] / math.Max(c.cost[k]*c.cost[k], 1e-200)
		}
	}
}

// walk returns the way of one ant, shorter than a ring if it came to a dead end.
func (c *colony) walk(over func() bool) []int {
	way := make([]int, 0, c.n)
	seen := make([]bool, c.n)
	pull := make([]float64, nearest)
	for at := c.rnd.IntN(c.n); ; {
		way = append(way, at)
		seen[at] = true
		if len(way) == c.n || len(way)&63 == 0 && over() {
			return way
		}
		near := c.near[at]
		sum := 0.0
		few := near[:min(nearest, len(near))]
		for k, j := range few {
			pull[k] = 0
			if !seen[j] {
				pull[k] = c.pull[at*c.n+int(j)]
			}
			sum += pull[k]
		}
		next := -1
		if sum > 0 && !math.IsInf(sum, 1) {
			x := c.rnd.Float64() * sum
			for k, j := range few {
				if pull[k] > 0 {
					next = int(j)
					if x -= pull[k]; x < 0 {
						break
					}
				}
			}
		}
		for _, j := range near {
			if next >= 0 {
				break
			}
			if !seen[j] {
				next = int(j)
			}
		}
		if next < 0 {
			return way
		}
		at = next
	}
}

// update lets the trails fade and marks the ring of the round, now and then
// the best one. Trails stay between bounds, so that no link is ever out of the
// question.
func (c *colony) update(best, round topo.Solution, idle int) {
	for k := range c.trail {
		c.trail[k] *= 1 - evaporation
	}
	mark := round
	if len(mark.Ring) == 0 || idle%5 == 0 {
		mark = best
	}
	for k, i := range mark.Ring {
		c.trail[i*c.n+mark.Ring[(k+1)%c.n]] += evaporation
	}
	least := 1 / (2 * float64(c.n))
	for k := range c.trail {
		c.trail[k] = min(1, max(least, c.trail[k]))
	}
	c.weigh()
}
