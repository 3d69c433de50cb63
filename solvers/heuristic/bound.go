package heuristic

import "github.com/gopccl/gopccl/core/topo"

// admits reports whether the links of at least floor could hold a ring: they
// connect everybody in both directions and give every peer its own successor.
// Both are necessary, not sufficient.
func admits(m topo.Matrix, floor float64) bool {
	out := make([][]int, m.N)
	back := make([][]int, m.N)
	for i := range m.N {
		for j := range m.N {
			if v, ok := m.At(i, j); ok && v >= floor {
				out[i] = append(out[i], j)
				back[j] = append(back[j], i)
			}
		}
		if len(out[i]) == 0 {
			return false
		}
	}
	return reaches(out) && reaches(back) && covers(out)
}

// reaches reports whether peer 0 reaches everybody.
func reaches(next [][]int) bool {
	seen := make([]bool, len(next))
	seen[0] = true
	todo, n := []int{0}, 1
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, j := range next[i] {
			if !seen[j] {
				seen[j] = true
				n++
				todo = append(todo, j)
			}
		}
	}
	return n == len(next)
}

// covers reports whether every peer can have a successor of its own
// (Hopcroft-Karp matching).
func covers(next [][]int) bool {
	n := len(next)
	succ, pred, depth := make([]int, n), make([]int, n), make([]int, n)
	for i := range n {
		succ[i], pred[i] = -1, -1
	}
	for matched := 0; ; {
		var layer []int
		for i := range n {
			depth[i] = -1
			if succ[i] < 0 {
				depth[i] = 0
				layer = append(layer, i)
			}
		}
		for len(layer) > 0 {
			i := layer[0]
			layer = layer[1:]
			for _, j := range next[i] {
				if p := pred[j]; p >= 0 && depth[p] < 0 {
					depth[p] = depth[i] + 1
					layer = append(layer, p)
				}
			}
		}
		var augment func(i int) bool
		augment = func(i int) bool {
			for _, j := range next[i] {
				if p := pred[j]; p < 0 || depth[p] == depth[i]+1 && augment(p) {
					succ[i], pred[j] = j, i
					return true
				}
			}
			depth[i] = -1
			return false
		}
		found := 0
		for i := range n {
			if succ[i] < 0 && augment(i) {
				found++
			}
		}
		if matched += found; matched == n || found == 0 {
			return matched == n
		}
	}
}
