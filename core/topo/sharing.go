package topo

import (
	"context"
	"math"
)

// Sharing says what transfers that run at the same time have to share, which a
// matrix of links cannot: what leads out of a host and into it, for all peers
// on that host together. The links of the matrix are then what each gives by
// itself. nil: nothing is shared.
type Sharing struct {
	// Host is the host of every peer, an index into Out and In. Peers of one host
	// use neither between each other.
	Host []int
	// Out and In are what all transfers that leave a host, and that enter it, get
	// together, in Mbit/s. Values of 0 and less are ignored.
	Out, In []float64
}

// Value is Matrix.Value while all links of the ring are in use at once: a link
// between two hosts gets no more than its part of what its ends share. The
// bottleneck is that of max-min fair rates; the sum is an upper bound of theirs
// (a link that is held back elsewhere leaves its part to the others).
func (s *Sharing) Value(m Matrix, ring []int) (bottleneck, sum float64, ok bool) {
	bottleneck, sum, ok = m.Value(ring)
	if s == nil || !ok {
		return bottleneck, sum, ok
	}
	exits, entries := make([]int, len(s.Out)), make([]int, len(s.In))
	each := func(f func(i, j, from, to int)) {
		for k, i := range ring {
			j := ring[(k+1)%len(ring)]
			f(i, j, s.Host[i], s.Host[j])
		}
	}
	each(func(_, _, from, to int) {
		if from != to {
			exits[from]++
			entries[to]++
		}
	})
	bottleneck, sum = math.Inf(1), 0
	each(func(i, j, from, to int) {
		v, _ := m.At(i, j)
		if from != to {
			v = min(v, part(s.Out[from], exits[from]), part(s.In[to], entries[to]))
		}
		bottleneck = min(bottleneck, v)
		sum += min(1000/v, MaxCost)
	})
	return bottleneck, sum, true
}

func part(all float64, n int) float64 {
	if !(all > 0) {
		return math.Inf(1)
	}
	return all / float64(n)
}

// SharingSolver is a solver that plans with what transfers share.
type SharingSolver interface {
	Solver
	// SolveShared is Solve with the values of Sharing.Value in place of those of
	// the matrix, in the solutions and in what better means. s is not nil, and is
	// not kept.
	SolveShared(ctx context.Context, p Problem, s *Sharing, better func(Solution)) (Solution, error)
}

// LookupSharing returns a registered solver that plans with what transfers
// share, the first by name, nil if there is none.
func LookupSharing() SharingSolver {
	for _, name := range Names() {
		if s, err := Lookup(name); err == nil {
			if s, ok := s.(SharingSolver); ok {
				return s
			}
		}
	}
	return nil
}
