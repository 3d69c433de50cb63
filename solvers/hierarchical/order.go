package hierarchical

import (
	"context"
	"math"
)

// maxSites bounds the dynamic programme over sets of sites.
const maxSites = 12

// order is the dynamic programme between the sites. complete[S][h][t] is the
// least cost of turning a chain that has visited the sites of S, with head h (a
// member of site 0) and tail t, into a ring; it reads the table from the full
// set downwards, so that every entry is a bound for a search as well.
type order struct {
	n        int
	cost     []float64 // n*n, of one hop between peers
	sites    []chains
	combine  join
	where    []int // site of a peer
	index    []int // number of a peer inside its site
	complete []float64
}

func newOrder(ctx context.Context, n int, cost []float64, sites []chains, combine join) (*order, error) {
	o := &order{n: n, cost: cost, sites: sites, combine: combine, where: make([]int, n), index: make([]int, n)}
	for k, s := range sites {
		for i, p := range s.members {
			o.where[p], o.index[p] = k, i
		}
	}
	heads := len(sites[0].members)
	full := 1<<len(sites) - 1
	o.complete = make([]float64, (full+1)*heads*n)
	for i := range o.complete {
		o.complete[i] = math.Inf(1)
	}
	entry := make([]float64, n) // cost of all that follows once this peer is entered
	for set := full; set > 0; set-- {
		if set&1 == 0 {
			continue
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for h, head := range sites[0].members {
			at := o.complete[o.at(set, h):][:n]
			if set == full {
				for t := range n {
					at[t] = cost[t*n+head]
				}
				continue
			}
			for k, s := range sites {
				if set&(1<<k) != 0 {
					continue
				}
				m := len(s.members)
				after := o.complete[o.at(set|1<<k, h):][:n]
				for i, p := range s.members {
					entry[p] = math.Inf(1)
					for j, q := range s.members {
						entry[p] = min(entry[p], combine(s.cost[i*m+j], after[q]))
					}
				}
			}
			for t := range n {
				if set&(1<<o.where[t]) == 0 {
					continue
				}
				for k, s := range sites {
					if set&(1<<k) != 0 {
						continue
					}
					for _, p := range s.members {
						at[t] = min(at[t], combine(cost[t*n+p], entry[p]))
					}
				}
			}
		}
	}
	return o, nil
}

func (o *order) at(set, head int) int { return (set*len(o.sites[0].members) + head) * o.n }

// best returns the cost of the cheapest ring that visits every site once, +Inf
// if there is none.
func (o *order) best() float64 {
	first, least := o.sites[0], math.Inf(1)
	m := len(first.members)
	for h := range m {
		for t, p := range first.members {
			least = min(least, o.combine(first.cost[h*m+t], o.complete[o.at(1, h)+p]))
		}
	}
	return least
}

// ring reads the cheapest ring from the table, nil if there is none.
func (o *order) ring() []int {
	least := o.best()
	if math.IsInf(least, 1) {
		return nil
	}
	first, m := o.sites[0], len(o.sites[0].members)
	for h := range m {
		for t, p := range first.members {
			if o.combine(first.cost[h*m+t], o.complete[o.at(1, h)+p]) == least {
				return o.follow(h, p, first.route(h, t))
			}
		}
	}
	return nil
}

// follow extends a chain over site 0 by the choices that the table was made of.
func (o *order) follow(head, tail int, ring []int) []int {
	for set := 1; set != 1<<len(o.sites)-1; {
		k, i, j := o.next(set, head, tail)
		s := o.sites[k]
		ring = append(ring, s.route(i, j)...)
		set, tail = set|1<<k, s.members[j]
	}
	return ring
}

func (o *order) next(set, head, tail int) (site, i, j int) {
	least := math.Inf(1)
	for k, s := range o.sites {
		if set&(1<<k) != 0 {
			continue
		}
		m := len(s.members)
		for a, p := range s.members {
			for b, q := range s.members {
				inside := o.combine(s.cost[a*m+b], o.complete[o.at(set|1<<k, head)+q])
				if v := o.combine(o.cost[tail*o.n+p], inside); v < least {
					least, site, i, j = v, k, a, b
				}
			}
		}
	}
	return site, i, j
}
