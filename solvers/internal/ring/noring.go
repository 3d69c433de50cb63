package ring

import (
	"fmt"

	"github.com/gopccl/gopccl/core/topo"
)

// noRing explains why there is no ring and looks for peers in the way.
func (r *run) noRing() error {
	m := r.p.Matrix
	e := &topo.NoRingError{}
	g := newDigraph(m.N)
	g.fill(m, 0, nil)
	e.Reason, e.Proved = g.reason()
	if m.N <= few && !r.over() {
		e.Proved = true // all were tried
	}
	e.Remove = r.remove()
	return e
}

// reason names what a ring fails at; false if nothing of the kind is in the way.
func (g *digraph) reason() (string, bool) {
	for i := range g.n {
		if count(g.out[i*g.words:(i+1)*g.words]) == 0 {
			return fmt.Sprintf("peer %d has no link to any other peer", i), true
		}
		if count(g.in[i*g.words:(i+1)*g.words]) == 0 {
			return fmt.Sprintf("no peer has a link to peer %d", i), true
		}
	}
	if count(g.component(0)) < g.n {
		return "some peers cannot reach all others, not even through others", true
	}
	if _, matched := g.cover(nil); matched < g.n {
		return fmt.Sprintf("at most %d of %d peers can have a next peer of their own", matched, g.n), true
	}
	return "", false
}

// remove returns peers without which the others have a ring, nil if the time
// does not suffice to find such a set. It goes from the largest group in which
// everybody reaches everybody to one in which everybody can have a successor,
// until a ring is found, and then takes back whom it can.
func (r *run) remove() []int {
	m := r.p.Matrix
	keep := make([]bool, m.N)
	for i := range keep {
		keep[i] = true
	}
	g := newDigraph(m.N)
	size := 0
	for {
		if r.over() {
			return nil
		}
		if size = g.shrink(m, keep); size < 2 {
			return nil
		}
		if r.ringOf(keep) {
			break
		}
		// No ring, and no reason known: drop the peer with the fewest links.
		worst, fewest := -1, 0
		for i := range keep {
			if keep[i] {
				d := min(count(g.out[i*g.words:(i+1)*g.words]), count(g.in[i*g.words:(i+1)*g.words]))
				if worst < 0 || d < fewest {
					worst, fewest = i, d
				}
			}
		}
		keep[worst] = false
	}
	for i := range keep {
		if !keep[i] && !r.over() {
			keep[i] = true
			g.fill(m, 0, keep)
			if !g.possible(keep) || !r.ringOf(keep) {
				keep[i] = false
			}
		}
	}
	var gone []int
	for i := range keep {
		if !keep[i] {
			gone = append(gone, i)
		}
	}
	return gone
}

// shrink reduces keep until its peers are strongly connected and can all have
// a successor; it returns how many are left.
func (g *digraph) shrink(m topo.Matrix, keep []bool) int {
	for {
		g.fill(m, 0, keep)
		var largest []uint64
		most, all := 0, 0
		done := make([]uint64, g.words)
		for i := range keep {
			if !keep[i] {
				continue
			}
			all++
			if done[i>>6]>>(i&63)&1 == 1 {
				continue
			}
			c := g.component(i)
			for w := range done {
				done[w] |= c[w]
			}
			if n := count(c); n > most {
				most, largest = n, c
			}
		}
		if most < 2 {
			return 0
		}
		if most < all {
			for i := range keep {
				keep[i] = keep[i] && largest[i>>6]>>(i&63)&1 == 1
			}
			continue
		}
		succ, matched := g.cover(keep)
		if matched == all {
			return all
		}
		for i := range keep {
			if keep[i] && succ[i] < 0 {
				keep[i] = false
				break
			}
		}
	}
}

// possible reports whether the peers of keep could have a ring.
func (g *digraph) possible(keep []bool) bool {
	all, first := 0, -1
	for i, k := range keep {
		if k {
			all++
			if first < 0 {
				first = i
			}
		}
	}
	if all < 2 || count(g.component(first)) < all {
		return false
	}
	_, matched := g.cover(keep)
	return matched == all
}

// ringOf looks for a ring of the peers of keep.
func (r *run) ringOf(keep []bool) bool {
	var who []int
	for i, k := range keep {
		if k {
			who = append(who, i)
		}
	}
	m := topo.NewMatrix(len(who))
	for a, i := range who {
		for b, j := range who {
			if v, ok := r.p.Matrix.At(i, j); ok {
				m.Set(a, b, v)
			}
		}
	}
	part := &run{clock: r.part(0.2), costs: newCosts(m), p: topo.Problem{Matrix: m, Objective: topo.Sum}, better: func(topo.Solution) {}}
	if m.N <= few {
		part.all()
	} else {
		part.find(part.clock, 0, 0)
	}
	return len(part.best.Ring) > 0
}
