package atsp

import (
	"math"
	"time"
)

// Search is one search for a short tour.
type Search struct {
	W    Weights
	Seed uint64
	// Start are tours to begin with, may be nil.
	Start [][]int32
	// Duals of weights that are nowhere larger than W spare the search the
	// assignment problem of W, at the price of a weaker bound. They need a Start.
	Duals *Assignment
	// Over ends the search, Left tells how long that takes (however it counts).
	Over Clock
	Left func() time.Duration
	// Report gets each shorter tour, which it must not change; true ends the
	// search.
	Report func(order []int32, length int64) bool
	// Branch: branch and bound takes part in the search.
	Branch bool
	// Prove: branch and bound gets all the time that one population leaves.
	Prove bool

	Best   []int32 // shortest tour so far
	Length int64
	Bound  int64 // no tour is shorter
	Proved bool  // Best is a shortest tour

	a       *Assignment
	tight   bool // a is of W itself
	enough  bool
	elite   [][]int32
	perKick time.Duration
}

// Tuning of the search, found by measuring.
const (
	candidatesOf = 8
	hot          = 0.3 // mean excess that iterated search accepts, in mean arcs
	staleAfter   = 6   // pools without a shorter tour
	leastPool    = 16
	mostPool     = 150
	children     = 30
)

// Run searches until a tour is proved shortest, Report has enough, the search
// is over, or several restarts brought nothing. Best is a tour then, however
// short the time was.
func (s *Search) Run() {
	over := func() bool { return s.enough || s.Over() }
	s.Length = never
	for _, t := range s.Start {
		if len(t) == s.W.N {
			s.take(t)
		}
	}
	if s.a = s.Duals; s.a == nil || s.Best == nil {
		if s.a = Assign(s.W, over); s.a == nil {
			if s.Best == nil {
				s.take(identity(s.W.N))
			}
			return
		}
		s.tight = true
	}
	s.Bound = s.a.Value
	if s.tight {
		s.take(Patched(s.W, s.a, over))
	}
	if s.settled(over) {
		return
	}
	l := s.local(0)
	l.Set(s.Best)
	l.Descend(over)
	s.take(l.at)
	if s.settled(over) {
		return
	}
	if s.Branch && s.gap() < 0.02 {
		s.branch(over, s.Left()/6)
		if s.settled(over) {
			return
		}
	}
	for k, stale := uint64(0), 0; s.W.N >= leastNodes && stale < staleAfter && !s.settled(over); k++ {
		before := s.Length
		if !s.pool(k, over) {
			break
		}
		if stale++; s.Length < before {
			stale = 0
		}
		if s.Prove {
			break
		}
	}
	if s.Branch && !s.settled(over) {
		s.branch(over, s.Left())
	}
	s.settled(over)
}

func identity(n int) []int32 {
	t := make([]int32, n)
	for i := range t {
		t[i] = int32(i)
	}
	return t
}

// take keeps a tour if it is the shortest so far.
func (s *Search) take(t []int32) {
	if d := s.W.Length(t); d < s.Length {
		s.Length = d
		s.Best = append(s.Best[:0], t...)
		s.enough = s.Report(s.Best, d) || s.enough
	}
}

// settled reports whether nothing is left to do.
func (s *Search) settled(over Clock) bool {
	s.Proved = s.Proved || s.Length <= s.Bound
	return s.Proved || over()
}

// gap is the part of the best tour that the bound leaves open.
func (s *Search) gap() float64 { return 1 - float64(s.Bound)/float64(s.Length) }

func (s *Search) local(k uint64) *Local {
	// Restarts look along other candidates.
	width := []int{candidatesOf, candidatesOf - 2, candidatesOf + 2}[k%3]
	l := NewLocal(s.W, s.a, s.Length, width, s.Seed+k*1000003+1)
	l.better = s.take
	return l
}

// until returns a clock that stops after part of the time that is left.
func (s *Search) until(over Clock, d time.Duration) Clock {
	end := s.Left() - d
	return func() bool { return over() || s.Left() < end }
}

func (s *Search) branch(over Clock, d time.Duration) {
	if !s.tight {
		a := Assign(s.W, over)
		if a == nil {
			return
		}
		s.a, s.tight = a, true
		s.Bound = max(s.Bound, a.Value)
	}
	if Branch(s.W, s.a, s.Length, s.until(over, d), func(t []int32, _ int64) { s.take(t) }) {
		s.Proved = true
		s.Bound = s.Length
	}
}

// pool is one round of the long part of the search: iterated search, then a
// population that is bred, as large as the time allows. False if the time did
// not suffice for a population.
func (s *Search) pool(k uint64, over Clock) bool {
	n := s.W.N
	l := s.local(k)
	l.Set(s.Best)
	l.clear()
	arc := float64(s.Length>>l.shift) / float64(n)
	warm := func(int) float64 { return hot * arc }

	// A short iterated search tells what a kick costs here.
	left := s.Left()
	rounds := 4 * n
	slice := s.until(over, left/10)
	done := 0
	best, _ := l.Iterate(rounds, func(r int) float64 { done = r; return hot * arc }, slice)
	if spent := left - s.Left(); done > 0 {
		s.perKick = spent / time.Duration(done+1)
	}
	s.take(best)
	if over() {
		return false
	}

	left = s.Left()
	if s.Prove {
		left = min(left/5, time.Second)
	}
	member := time.Duration(n) * s.perKick // n kicks
	bred := time.Duration(n*n) * 60 * time.Nanosecond
	use := 0.8
	effort := 0.2 // kicks of a member, in parts of n; its descent costs about as much again
	size := int(use * float64(left) / (2*effort*float64(member) + float64(bred)))
	if size > mostPool {
		size = mostPool
		effort = min(1, 0.5*(use*float64(left)/float64(size)-float64(bred))/float64(member))
	}
	if n < 64 {
		size = min(size, max(leastPool, 2*n))
	}
	if size < leastPool {
		s.anneal(l, arc, over)
		return false
	}
	l.Set(s.Best)
	l.clear()
	p := NewPool(l, size, int(effort*float64(n)), warm, over)
	for _, t := range s.elite {
		l.Set(t)
		l.clear()
		p.add(newMember(l.at, l.length))
	}
	t, _ := p.Best()
	s.take(t)
	p.Breed(children, over, func() {
		t, _ := p.Best()
		s.take(t)
	})
	t, _ = p.Best()
	s.take(t)
	if len(s.elite) == 16 {
		s.elite = s.elite[1:]
	}
	s.elite = append(s.elite, t)
	return true
}

// anneal is an iterated search that accepts less and less, for what is left
// of the time.
func (s *Search) anneal(l *Local, arc float64, over Clock) {
	all := s.Left()
	heat := hot * arc
	l.Set(s.Best)
	l.clear()
	best, _ := l.Iterate(math.MaxInt, func(r int) float64 {
		if r&31 == 0 {
			heat = hot * arc * max(0, float64(s.Left())/float64(all))
		}
		return heat
	}, over)
	s.take(best)
}
