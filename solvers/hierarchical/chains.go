package hierarchical

import (
	"context"
	"math"
	"math/bits"
)

// join combines the costs of two parts of a chain: the dearer one (bottleneck)
// or their sum.
type join func(a, b float64) float64

func dearer(a, b float64) float64 { return math.Max(a, b) }
func sum(a, b float64) float64    { return a + b }

// maxExact is the largest site whose chains are all computed: 2^m*m^2 steps
// for every head.
const maxExact = 12

// chains holds the best chain through all m members of a site for every head
// and tail. Members are numbered 0 to m-1 inside it.
type chains struct {
	members []int
	cost    []float64 // m*m, row head, column tail; +Inf if there is none
	route   func(head, tail int) []int
}

// allChains fills the table by the dynamic programme of Held and Karp over
// sets of visited members, one head after the other.
func allChains(ctx context.Context, members []int, n int, cost []float64, combine join) (chains, error) {
	m := len(members)
	c := chains{members: members, cost: make([]float64, m*m)}
	link := make([]float64, m*m)
	for i, a := range members {
		for j, b := range members {
			link[i*m+j] = cost[a*n+b]
		}
	}
	full := 1<<m - 1
	last := make([][]int8, m) // predecessors, per head
	value := make([]float64, (full+1)*m)
	for head := range m {
		if ctx.Err() != nil {
			return chains{}, ctx.Err()
		}
		for i := range value {
			value[i] = math.Inf(1)
		}
		before := make([]int8, (full+1)*m)
		value[(1<<head)*m+head] = 0
		for set := 1 << head; set <= full; set++ {
			if set&(1<<head) == 0 {
				continue
			}
			for rest := set; rest != 0; rest &= rest - 1 {
				at := bits.TrailingZeros(uint(rest))
				have := value[set*m+at]
				if math.IsInf(have, 1) {
					continue
				}
				for to := range m {
					if set&(1<<to) != 0 {
						continue
					}
					next := (set|1<<to)*m + to
					if v := combine(have, link[at*m+to]); v < value[next] {
						value[next], before[next] = v, int8(at)
					}
				}
			}
		}
		for tail := range m {
			c.cost[head*m+tail] = value[full*m+tail]
		}
		last[head] = before
	}
	c.route = func(head, tail int) []int {
		route := make([]int, m)
		set, at := full, tail
		for k := m - 1; k >= 0; k-- {
			route[k] = members[at]
			set, at = set&^(1<<at), int(last[head][set*m+at])
		}
		return route
	}
	return c, nil
}
