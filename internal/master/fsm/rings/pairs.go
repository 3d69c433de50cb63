package rings

import "slices"

// Pairs says which of n members cannot be neighbours. It is symmetric, because
// a neighbour is connected to in both directions. Members are their indices.
type Pairs struct {
	n   int
	bad []bool // by i*n+j; nil: all can
}

// NewPairs returns n members who all can be neighbours.
func NewPairs(n int) Pairs { return Pairs{n: n} }

// Forbid notes that i and j cannot be neighbours.
func (p *Pairs) Forbid(i, j int) {
	if p.bad == nil {
		p.bad = make([]bool, p.n*p.n)
	}
	p.bad[i*p.n+j], p.bad[j*p.n+i] = true, true
}

// Forbidden reports whether i and j cannot be neighbours.
func (p Pairs) Forbidden(i, j int) bool { return p.bad != nil && p.bad[i*p.n+j] }

// Any reports whether any two cannot be neighbours.
func (p Pairs) Any() bool { return p.bad != nil }

// Violations counts the neighbours in ring that cannot be neighbours.
func (p Pairs) Violations(ring []int) int {
	if !p.Any() {
		return 0
	}
	bad := 0
	for k, i := range ring {
		if j := ring[(k+1)%len(ring)]; i != j && p.Forbidden(i, j) {
			bad++
		}
	}
	return bad
}

// exactMembers is up to how many members a ring is found if there is one.
const exactMembers = 12

// Ring returns a ring of all members without forbidden neighbours, nil if none
// was found: exactly for small groups, and for large ones by local search that
// begins at the ring start. The same arguments give the same result.
func (p Pairs) Ring(start []int) []int {
	if p.n <= exactMembers {
		return p.exact()
	}
	return p.search(start)
}

// exact finds a Hamiltonian cycle by dynamic programming over subsets: ends[s]
// holds the possible last members of a path from member 0 through exactly s.
func (p Pairs) exact() []int {
	if p.n == 1 {
		return []int{0}
	}
	full := 1<<p.n - 1
	ends := make([]uint16, full+1)
	ends[1] = 1
	for s := 1; s <= full; s += 2 {
		for last := 0; last < p.n; last++ {
			if ends[s]&(1<<last) == 0 {
				continue
			}
			for next := 1; next < p.n; next++ {
				if s&(1<<next) == 0 && !p.Forbidden(last, next) {
					ends[s|1<<next] |= 1 << next
				}
			}
		}
	}
	ring := make([]int, p.n)
	s, after := full, 0
	for k := p.n - 1; k > 0; k-- {
		found := false
		for last := 1; last < p.n && !found; last++ {
			if ends[s]&(1<<last) != 0 && !p.Forbidden(last, after) {
				ring[k], after, found = last, last, true
				s &^= 1 << last
			}
		}
		if !found {
			return nil
		}
	}
	return ring
}

// search removes forbidden adjacencies by reversing segments, with a bounded
// number of fixed kicks out of local minima.
func (p Pairs) search(ring []int) []int {
	for i := range p.n {
		free := 0
		for j := range p.n {
			if i != j && !p.Forbidden(i, j) {
				free++
			}
		}
		if free < 2 {
			return nil
		}
	}
	ring = slices.Clone(ring)
	rnd := uint32(1)
	cut := func() int {
		rnd = rnd*1664525 + 1013904223
		return int(rnd>>8) % p.n
	}
	for range 200 {
		p.descend(ring)
		if p.Violations(ring) == 0 {
			return ring
		}
		for range 3 {
			i, j := cut(), cut()
			slices.Reverse(ring[min(i, j):max(i, j)])
		}
	}
	return nil
}

// descend reverses segments as long as that removes forbidden adjacencies.
func (p Pairs) descend(ring []int) {
	bad := func(i, j int) int {
		if p.Forbidden(i, j) {
			return 1
		}
		return 0
	}
	n := len(ring)
	for improved := true; improved; {
		improved = false
		for i := 0; i < n; i++ {
			a, b := ring[i], ring[(i+1)%n]
			if !p.Forbidden(a, b) {
				continue
			}
			for j := 0; j < n; j++ {
				c, d := ring[j], ring[(j+1)%n]
				if j == i || c == b || d == a {
					continue
				}
				if bad(a, c)+bad(b, d) < bad(a, b)+bad(c, d) {
					lo, hi := min(i, j), max(i, j)
					slices.Reverse(ring[lo+1 : hi+1])
					improved = true
					break
				}
			}
		}
	}
}
