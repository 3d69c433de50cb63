package main

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/topo"
)

// lpexact proves rings by branch and cut (Dantzig, Fulkerson and Johnson, 1954;
// Padberg and Rinaldi, 1991). The built-in portfolio gives a ring; assignment
// and linear programme with subtour constraints bound all others and exclude
// arcs whose reduced cost exceeds the gap; an integer programme over the rest
// gets constraints until its optimum is one ring.
//
// A proof is as exact as the arithmetic of the engine: see tolerance.
type lpexact struct{ engine *engine }

// tolerance is the relative error of objectives that the engines' arithmetic
// may make.
const tolerance = 1e-7

// spread is how far costs may lie apart for that to be true.
const spread = 1e7

// Name returns "lpexact".
func (lpexact) Name() string { return "lpexact" }

// Solve implements topo.Solver.
func (l lpexact) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	if err := p.Check(); err != nil {
		return topo.Solution{}, err
	}
	auto, err := topo.Lookup("auto")
	if err != nil {
		return topo.Solution{}, err
	}
	quick := 2 * time.Second
	if t, ok := ctx.Deadline(); ok {
		quick = min(quick, time.Until(t)/3)
	}
	qctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	best, err := auto.Solve(qctx, p, func(s topo.Solution) {
		s.Ring = slices.Clone(s.Ring)
		better(s)
	})
	var none *topo.NoRingError
	if errors.As(err, &none) && !none.Proved && p.Matrix.N > 1 {
		err = nil // an integer programme will tell
	}
	if err != nil || best.Optimal {
		return best, err
	}
	r := &attempt{l: l, ctx: ctx, p: p, best: best, better: better}
	err = r.prove()
	switch {
	case len(r.best.Ring) == 0 && err == nil:
		return topo.Solution{}, &topo.NoRingError{Proved: true, Reason: "the integer programme over the existing links has no solution"}
	case len(r.best.Ring) == 0 && ctx.Err() != nil:
		return topo.Solution{}, &topo.NoRingError{}
	case err != nil && ctx.Err() == nil:
		return topo.Solution{}, err
	}
	return r.best, nil
}

// attempt is one call of Solve.
type attempt struct {
	l      lpexact
	ctx    context.Context
	p      topo.Problem
	best   topo.Solution
	better func(topo.Solution)
}

// offer takes a ring that was found.
func (r *attempt) offer(ring []int) {
	s, ok := r.p.Solution(ring)
	if ok && r.p.Objective.Better(s, r.best) {
		s.SumLowerBound, s.BottleneckBound = r.best.SumLowerBound, r.best.BottleneckBound
		r.best = s
		s.Ring = slices.Clone(ring)
		r.better(s)
	}
}

// prove improves best until it is proved; without a ring afterwards there is none.
func (r *attempt) prove() error {
	if r.p.Objective == topo.Sum {
		done, err := r.minimise(0)
		if err == nil && done && len(r.best.Ring) > 0 {
			r.best = r.p.Proved(r.best)
		}
		return err
	}
	if err := r.bottleneck(); err != nil || len(r.best.Ring) == 0 {
		return err
	}
	r.best.BottleneckBound = r.best.Bottleneck
	done, err := r.minimise(r.best.Bottleneck)
	if err == nil && done {
		r.best = r.p.Proved(r.best)
	}
	return err
}

// bottleneck looks for faster slowest links than that of best, by halves of the
// rates that could be, and leaves the fastest.
func (r *attempt) bottleneck() error {
	var rates []float64
	for i := range r.p.Matrix.N {
		for j := range r.p.Matrix.N {
			if v, ok := r.p.Matrix.At(i, j); ok && v > r.best.Bottleneck && (r.best.BottleneckBound == 0 || v <= r.best.BottleneckBound) {
				rates = append(rates, v)
			}
		}
	}
	slices.Sort(rates)
	rates = slices.Compact(rates)
	for len(rates) > 0 {
		mid := len(rates) / 2
		if len(r.best.Ring) == 0 {
			mid = 0 // is there a ring at all?
		}
		found, err := r.feasible(rates[mid])
		switch {
		case err != nil:
			return err
		case found:
			rates = slices.DeleteFunc(rates, func(v float64) bool { return v <= r.best.Bottleneck })
		case mid == 0:
			return nil
		default:
			rates = rates[:mid]
		}
	}
	return nil
}

// feasible reports whether links of at least floor admit a ring, and offers it.
func (r *attempt) feasible(floor float64) (bool, error) {
	m := r.model(floor, math.Inf(1))
	if m == nil {
		return false, nil
	}
	for k := range m.cost {
		m.cost[k] = 0 // any ring will do
	}
	ring, _, err := m.integer(r.ctx)
	if ring != nil {
		r.offer(ring)
	}
	return ring != nil, err
}

// minimise looks for a smaller sum than that of best over links of at least
// floor: done if there is none any more.
func (r *attempt) minimise(floor float64) (done bool, err error) {
	limit := math.Inf(1)
	if len(r.best.Ring) > 0 {
		limit = r.best.Sum
	}
	m := r.model(floor, limit)
	if m == nil {
		return true, nil
	}
	if m.least*spread < m.most {
		return false, nil // the engine's arithmetic would prove nothing
	}
	ring, bound, err := m.linear(r.ctx)
	if floor == 0 && bound > 0 {
		r.best.SumLowerBound = max(r.best.SumLowerBound, bound*(1-tolerance))
		if len(r.best.Ring) > 0 {
			r.best.SumLowerBound = min(r.best.SumLowerBound, r.best.Sum)
		}
	}
	if err != nil {
		return false, err
	}
	if ring == nil && bound < limit*(1-tolerance) {
		if ring, _, err = m.integer(r.ctx); err != nil {
			return false, err
		}
	}
	if ring != nil {
		r.offer(ring)
	}
	return true, nil
}

// model is an assignment problem with subtour constraints over the arcs that
// are not excluded yet.
type model struct {
	l           lpexact
	n           int
	arcs        []arc
	cost        []float64
	sets        [][]int // of the subtour constraints
	limit       float64 // nothing dearer is of interest
	least, most float64 // of the costs
}

// model returns the arcs of at least floor without those that only a ring above
// limit can have, nil if not even an assignment is left.
func (r *attempt) model(floor, limit float64) *model {
	n := r.p.Matrix.N
	cost := func(i, j int) float64 {
		if v, ok := r.p.Matrix.At(i, j); !ok || v < floor {
			return math.Inf(1)
		}
		c, _ := r.p.Matrix.Cost(i, j)
		return c
	}
	total, u, v, ok := assign(n, cost)
	if !ok {
		return nil
	}
	m := &model{l: r.l, n: n, limit: limit, least: math.Inf(1)}
	for i := range n {
		for j := range n {
			c := cost(i, j)
			if !math.IsInf(c, 1) && (math.IsInf(limit, 1) || c-u[i]-v[j] <= limit-total+tolerance*limit) {
				m.arcs = append(m.arcs, arc{i, j})
				m.cost = append(m.cost, c)
				m.least, m.most = min(m.least, c), max(m.most, c)
			}
		}
	}
	return m
}

func (m *model) programme(integer bool) programme {
	p := programme{cost: m.cost, integer: integer, rows: make([]row, 2*m.n, 2*m.n+len(m.sets))}
	for i := range 2 * m.n {
		p.rows[i] = row{equal: true, rhs: 1}
	}
	for k, a := range m.arcs {
		p.rows[a.from].vars = append(p.rows[a.from].vars, k)
		p.rows[m.n+a.to].vars = append(p.rows[m.n+a.to].vars, k)
	}
	for _, s := range m.sets {
		p.rows = append(p.rows, cut(m.n, m.arcs, s))
	}
	return p
}

// broken reports a constraint without variables: nothing can fulfil it.
func (p programme) broken() bool {
	return slices.ContainsFunc(p.rows, func(r row) bool { return len(r.vars) == 0 })
}

// linear solves the linear relaxation, with all subtour constraints that its
// optimum would violate, and excludes arcs. A ring is the best one.
func (m *model) linear(ctx context.Context) (ring []int, bound float64, err error) {
	for {
		p := m.programme(false)
		if p.broken() {
			return nil, math.Inf(1), nil
		}
		a, err := m.l.engine.solve(ctx, p)
		if err != nil {
			return nil, bound, err
		}
		if a.infeasible {
			return nil, math.Inf(1), nil
		}
		bound = max(bound, a.objective)
		found := violated(m.n, m.arcs, a.x)
		if len(found) == 0 {
			ring = ringOf(m.n, m.arcs, a.x)
		}
		m.exclude(a)
		if len(found) == 0 {
			return ring, bound, nil
		}
		m.sets = append(m.sets, found...)
	}
}

// exclude drops arcs with which no ring is as cheap as limit.
func (m *model) exclude(a answer) {
	if math.IsInf(m.limit, 1) {
		return
	}
	kept := 0
	for k := range m.arcs {
		if a.x[k] > 1e-9 || a.reduced[k] <= m.limit-a.objective+tolerance*m.limit {
			m.arcs[kept], m.cost[kept] = m.arcs[k], m.cost[k]
			kept++
		}
	}
	m.arcs, m.cost = m.arcs[:kept], m.cost[:kept]
}

// integer solves the integer programme, nil if it has no solution.
func (m *model) integer(ctx context.Context) (ring []int, bound float64, err error) {
	for {
		p := m.programme(true)
		if p.broken() {
			return nil, math.Inf(1), nil
		}
		a, err := m.l.engine.solve(ctx, p)
		if err != nil {
			return nil, bound, err
		}
		if a.infeasible {
			return nil, math.Inf(1), nil
		}
		bound = a.objective
		if ring := ringOf(m.n, m.arcs, a.x); ring != nil {
			return ring, bound, nil
		}
		m.sets = append(m.sets, components(m.n, m.arcs, a.x, 0.5)...)
	}
}
