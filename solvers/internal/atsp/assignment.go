package atsp

import "slices"

// Assignment is an optimal assignment of successors: a set of cycles that
// covers all nodes at the least weight, and its dual values.
// W[i,j]-U[i]-V[j] is never negative and 0 on the arcs chosen.
type Assignment struct {
	Succ, Pred []int32
	U, V       []int64
	Value      int64 // no tour is shorter
}

// Assign solves the assignment problem of w (N >= 2) by the method of Jonker
// and Volgenant (Computing 38, 1987): column reduction, augmenting row
// reduction, then shortest augmenting paths. Nil if the clock stops it.
func Assign(w Weights, over Clock) *Assignment {
	n := w.N
	a := &Assignment{Succ: make([]int32, n), Pred: make([]int32, n), U: make([]int64, n), V: make([]int64, n)}
	for i := range n {
		a.Succ[i], a.Pred[i] = -1, -1
	}
	at := func(i, j int) int64 {
		if i == j {
			return never
		}
		return w.W[i*n+j]
	}
	// Column reduction: every column's least weight, its row takes the column
	// if it has none yet.
	least, from := make([]int64, n), make([]int32, n)
	for j := range n {
		least[j] = never
	}
	for i := range n {
		for j, c := range w.W[i*n : i*n+n] {
			if c < least[j] && i != j {
				least[j], from[j] = c, int32(i)
			}
		}
	}
	for j := n - 1; j >= 0; j-- {
		a.V[j] = least[j]
		if i := from[j]; a.Succ[i] < 0 {
			a.Succ[i], a.Pred[j] = int32(j), i
		}
	}
	var free []int32
	for i := range n {
		if a.Succ[i] < 0 {
			free = append(free, int32(i))
		}
	}
	for range 2 {
		free = a.rowReduction(w, free)
	}
	s := newPaths(n)
	for k, i := range free {
		if k&7 == 7 && over() {
			return nil
		}
		s.augment(w, a, int(i))
	}
	a.Value = 0
	for i := range n {
		j := int(a.Succ[i])
		c := at(i, j)
		a.U[i] = c - a.V[j]
		a.Value += c
	}
	return a
}

// rowReduction assigns free rows to their cheapest column and lowers that
// column's dual by the margin to the second cheapest; the row that held the
// column is free then. It returns the rows that stay free.
func (a *Assignment) rowReduction(w Weights, free []int32) []int32 {
	n := w.N
	var left []int32
	budget := n / 2 // displacing rows could go on for long where margins are tiny
	for k := 0; k < len(free); {
		i := int(free[k])
		k++
		best, second := int64(never), int64(never)
		j1, j2 := -1, -1
		for j, c := range w.W[i*n : i*n+n] {
			if h := c - a.V[j]; h < second && j != i {
				if h < best {
					second, j2 = best, j1
					best, j1 = h, j
				} else {
					second, j2 = h, j
				}
			}
		}
		holder := a.Pred[j1]
		if best < second && j2 >= 0 {
			a.V[j1] -= second - best
		} else if holder >= 0 && j2 >= 0 {
			j1 = j2
			holder = a.Pred[j1]
		}
		a.Succ[i], a.Pred[j1] = int32(j1), int32(i)
		if holder < 0 {
			continue
		}
		a.Succ[holder] = -1
		if budget--; best < second && budget > 0 {
			k--
			free[k] = holder
		} else {
			left = append(left, holder)
		}
	}
	return left
}

// paths is the working memory of shortest augmenting path searches.
type paths struct {
	dist []int64
	prev []int32 // row from which a column was reached
	cols []int32 // columns: scanned, then ready, then the rest
}

func newPaths(n int) *paths {
	return &paths{dist: make([]int64, n), prev: make([]int32, n), cols: make([]int32, n)}
}

// augment assigns the free row by a shortest alternating path (Dijkstra on the
// reduced weights) and updates the column duals; those of the rows follow.
func (s *paths) augment(w Weights, a *Assignment, row int) {
	n := w.N
	for j := range n {
		s.dist[j] = never
		if j != row {
			s.dist[j] = w.W[row*n+j] - a.V[j]
		}
		s.prev[j] = int32(row)
		s.cols[j] = int32(j)
	}
	// cols[:low] are scanned, cols[low:up] have the least distance.
	low, up, last := 0, 0, 0
	var least int64
	end := -1
	for end < 0 {
		if low == up {
			last = low
			least = s.dist[s.cols[up]]
			up++
			for k := up; k < n; k++ {
				j := s.cols[k]
				if d := s.dist[j]; d <= least {
					if d < least {
						up, least = low, d
					}
					s.cols[k], s.cols[up] = s.cols[up], j
					up++
				}
			}
			for _, j := range s.cols[low:up] {
				if a.Pred[j] < 0 {
					end = int(j)
					break
				}
			}
		}
		for end < 0 && low < up {
			j1 := int(s.cols[low])
			low++
			i := int(a.Pred[j1])
			h := w.W[i*n+j1] - a.V[j1] - least
			rowW := w.W[i*n : i*n+n]
			for k := up; k < n; k++ {
				j := int(s.cols[k])
				if j == i {
					continue
				}
				if d := rowW[j] - a.V[j] - h; d < s.dist[j] {
					s.prev[j], s.dist[j] = int32(i), d
					if d == least {
						if a.Pred[j] < 0 {
							end = j
							break
						}
						s.cols[k], s.cols[up] = s.cols[up], int32(j)
						up++
					}
				}
			}
		}
	}
	for _, j := range s.cols[:last] {
		a.V[j] += s.dist[j] - least
	}
	for {
		i := s.prev[end]
		a.Pred[end] = i
		a.Succ[i], end = int32(end), int(a.Succ[i])
		if int(i) == row {
			return
		}
	}
}

// Cycles labels the nodes by the cycle of succ they are on and returns the
// labels and the sizes.
func Cycles(succ []int32) (label []int32, sizes []int) {
	label = make([]int32, len(succ))
	for i := range label {
		label[i] = -1
	}
	for i := range succ {
		if label[i] >= 0 {
			continue
		}
		c := int32(len(sizes))
		size := 0
		for j := int32(i); label[j] < 0; j = succ[j] {
			label[j] = c
			size++
		}
		sizes = append(sizes, size)
	}
	return label, sizes
}

// order lists the nodes of the cycle of succ that begins with node 0.
func order(succ, buf []int32) []int32 {
	buf = append(buf[:0], 0)
	for i := succ[0]; i != 0; i = succ[i] {
		buf = append(buf, i)
	}
	return buf
}

// Patched returns the tour that Patch makes of an assignment.
func Patched(w Weights, a *Assignment, over Clock) []int32 {
	succ := slices.Clone(a.Succ)
	Patch(w, succ, over)
	return order(succ, nil)
}

// Patch joins the cycles of succ into one tour (Karp): always the smallest
// cycle with another one by the exchange of two successors that costs least.
// It changes succ.
func Patch(w Weights, succ []int32, over Clock) {
	n := w.N
	label, sizes := Cycles(succ)
	pred := make([]int32, n)
	for i, j := range succ {
		pred[j] = int32(i)
	}
	for left := len(sizes); left > 1; left-- {
		small := -1
		for c, s := range sizes {
			if s > 0 && (small < 0 || s < sizes[small]) {
				small = c
			}
		}
		best, bu, bv := int64(never), int32(-1), int32(-1)
		stopped := over()
		for u := range n {
			if label[u] != int32(small) {
				continue
			}
			row := w.W[u*n : u*n+n]
			su := int(succ[u])
			out := row[su]
			for j, c := range row {
				if label[j] == int32(small) {
					continue
				}
				v := int(pred[j])
				if d := c + w.W[v*n+su] - out - w.W[v*n+j]; d < best {
					best, bu, bv = d, int32(u), int32(v)
				}
			}
			if stopped {
				break // out of time: any join will do
			}
		}
		succ[bu], succ[bv] = succ[bv], succ[bu]
		pred[succ[bu]], pred[succ[bv]] = bu, bv
		into := label[bv]
		for i, l := range label {
			if l == int32(small) {
				label[i] = into
			}
		}
		sizes[into] += sizes[small]
		sizes[small] = 0
	}
}
