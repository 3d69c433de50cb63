package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/topo"
)

// moonshot is the long search. Its workers take turns between two jobs: the
// built-in portfolio from another seed, and merging, which keeps the arcs that a
// few good rings share, as one peer each, and solves the small rest again (after
// Cook and Seymour, "Tour merging via branch-decomposition", 2003, with a local
// search in place of the decomposition).
type moonshot struct {
	threads  int
	patience time.Duration
}

// Name returns "moonshot".
func (moonshot) Name() string { return "moonshot" }

const (
	// firstSlice is the time of a search of the first round; it doubles when all
	// workers have had it, up to longestSlice.
	firstSlice   = 500 * time.Millisecond
	longestSlice = 30 * time.Second
	// elite is how many different rings are kept for merging.
	elite = 10
	// parents is how many of them are merged.
	parents = 3
)

// Solve implements topo.Solver.
func (m moonshot) Solve(ctx context.Context, p topo.Problem, better func(topo.Solution)) (topo.Solution, error) {
	if err := p.Check(); err != nil {
		return topo.Solution{}, err
	}
	quick, err := topo.Lookup("auto")
	if err != nil {
		return topo.Solution{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &search{moonshot: m, p: p, quick: quick, found: make(chan topo.Solution), ended: make(chan error, m.threads)}
	for w := range m.threads {
		go func() { s.ended <- s.work(ctx, w) }()
	}
	lonely := time.NewTimer(m.patience)
	defer lonely.Stop()
	var failed error // of the first worker that gave up
	for running := m.threads; running > 0; {
		select {
		case sol := <-s.found:
			if s.take(sol) {
				better(s.told())
				lonely.Reset(m.patience)
			}
			if s.best.Optimal {
				cancel()
			}
		case err := <-s.ended:
			running--
			if failed == nil && err != nil {
				failed = err
				cancel()
			}
		case <-lonely.C:
			cancel()
		}
	}
	if len(s.best.Ring) > 0 {
		return s.told(), nil
	}
	if failed != nil {
		return topo.Solution{}, failed
	}
	return topo.Solution{}, &topo.NoRingError{Reason: "the time ran out"}
}

// search is one call of Solve.
type search struct {
	moonshot
	p     topo.Problem
	quick topo.Solver
	found chan topo.Solution
	ended chan error

	// Of the goroutine of Solve.
	best topo.Solution

	mu   sync.Mutex
	pool []topo.Solution // the best rings, best first, all different in value
}

// take learns from what a worker found: true if the ring is the best.
func (s *search) take(sol topo.Solution) bool {
	sumBound := max(s.best.SumLowerBound, sol.SumLowerBound)
	bottleneckBound := s.best.BottleneckBound
	if b := sol.BottleneckBound; b > 0 && (bottleneckBound == 0 || b < bottleneckBound) {
		bottleneckBound = b
	}
	improved := s.p.Objective.Better(sol, s.best)
	if improved {
		s.best = sol
	}
	if sol.Optimal && !s.p.Objective.Better(s.best, sol) {
		s.best = s.p.Proved(s.best)
	}
	s.best.SumLowerBound = max(s.best.SumLowerBound, sumBound)
	if s.best.BottleneckBound == 0 || bottleneckBound > 0 && bottleneckBound < s.best.BottleneckBound {
		s.best.BottleneckBound = bottleneckBound
	}
	return improved
}

// told is the best ring for somebody else to keep.
func (s *search) told() topo.Solution {
	sol := s.best
	sol.Ring = slices.Clone(sol.Ring)
	return sol
}

// keep adds a ring to the pool unless one of the same value is there.
func (s *search) keep(sol topo.Solution) {
	if len(sol.Ring) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := len(s.pool)
	for i, q := range s.pool {
		if q.Bottleneck == sol.Bottleneck && q.Sum == sol.Sum {
			return
		}
		if at == len(s.pool) && s.p.Objective.Better(sol, q) {
			at = i
		}
	}
	s.pool = slices.Insert(s.pool, at, sol)
	s.pool = s.pool[:min(len(s.pool), elite)]
}

// choose returns the best ring and up to parents-1 others, nil if there are none.
func (s *search) choose(random func(int) int) (rings [][]int, best topo.Solution) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pool) < 2 {
		return nil, best
	}
	best = s.pool[0]
	rings = [][]int{best.Ring}
	for len(rings) < min(parents, len(s.pool)) {
		r := s.pool[1+random(len(s.pool)-1)].Ring
		if !slices.ContainsFunc(rings, func(q []int) bool { return &q[0] == &r[0] }) {
			rings = append(rings, r)
		}
	}
	return rings, best
}

// work is the life of worker w.
func (s *search) work(ctx context.Context, w int) error {
	rnd := s.p.Seed*0x9e3779b97f4a7c15 + uint64(w)*0xbf58476d1ce4e5b9 + 1
	random := func(n int) int {
		rnd ^= rnd << 13
		rnd ^= rnd >> 7
		rnd ^= rnd << 17
		return int(rnd % uint64(n))
	}
	slice := firstSlice
	for round := 0; ; round++ {
		sub := s.p
		if round > 0 || w > 0 {
			sub.Seed, sub.Start = s.p.Seed+uint64(1+w+round*s.threads), nil
		}
		if err := s.run(ctx, sub, slice, nil); err != nil || ctx.Err() != nil {
			return err
		}
		if rings, best := s.choose(random); rings != nil {
			c := contract(s.p, rings, best)
			c.problem.Seed = sub.Seed
			if err := s.run(ctx, c.problem, slice, c); err != nil || ctx.Err() != nil {
				return err
			}
		}
		slice = min(2*slice, longestSlice)
	}
}

// run solves p, a contraction if c is not nil, and passes on what it finds.
func (s *search) run(ctx context.Context, p topo.Problem, slice time.Duration, c *contraction) error {
	if p.Matrix.N < 2 && c != nil {
		return nil
	}
	ctx2, cancel := context.WithTimeout(ctx, slice)
	defer cancel()
	report := func(sol topo.Solution) {
		if c != nil {
			ring := c.expand(sol.Ring)
			sol, _ = s.p.Solution(ring) // bounds of the contraction say nothing about the whole
		}
		// Nobody waits for long: the goroutine of Solve hears until all workers ended.
		s.found <- sol
	}
	sol, err := s.quick.Solve(ctx2, p, func(sol topo.Solution) {
		sol.Ring = slices.Clone(sol.Ring)
		report(sol)
	})
	switch {
	case err == nil:
		report(sol)
		if c != nil {
			sol, _ = s.p.Solution(c.expand(sol.Ring))
		}
		s.keep(sol)
		return nil
	case c != nil && errors.Is(err, topo.ErrNoRing), ctx2.Err() != nil:
		return nil // not in this slice
	}
	return err // the portfolio gave up before its time was over
}
