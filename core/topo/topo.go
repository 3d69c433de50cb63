package topo

import (
	"context"
	"fmt"
	"math"

	"github.com/gopccl/gopccl/internal/registry"
)

// Matrix holds directed bandwidths in Mbit/s; row from, column to. A value
// that is 0, negative or NaN is a missing link. The diagonal is ignored.
type Matrix struct {
	N    int
	Mbps []float64 // N*N, row major
}

// NewMatrix returns a matrix without links.
func NewMatrix(n int) Matrix { return Matrix{N: n, Mbps: make([]float64, n*n)} }

// At returns the rate from i to j and whether the link exists. Infinite
// values are clamped to math.MaxFloat64.
func (m Matrix) At(i, j int) (float64, bool) {
	v := m.Mbps[i*m.N+j]
	if !(v > 0) || i == j {
		return 0, false
	}
	return math.Min(v, math.MaxFloat64), true
}

// MaxCost is the most that one link adds to Sum: links below 1e-6 Mbit/s (one
// bit in a second) count as if they had that rate, so that sums stay finite.
// The bottleneck knows no such clamp.
const MaxCost = 1e9

// Cost returns what the link from i to j adds to Sum, 1000/Mbps and at most
// MaxCost, and whether the link exists.
func (m Matrix) Cost(i, j int) (float64, bool) {
	v, ok := m.At(i, j)
	if !ok {
		return 0, false
	}
	return math.Min(1000/v, MaxCost), true
}

// Set stores the rate from i to j.
func (m Matrix) Set(i, j int, mbps float64) { m.Mbps[i*m.N+j] = mbps }

// Value of a ring: Bottleneck is its slowest link in Mbit/s (higher is
// better), Sum the sum of Cost over its links (lower is better). ok is
// false if ring is not a permutation of 0..N-1 or uses a missing link.
func (m Matrix) Value(ring []int) (bottleneck, sum float64, ok bool) {
	if len(ring) != m.N || m.N < 2 {
		return 0, 0, false
	}
	seen := make([]bool, m.N)
	bottleneck = math.Inf(1)
	for k, i := range ring {
		if i < 0 || i >= m.N || seen[i] {
			return 0, 0, false
		}
		seen[i] = true
		j := ring[(k+1)%m.N]
		v, has := m.At(i, j)
		if !has {
			return 0, 0, false
		}
		c, _ := m.Cost(i, j)
		bottleneck = math.Min(bottleneck, v)
		sum += c
	}
	return bottleneck, sum, true
}

// Objective is what a solver optimises.
type Objective string

// Objectives. BottleneckThenSum is the default; Sum is that of PCCL.
const (
	BottleneckThenSum Objective = "bottleneck"
	Sum               Objective = "sum"
)

// Problem is one request to a solver.
type Problem struct {
	Matrix    Matrix
	Objective Objective
	// Start is a ring in force, nil if there is none. No answer is worse.
	Start []int
	// Seed varies the random choices of a solver; two searches with different
	// seeds look in different places.
	Seed uint64
}

// Solution is a ring with both values and what is known about better ones.
type Solution struct {
	Ring       []int
	Bottleneck float64 // slowest link, Mbit/s
	Sum        float64 // sum of 1000/Mbps over the links
	// Optimal says that no ring is better under the objective, and that this is proved (for
	// the sum up to a relative 1e-9). Then the bound that belongs to the
	// objective is tight: BottleneckBound equals Bottleneck, or under Sum
	// SumLowerBound equals Sum.
	Optimal bool
	// SumLowerBound is a sum that no ring is below. 0 if nothing is known.
	SumLowerBound float64
	// BottleneckBound is a rate (Mbit/s) that the slowest link of no ring exceeds. 0 if
	// nothing is known.
	BottleneckBound float64
}

// Solver finds ring orders.
//
// Solve calls better for every improvement, from its own goroutine, each one
// better than the one before, and returns the best solution when it is done or
// ctx ends; an error that wraps ErrNoRing if the links admit no ring, or none
// was found. It must return within 50 ms of ctx's end, with the best so far.
// It keeps neither the matrix nor Start, and changes neither; the rings it
// hands out are the receiver's. It may be called from several goroutines.
type Solver interface {
	Name() string
	Solve(ctx context.Context, p Problem, better func(Solution)) (Solution, error)
}

var solvers = registry.New[Solver]("solver")

// Register makes a solver available under its name; duplicates panic.
func Register(s Solver) { solvers.Register(s.Name(), s) }

// Names returns the registered names in alphabetical order.
func Names() []string { return solvers.Names() }

// Lookup returns the solver called name.
func Lookup(name string) (Solver, error) {
	s, ok := solvers.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("unknown solver %q: is its package imported (solvers/defaults)?", name)
	}
	return s, nil
}
