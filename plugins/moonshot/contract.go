package main

import "github.com/gopccl/gopccl/core/topo"

// contraction is a smaller problem in which every path that some rings share is
// one peer.
type contraction struct {
	problem topo.Problem
	paths   [][]int // of the original peers, in the direction of travel
}

// contract keeps the arcs that all rings share. The first of them is the start,
// whose value is best: under the bottleneck objective slower links than its
// slowest are left out and the sum is what remains to be minimised.
func contract(p topo.Problem, rings [][]int, best topo.Solution) *contraction {
	n := p.Matrix.N
	shared := make([]int, n) // successor in all rings, or -1
	for k, i := range rings[0] {
		shared[i] = rings[0][(k+1)%n]
	}
	for _, ring := range rings[1:] {
		for k, i := range ring {
			if shared[i] != ring[(k+1)%n] {
				shared[i] = -1
			}
		}
	}
	first := -1 // a place to cut the first ring
	for k, i := range rings[0] {
		if shared[i] < 0 {
			first = (k + 1) % n
			break
		}
	}
	c := &contraction{}
	if first < 0 {
		return c // all rings are the same
	}
	path := []int{}
	for k := range n {
		i := rings[0][(first+k)%n]
		path = append(path, i)
		if shared[i] < 0 {
			c.paths = append(c.paths, path)
			path = nil
		}
	}
	m := len(c.paths)
	c.problem = topo.Problem{Matrix: topo.NewMatrix(m), Objective: topo.Sum, Start: make([]int, m)}
	for a, from := range c.paths {
		c.problem.Start[a] = a
		for b, to := range c.paths {
			v, ok := p.Matrix.At(from[len(from)-1], to[0])
			if a != b && ok && (p.Objective == topo.Sum || v >= best.Bottleneck) {
				c.problem.Matrix.Set(a, b, v)
			}
		}
	}
	return c
}

// expand returns the ring of the original peers.
func (c *contraction) expand(ring []int) []int {
	var out []int
	for _, k := range ring {
		out = append(out, c.paths[k]...)
	}
	return out
}
