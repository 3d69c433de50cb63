// Package topo is the extension point for ring solvers: the bandwidth matrix,
// the objective, the solver interface and its registry.
package topo

import (
	"context"
	"fmt"
	"math"
	"sort"
	"sync"
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

// Set stores the rate from i to j.
func (m Matrix) Set(i, j int, mbps float64) { m.Mbps[i*m.N+j] = mbps }

// Value of a ring: Bottleneck is its slowest link in Mbit/s (higher is
// better), Sum the sum of 1000/Mbps over its links (lower is better). ok is
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
		v, has := m.At(i, ring[(k+1)%m.N])
		if !has {
			return 0, 0, false
		}
		bottleneck = math.Min(bottleneck, v)
		sum += 1000 / v
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

// Problem is one request to a solver. Start may be nil.
type Problem struct {
	Matrix    Matrix
	Objective Objective
	Start     []int
}

// Solution is a ring with both values. Optimal is set only if proved.
type Solution struct {
	Ring       []int
	Bottleneck float64
	Sum        float64
	Optimal    bool
}

// Solver finds ring orders. Solve calls better for every improvement and
// returns the best solution when it is done or ctx ends; ErrNoRing if the
// links admit no ring. It must return within 50 ms of ctx's end.
type Solver interface {
	Name() string
	Solve(ctx context.Context, p Problem, better func(Solution)) (Solution, error)
}

// ErrNoRing says that the existing links admit no ring through all peers.
var ErrNoRing = fmt.Errorf("the measured links admit no ring through all peers")

var (
	mu      sync.Mutex
	solvers = map[string]Solver{}
)

// Register makes a solver available under its name; duplicates panic.
func Register(s Solver) {
	mu.Lock()
	defer mu.Unlock()
	if _, dup := solvers[s.Name()]; dup || s.Name() == "" {
		panic("topo: bad or duplicate solver name " + s.Name())
	}
	solvers[s.Name()] = s
}

// Names returns the registered names in alphabetical order.
func Names() []string {
	mu.Lock()
	defer mu.Unlock()
	names := make([]string, 0, len(solvers))
	for n := range solvers {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// Lookup returns the solver called name.
func Lookup(name string) (Solver, error) {
	mu.Lock()
	defer mu.Unlock()
	s, ok := solvers[name]
	if !ok {
		return nil, fmt.Errorf("unknown solver %q: is its package imported (solvers/defaults)?", name)
	}
	return s, nil
}
