package ring

import (
	"math"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/solvers/internal/atsp"
)

// scaled is a matrix as integer weights: scale times the cost of a link.
type scaled struct {
	atsp.Weights
	scale float64
	exact bool // all costs were integers already
	top   float64
}

// weigh scales the costs of all links that are at least as fast as floor and
// cost at most top; the others get penalty times top. Costs that are integers
// stay as they are, so that bounds may be rounded up; others use what an int64
// holds: sums of N weights stay below 2^60.
func weigh(m topo.Matrix, floor, top, penalty float64) scaled {
	n := m.N
	s := scaled{Weights: atsp.Weights{N: n, W: make([]int64, n*n)}, exact: true}
	for i := range n {
		for j := range n {
			if v, ok := m.At(i, j); ok && v >= floor {
				if c, _ := m.Cost(i, j); c <= top {
					s.top = max(s.top, c)
					s.exact = s.exact && math.Abs(c-math.Round(c)) <= 1e-9*math.Max(1, c)
				}
			}
		}
	}
	const room = 1 << 44
	s.scale = room / math.Max(s.top, 1e-290)
	if s.exact = s.exact && s.scale >= 1; s.exact {
		s.scale = 1
	}
	forbidden := int64(math.Ceil(math.Min(penalty*s.top*s.scale, (1<<60)/float64(n)))) + 1
	for i := range n {
		for j := range n {
			w := forbidden
			if v, ok := m.At(i, j); ok && v >= floor {
				if c, _ := m.Cost(i, j); c <= top {
					w = int64(math.Round(c * s.scale))
				}
			}
			s.W[i*n+j] = w
		}
	}
	return s
}

// error is the most by which the rounding of weights can shift a sum.
func (s scaled) error() float64 {
	if s.exact {
		return 0
	}
	return 0.5 * float64(s.N) / s.scale
}
