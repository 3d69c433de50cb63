package hierarchical

import (
	"math"
	"sort"
)

// split is the least ratio between the slowest link that holds a site together
// and the fastest one that leaves it.
const split = 2

// Sites groups n peers, given the cost of every directed link (n*n, row from,
// column to, +Inf for none): peers of a site reach each other over links
// at least twice as fast as any that leads out of it. It returns the members of
// every site in ascending order, sites ordered by their first member; a group
// without such a structure is one site.
func Sites(n int, cost []float64) [][]int {
	type edge struct {
		i, j int
		c    float64 // of the slower direction
	}
	// A spanning tree of the cheapest links: what holds sites together.
	near := make([]float64, n)
	from := make([]int, n)
	in := make([]bool, n)
	for i := range near {
		near[i] = math.Inf(1)
	}
	tree := make([]edge, 0, n)
	for at := 0; ; {
		in[at] = true
		next := -1
		for j := range n {
			if in[j] {
				continue
			}
			if c := max(cost[at*n+j], cost[j*n+at]); c < near[j] {
				near[j], from[j] = c, at
			}
			if next < 0 || near[j] < near[next] {
				next = j
			}
		}
		if next < 0 {
			break
		}
		tree = append(tree, edge{from[next], next, near[next]})
		at = next
	}
	sort.SliceStable(tree, func(a, b int) bool { return tree[a].c < tree[b].c })
	cut, widest := len(tree), float64(split)
	for k := 1; k < len(tree); k++ {
		if r := tree[k].c / tree[k-1].c; r >= widest && !math.IsInf(tree[k-1].c, 1) {
			cut, widest = k, r
		}
	}
	root := make([]int, n)
	for i := range root {
		root[i] = i
	}
	find := func(i int) int {
		for root[i] != i {
			root[i] = root[root[i]]
			i = root[i]
		}
		return i
	}
	for _, e := range tree[:cut] {
		a, b := find(e.i), find(e.j)
		root[max(a, b)] = min(a, b)
	}
	var sites [][]int
	at := map[int]int{}
	for i := range n {
		k, ok := at[find(i)]
		if !ok {
			k = len(sites)
			at[find(i)] = k
			sites = append(sites, nil)
		}
		sites[k] = append(sites[k], i)
	}
	return sites
}
