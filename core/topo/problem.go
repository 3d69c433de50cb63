package topo

import (
	"errors"
	"fmt"
)

// ErrMatrix is wrapped by what Check returns.
var ErrMatrix = errors.New("not a bandwidth matrix")

// Check reports whether a solver can work on p: a square matrix and a known
// objective ("" is BottleneckThenSum). A Start that is no ring is no error.
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

// Solution values ring, which it keeps; false if it is no ring.
func (p Problem) Solution(ring []int) (Solution, bool) {
	b, s, ok := p.Matrix.Value(ring)
	return Solution{Ring: ring, Bottleneck: b, Sum: s}, ok
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
