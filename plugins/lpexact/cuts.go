package main

import "slices"

// arc is a link that may be in the ring.
type arc struct{ from, to int }

// components returns the connected components of the graph whose edges are the
// arcs with x of at least least, each as a set of peers.
func components(n int, arcs []arc, x []float64, least float64) [][]int {
	root := make([]int, n)
	for i := range root {
		root[i] = i
	}
	var find func(int) int
	find = func(i int) int {
		if root[i] != i {
			root[i] = find(root[i])
		}
		return root[i]
	}
	for k, a := range arcs {
		if x[k] >= least {
			root[find(a.from)] = find(a.to)
		}
	}
	sets := map[int][]int{}
	for i := range n {
		sets[find(i)] = append(sets[find(i)], i)
	}
	var list [][]int
	for i := range n { // in the order of their smallest peers
		if s, ok := sets[find(i)]; ok && s[0] == i {
			list = append(list, s)
		}
	}
	return list
}

// violated returns sets of peers that too little flow leaves: sum of x over the
// arcs out of the set below 1. Components first, at falling thresholds, and
// where these find nothing the minimum cut from peer 0 to and from every other.
func violated(n int, arcs []arc, x []float64) [][]int {
	var found [][]int
	seen := map[string]bool{}
	add := func(set []int) {
		if len(set) == 0 || len(set) == n || leaving(n, arcs, x, set) > 1-1e-6 {
			return
		}
		key := string(bytesOf(n, set))
		if !seen[key] {
			seen[key] = true
			found = append(found, set)
		}
	}
	for _, least := range []float64{1e-7, 0.25, 0.5, 0.75} {
		for _, set := range components(n, arcs, x, least) {
			add(set)
		}
	}
	if len(found) > 0 {
		return found
	}
	for t := 1; t < n; t++ {
		add(minCut(n, arcs, x, 0, t))
		add(minCut(n, arcs, x, t, 0))
	}
	return found
}

func bytesOf(n int, set []int) []byte {
	b := make([]byte, n)
	for _, i := range set {
		b[i] = 1
	}
	return b
}

func leaving(n int, arcs []arc, x []float64, set []int) float64 {
	in := bytesOf(n, set)
	total := 0.0
	for k, a := range arcs {
		if in[a.from] == 1 && in[a.to] == 0 {
			total += x[k]
		}
	}
	return total
}

// minCut returns the side of s of a minimum cut between s and t, nil if at least
// 1 can flow (augmenting paths of Edmonds and Karp; capacities are x).
func minCut(n int, arcs []arc, x []float64, s, t int) []int {
	type edge struct {
		to, back int
		room     float64
	}
	graph := make([][]edge, n)
	for k, a := range arcs {
		if x[k] > 1e-9 {
			graph[a.from] = append(graph[a.from], edge{a.to, len(graph[a.to]), x[k]})
			graph[a.to] = append(graph[a.to], edge{a.from, len(graph[a.from]) - 1, 0})
		}
	}
	for flow := 0.0; ; {
		via := make([]int, n) // index of the edge that led here, +1
		from := make([]int, n)
		queue := []int{s}
		via[s] = -1
		for len(queue) > 0 && via[t] == 0 {
			i := queue[0]
			queue = queue[1:]
			for k, e := range graph[i] {
				if via[e.to] == 0 && e.room > 1e-9 {
					via[e.to], from[e.to] = k+1, i
					queue = append(queue, e.to)
				}
			}
		}
		if via[t] == 0 {
			if flow >= 1-1e-6 {
				return nil
			}
			var side []int
			for i := range n {
				if via[i] != 0 {
					side = append(side, i)
				}
			}
			return side
		}
		room := 2.0
		for i := t; i != s; i = from[i] {
			room = min(room, graph[from[i]][via[i]-1].room)
		}
		for i := t; i != s; i = from[i] {
			e := &graph[from[i]][via[i]-1]
			e.room -= room
			graph[i][e.back].room += room
		}
		if flow += room; flow >= 1-1e-6 {
			return nil
		}
	}
}

// cut is the constraint that at least one arc leaves set.
func cut(n int, arcs []arc, set []int) row {
	in := bytesOf(n, set)
	r := row{rhs: 1}
	for k, a := range arcs {
		if in[a.from] == 1 && in[a.to] == 0 {
			r.vars = append(r.vars, k)
		}
	}
	return r
}

// ringOf follows the chosen arcs from peer 0, nil unless they are one ring.
func ringOf(n int, arcs []arc, x []float64) []int {
	next := slices.Repeat([]int{-1}, n)
	for k, a := range arcs {
		if x[k] > 0.5 {
			next[a.from] = a.to
		}
	}
	var ring []int
	for i := 0; len(ring) < n && i >= 0; i = next[i] {
		if len(ring) > 0 && i == 0 {
			return nil
		}
		ring = append(ring, i)
	}
	if len(ring) < n || next[ring[n-1]] != 0 {
		return nil
	}
	return ring
}
