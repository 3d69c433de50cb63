package ring

import (
	"math"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/solvers/internal/atsp"
)

// costs are those of all links of a matrix, computed once.
type costs struct {
	topo.Matrix
	cost  []float64 // infinite: no link
	top   float64   // the dearest
	exact bool      // all are integers
}

func newCosts(m topo.Matrix) *costs {
	c := &costs{Matrix: m, cost: make([]float64, len(m.Mbps)), exact: true}
	for i := range m.N {
		for j := range m.N {
			v, ok := m.Cost(i, j)
			if !ok {
				c.cost[i*m.N+j] = math.Inf(1)
				continue
			}
			c.cost[i*m.N+j] = v
			c.top = max(c.top, v)
			c.exact = c.exact && math.Abs(v-math.Round(v)) <= 1e-9*max(1, v)
		}
	}
	return c
}

// scaled are costs as integer weights: scale times the cost of a link.
type scaled struct {
	atsp.Weights
	scale float64
	exact bool // nothing was rounded
	top   float64
}

// weigh scales the costs of all links that are at least as fast as floor and
// cost at most top; the others get the cost that penalty tells for theirs.
// Costs that are integers stay as they are, so that bounds may be rounded up;
// others use what an int64 holds: sums of N weights stay below 2^60.
func (c *costs) weigh(floor, top float64, penalty func(cost float64) float64) scaled {
	n := c.N
	s := scaled{Weights: atsp.Weights{N: n, W: make([]int64, n*n)}, top: min(c.top, top)}
	const room = 1 << 44
	s.scale = room / max(s.top, 1e-290)
	if s.exact = c.exact && s.scale >= 1; s.exact {
		s.scale = 1
	}
	most := (1 << 60) / float64(n)
	for k, v := range c.cost {
		if v <= top && c.Mbps[k] >= floor {
			s.W[k] = int64(v*s.scale + 0.5)
		} else {
			s.W[k] = int64(min(most, penalty(v)*s.scale)) + 1
		}
	}
	return s
}

// flat is a penalty that does not depend on the link.
func flat(cost float64) func(float64) float64 { return func(float64) float64 { return cost } }

// error is the most by which the rounding of weights can shift a sum.
func (s scaled) error() float64 {
	if s.exact {
		return 0
	}
	return 0.5 * float64(s.N) / s.scale
}
