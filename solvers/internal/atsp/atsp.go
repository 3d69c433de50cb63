// Package atsp searches short directed tours through all nodes of a complete
// digraph with integer weights (the asymmetric travelling salesman problem):
// the assignment bound, patching, segment exchanges that keep the direction of
// travel, iterated search, edge assembly of several tours, branch and bound.
//
// Weights are int64, not negative, row from, column to; the diagonal is
// ignored. What must not be used gets a weight that nobody wants to pay.
package atsp

import "math"

// Weights is an instance: W[i*N+j] is the weight of the arc from i to j.
// N*max(W) must stay below 2^61.
type Weights struct {
	N int
	W []int64
}

// Length returns the weight of the tour that visits the nodes of order.
func (w Weights) Length(order []int32) int64 {
	var sum int64
	prev := order[len(order)-1]
	for _, i := range order {
		sum += w.W[int(prev)*w.N+int(i)]
		prev = i
	}
	return sum
}

// Clock tells when to stop. It is read in the inner loops, so it must be cheap.
type Clock func() bool

// never is more than any length.
const never = math.MaxInt64 / 4

// rng is a xorshift generator: fast, and reproducible from its seed.
type rng uint64

func newRNG(seed uint64) rng {
	r := rng(seed*0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d)
	if r == 0 {
		r = 1
	}
	r.next()
	return r
}

func (r *rng) next() uint64 {
	x := *r
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	*r = x
	return uint64(x) * 0x2545f4914f6cdd1d
}

// intn returns a number from 0 to n-1.
func (r *rng) intn(n int) int { return int((r.next() >> 32) * uint64(n) >> 32) }

// unit returns a number in [0,1).
func (r *rng) unit() float64 { return float64(r.next()>>11) / (1 << 53) }
