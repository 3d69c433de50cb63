package topo

import (
	"errors"
	"fmt"
	"math"
)

// ErrMatrix is wrapped by what Check returns.
var ErrMatrix = errors.New("not a bandwidth matrix")

// ErrSolution is wrapped by what Verify returns.
var ErrSolution = errors.New("not a solution of the problem")

// Tolerance is the relative error of sums that rounding is allowed.
const Tolerance = 1e-9

// Check reports whether a solver can work on p: a square matrix and a known
// objective ("" is BottleneckThenSum). A Start that is not a ring is not an error.
func (p Problem) Check() error {
	if p.Matrix.N < 0 || p.Matrix.N > 1<<15 || len(p.Matrix.Mbps) != p.Matrix.N*p.Matrix.N {
		return fmt.Errorf("%w: %d values for %d peers", ErrMatrix, len(p.Matrix.Mbps), p.Matrix.N)
	}
	switch p.Objective {
	case "", BottleneckThenSum, Sum:
		return nil
	}
	return fmt.Errorf("%w: unknown objective %q", ErrMatrix, p.Objective)
}

// Solution values ring, which it keeps; false if it is not a ring.
func (p Problem) Solution(ring []int) (Solution, bool) {
	b, s, ok := p.Matrix.Value(ring)
	return Solution{Ring: ring, Bottleneck: b, Sum: s}, ok
}

// Verify checks what an untrusted solver said about p: that the ring is one,
// that the values are those of the ring, and that neither the bounds nor
// Optimal contradict them. It cannot see whether a bound is true.
func (p Problem) Verify(s Solution) error {
	b, sum, ok := p.Matrix.Value(s.Ring)
	near := func(a, b float64) bool { return math.Abs(a-b) <= Tolerance*math.Abs(b) }
	switch {
	case !ok:
		return fmt.Errorf("%w: not every peer once, or over a missing link: %v", ErrSolution, s.Ring)
	case !near(s.Bottleneck, b) || !near(s.Sum, sum):
		return fmt.Errorf("%w: bottleneck %v and sum %v claimed, %v and %v is what the ring has", ErrSolution, s.Bottleneck, s.Sum, b, sum)
	case math.IsNaN(s.SumLowerBound) || s.SumLowerBound > sum*(1+Tolerance):
		return fmt.Errorf("%w: lower bound %v above the sum %v of its own ring", ErrSolution, s.SumLowerBound, sum)
	case math.IsNaN(s.BottleneckBound) || s.BottleneckBound != 0 && s.BottleneckBound < b*(1-Tolerance):
		return fmt.Errorf("%w: bound %v below the bottleneck %v of its own ring", ErrSolution, s.BottleneckBound, b)
	case s.Optimal && p.Objective == Sum && !near(s.SumLowerBound, sum):
		return fmt.Errorf("%w: optimal claimed, lower bound %v, sum %v", ErrSolution, s.SumLowerBound, sum)
	case s.Optimal && p.Objective != Sum && !near(s.BottleneckBound, b):
		return fmt.Errorf("%w: optimal claimed, bottleneck bound %v, bottleneck %v", ErrSolution, s.BottleneckBound, b)
	}
	return nil
}

// Proved marks s as the best ring: Optimal, and the bound that belongs to the
// objective is tight.
func (p Problem) Proved(s Solution) Solution {
	s.Optimal = true
	if p.Objective == Sum {
		s.SumLowerBound = s.Sum
	} else {
		s.BottleneckBound = s.Bottleneck
	}
	return s
}

// Better reports whether a is strictly better than b; a solution without a
// ring is the worst.
func (o Objective) Better(a, b Solution) bool {
	if len(a.Ring) == 0 || len(b.Ring) == 0 {
		return len(a.Ring) > 0
	}
	if o == Sum {
		return a.Sum < b.Sum
	}
	if a.Bottleneck != b.Bottleneck {
		return a.Bottleneck > b.Bottleneck
	}
	return a.Sum < b.Sum
}
