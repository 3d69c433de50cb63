package ring

import (
	"math/bits"
	"slices"
	"sort"

	"github.com/gopccl/gopccl/core/topo"
)

// digraph has an arc where a link is at least as fast as a threshold: a row of
// bits for each node, in both directions.
type digraph struct {
	n, words int
	out, in  []uint64
}

func newDigraph(n int) *digraph {
	words := (n + 63) / 64
	return &digraph{n: n, words: words, out: make([]uint64, n*words), in: make([]uint64, n*words)}
}

// fill takes the arcs between the peers of keep (nil: all) whose rate is at
// least floor.
func (g *digraph) fill(m topo.Matrix, floor float64, keep []bool) {
	clear(g.in)
	for i := range m.N {
		out := g.out[i*g.words : (i+1)*g.words]
		clear(out)
		if keep != nil && !keep[i] {
			continue
		}
		word, bit := i>>6, uint64(1)<<(i&63)
		for j, v := range m.Mbps[i*m.N : (i+1)*m.N] {
			if v >= floor && v > 0 && j != i && (keep == nil || keep[j]) {
				out[j>>6] |= 1 << (j & 63)
				g.in[j*g.words+word] |= bit
			}
		}
	}
}

// reach returns the nodes that rows leads to from start, as bits.
func (g *digraph) reach(rows []uint64, start int) []uint64 {
	seen := make([]uint64, g.words)
	seen[start>>6] |= 1 << (start & 63)
	todo := []int{start}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for w, b := range rows[i*g.words : (i+1)*g.words] {
			for b &^= seen[w]; b != 0; b &= b - 1 {
				seen[w] |= b & -b
				todo = append(todo, w<<6+bits.TrailingZeros64(b))
			}
		}
	}
	return seen
}

// component returns the nodes that are strongly connected with start.
func (g *digraph) component(start int) []uint64 {
	a, b := g.reach(g.out, start), g.reach(g.in, start)
	for w := range a {
		a[w] &= b[w]
	}
	return a
}

func count(set []uint64) int {
	n := 0
	for _, w := range set {
		n += bits.OnesCount64(w)
	}
	return n
}

// cover returns a maximum matching of nodes to successors (Hopcroft and Karp,
// SIAM J. Comput. 2, 1973) and how many nodes of keep (nil: all) have one.
func (g *digraph) cover(keep []bool) (succ []int32, matched int) {
	n := g.n
	succ = make([]int32, n)
	pred, depth := make([]int32, n), make([]int32, n)
	want := 0
	for i := range n {
		succ[i], pred[i] = -1, -1
		if keep == nil || keep[i] {
			want++
		}
	}
	open := make([]uint64, g.words) // columns not reached yet in this phase
	var queue []int32
	for {
		queue = queue[:0]
		for i := range n {
			depth[i] = -1
			if succ[i] < 0 && (keep == nil || keep[i]) {
				depth[i] = 0
				queue = append(queue, int32(i))
			}
		}
		for w := range open {
			open[w] = ^uint64(0)
		}
		for k := 0; k < len(queue); k++ {
			i := int(queue[k])
			for w, b := range g.out[i*g.words : (i+1)*g.words] {
				for b &= open[w]; b != 0; b &= b - 1 {
					open[w] &^= b & -b
					if p := pred[w<<6+bits.TrailingZeros64(b)]; p >= 0 && depth[p] < 0 {
						depth[p] = depth[i] + 1
						queue = append(queue, p)
					}
				}
			}
		}
		for w := range open {
			open[w] = ^uint64(0) // columns not tried yet
		}
		var augment func(i int) bool
		augment = func(i int) bool {
			for w := range g.words {
				for b := g.out[i*g.words+w] & open[w]; b != 0; b = b & (b - 1) & open[w] {
					j := w<<6 + bits.TrailingZeros64(b)
					p := pred[j]
					if p >= 0 && depth[p] != depth[i]+1 {
						continue
					}
					open[w] &^= b & -b
					if p < 0 || augment(int(p)) {
						succ[i], pred[j] = int32(j), int32(i)
						return true
					}
				}
			}
			return false
		}
		found := 0
		for i := range n {
			if succ[i] < 0 && depth[i] == 0 && augment(i) {
				found++
			}
		}
		if matched += found; matched == want || found == 0 {
			return succ, matched
		}
	}
}

// admits reports whether the digraph could have a ring through all nodes: it
// is strongly connected and every node can have a successor of its own. Both
// are necessary, not sufficient.
func (g *digraph) admits() bool {
	if count(g.reach(g.out, 0)) < g.n || count(g.reach(g.in, 0)) < g.n {
		return false
	}
	_, matched := g.cover(nil)
	return matched == g.n
}

// thresholds returns the distinct rates from least to most, ascending.
func thresholds(m topo.Matrix, least, most float64) []float64 {
	var rates []float64
	for i := range m.N {
		for j := range m.N {
			if v, ok := m.At(i, j); ok && v <= most && v >= least {
				rates = append(rates, v)
			}
		}
	}
	slices.Sort(rates)
	return slices.Compact(rates)
}

// bottleneckBound returns the largest rate whose links could hold a ring, 0 if
// there is none. ok is false if the clock stopped it; the bound is valid,
// though not tight, then.
func bottleneckBound(m topo.Matrix, over func() bool) (bound float64, ok bool) {
	// Every peer needs a link out and one in.
	most := 0.0
	column := make([]float64, m.N)
	for i := range m.N {
		row := 0.0
		for j := range m.N {
			if v, ok := m.At(i, j); ok {
				row = max(row, v)
				column[j] = max(column[j], v)
			}
		}
		if i == 0 || row < most {
			most = row
		}
	}
	for _, v := range column {
		most = min(most, v)
	}
	if most == 0 {
		return 0, true
	}
	g := newDigraph(m.N)
	admits := func(floor float64) bool {
		g.fill(m, floor, nil)
		return g.admits()
	}
	// Steps downwards bracket the bound, so that few rates have to be sorted.
	least, hi := most, most
	for step := 0.9; !admits(least); step *= step {
		if over() {
			return hi, false
		}
		if hi = least; step < 1e-9 {
			least = 0
			break
		}
		least *= step
	}
	rates := thresholds(m, least, hi)
	k := sort.Search(len(rates), func(i int) bool {
		if over() {
			ok = false
			return false
		}
		return !admits(rates[i])
	})
	if over() {
		return hi, false
	}
	if k == 0 {
		return 0, true
	}
	return rates[k-1], true
}
