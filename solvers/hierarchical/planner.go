package hierarchical

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/contention"
)

// Hop is one link of a planned ring. Via is the peer that stands between, as a
// bounce buffer, or -1 where From sends to To directly.
type Hop struct{ From, To, Via int }

// Plan is a ring with what was measured of it.
type Plan struct {
	// Ring is the ring order; Hops its links, one for each peer, in that order.
	Ring []int
	Hops []Hop
	// Bottleneck is the rate in Mbit/s of the slowest transfer while all
	// transfers of the ring run at once.
	Bottleneck float64
	// Bound is a rate that no ring which enters every site once can exceed, by
	// the single and simultaneous measurements that were made.
	Bound float64
	// Optimal says that Bottleneck reaches Bound.
	Optimal bool
	// Measured counts the sets of transfers that were measured together.
	Measured int
}

// ErrBudget is returned if the measurements ran out before a ring was measured.
var ErrBudget = errors.New("no ring was measured within the budget of measurements")

// ErrSites is wrapped by what a planner without a valid list of sites returns.
var ErrSites = errors.New("not a division of the peers into sites")

// Meter says what transfers get when all of them run at once; a planner of one's
// own measurements implements it.
type Meter = contention.Meter

// Transfer is one directed flow between two peers, given by their indices.
type Transfer = contention.Transfer

// Planner finds the ring that is fastest while all of its transfers run. Only
// sets of transfers that come to the front of a priority queue are measured, so
// that far fewer are than exist.
type Planner struct {
	// Meter measures sets of transfers.
	Meter Meter
	// Alone holds the rate of every pair measured by itself (Mbit/s, n*n, row
	// from, column to); it bounds what a set can give.
	Alone topo.Matrix
	// Sites lists the members of every site, at most 12 sites of at most 12
	// members; nil finds them in Alone.
	Sites [][]int
	// Relays allows a hop to pass through a third peer of the sites that it touches.
	Relays bool
	// Budget bounds the sets that are measured, default 4096.
	Budget int
}

// Plan searches until a ring is proved to be the fastest of those that enter
// every site once and are made of each site's fastest chains, or until the
// budget of measurements or ctx ends; then it returns the fastest ring measured
// so far. Errors: ErrSites, topo.ErrMatrix, topo.ErrNoRing, ErrBudget, ctx's own
// if it ends before the chains of the sites are known, and what Meter returns.
func (p *Planner) Plan(ctx context.Context) (Plan, error) {
	s, err := p.search()
	if err != nil {
		return Plan{}, err
	}
	tables := make([]chains, len(s.sites))
	for k := range s.sites {
		if tables[k], err = s.siteChains(ctx, k); err != nil {
			return Plan{}, err
		}
	}
	o, err := newOrder(ctx, s.n, s.cost, tables, dearer)
	if err != nil {
		return Plan{}, err
	}
	if math.IsInf(o.best(), 1) {
		return Plan{}, topo.ErrNoRing
	}
	return s.rings(ctx, o)
}

type search struct {
	Planner
	n        int
	ways     [][]Hop   // n*n: the ways of a hop, the fastest by itself first
	cost     []float64 // of the first way
	sites    [][]int
	routes   [][][]Hop          // of a site, head*members+tail: its fastest chain
	known    map[string]float64 // cost of a measured set
	measured int
}

func (p *Planner) search() (*search, error) {
	if err := (topo.Problem{Matrix: p.Alone}).Check(); err != nil {
		return nil, err
	}
	s := &search{Planner: *p, n: p.Alone.N, cost: costs(p.Alone), sites: p.Sites, known: map[string]float64{}}
	if s.n < 2 {
		return nil, fmt.Errorf("%w: a ring needs two peers, not %d", topo.ErrMatrix, s.n)
	}
	if s.sites == nil {
		s.sites = Sites(s.n, s.cost)
	}
	if s.Budget <= 0 {
		s.Budget = 4096
	}
	where := make([]int, s.n)
	for i := range where {
		where[i] = -1
	}
	members := 0
	for k, site := range s.sites {
		members += len(site)
		if len(site) == 0 || len(site) > maxExact || len(s.sites) > maxSites {
			return nil, fmt.Errorf("%w: site %d of %d has %d members; at most %d sites of 1 to %d members can be planned",
				ErrSites, k, len(s.sites), len(site), maxSites, maxExact)
		}
		for _, i := range site {
			if i < 0 || i >= s.n || where[i] >= 0 {
				return nil, fmt.Errorf("%w: peer %d of site %d is unknown or named twice", ErrSites, i, k)
			}
			where[i] = k
		}
	}
	if members != s.n {
		return nil, fmt.Errorf("%w: %d of %d peers are in a site", ErrSites, members, s.n)
	}
	s.findWays(where)
	return s, nil
}

// findWays lists, for every pair, the direct link and the peers of the sites at
// both ends through which more gets than on it.
func (s *search) findWays(where []int) {
	direct := append([]float64(nil), s.cost...)
	s.ways = make([][]Hop, s.n*s.n)
	for i := range s.n {
		for j := range s.n {
			if i == j {
				continue
			}
			at := i*s.n + j
			speed := map[Hop]float64{}
			add := func(h Hop, c float64) {
				s.ways[at] = append(s.ways[at], h)
				speed[h] = c
				s.cost[at] = min(s.cost[at], c)
			}
			if !math.IsInf(direct[at], 1) {
				add(Hop{i, j, -1}, direct[at])
			}
			for v := range s.n {
				if !s.Relays || v == i || v == j || where[v] != where[i] && where[v] != where[j] {
					continue
				}
				if c := dearer(direct[i*s.n+v], direct[v*s.n+j]); c < direct[at] {
					add(Hop{i, j, v}, c)
				}
			}
			sort.SliceStable(s.ways[at], func(a, b int) bool { return speed[s.ways[at][a]] < speed[s.ways[at][b]] })
		}
	}
}

// alone returns what a hop costs by itself.
func (s *search) alone(h Hop) float64 {
	link := func(i, j int) float64 {
		if r, ok := s.Alone.At(i, j); ok {
			return 1000 / r
		}
		return math.Inf(1)
	}
	if h.Via < 0 {
		return link(h.From, h.To)
	}
	return dearer(link(h.From, h.Via), link(h.Via, h.To))
}

// measure returns the cost of the slowest of the transfers behind hops while
// all run at once; ok is false if the budget is spent. A set is measured once.
func (s *search) measure(ctx context.Context, hops []Hop) (cost float64, ok bool, err error) {
	var set []Transfer
	for _, h := range hops {
		if h.Via < 0 {
			set = append(set, Transfer{From: h.From, To: h.To})
			continue
		}
		set = append(set, Transfer{From: h.From, To: h.Via}, Transfer{From: h.Via, To: h.To})
	}
	if len(set) == 0 {
		return 0, true, nil
	}
	sort.Slice(set, func(a, b int) bool {
		return set[a].From < set[b].From || set[a].From == set[b].From && set[a].To < set[b].To
	})
	key := fmt.Sprint(set)
	if c, has := s.known[key]; has {
		return c, true, nil
	}
	if s.measured >= s.Budget || ctx.Err() != nil {
		return 0, false, nil
	}
	s.measured++
	rates, err := s.Meter.Rates(ctx, set)
	if err != nil {
		return 0, false, fmt.Errorf("measure %d transfers at once: %w", len(set), err)
	}
	if len(rates) != len(set) {
		return 0, false, fmt.Errorf("measure %d transfers at once: the meter returned %d rates", len(set), len(rates))
	}
	for _, r := range rates {
		if c := 1000 / r; r > 0 {
			cost = dearer(cost, c)
		} else {
			cost = math.Inf(1)
		}
	}
	s.known[key] = cost
	return cost, true, nil
}

// partial is a chain in a queue: bound is what it will cost at least.
type partial struct {
	chain    []int
	hops     []Hop // of the chain, one fewer than its peers
	set      int   // visited members or sites, as bits
	head     int
	bound    float64
	measured bool
	born     int // breaks ties: the search is deterministic
}

type queue []partial

func (q queue) Len() int { return len(q) }
func (q queue) Less(a, b int) bool {
	if q[a].bound != q[b].bound {
		return q[a].bound < q[b].bound
	}
	// Of equals the one that is further on: it ends the search sooner.
	if len(q[a].hops) != len(q[b].hops) {
		return len(q[a].hops) > len(q[b].hops)
	}
	return q[a].born < q[b].born
}
func (q queue) Swap(a, b int) { q[a], q[b] = q[b], q[a] }
func (q *queue) Push(x any)   { *q = append(*q, x.(partial)) }
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

// siteChains fills the chain table of a site by simultaneous measurements.
func (s *search) siteChains(ctx context.Context, site int) (chains, error) {
	members := s.sites[site]
	m := len(members)
	alone, err := allChains(ctx, members, s.n, s.cost, dearer)
	if err != nil {
		return chains{}, err
	}
	t := chains{members: members, cost: alone.cost}
	routes := make([][]int, m*m)
	s.routes = append(s.routes, make([][]Hop, m*m))
	for h := range m {
		for k := range m {
			if math.IsInf(alone.cost[h*m+k], 1) {
				continue
			}
			route, hops, cost, err := s.bestChain(ctx, members, h, k)
			if err != nil {
				return chains{}, err
			}
			routes[h*m+k], s.routes[site][h*m+k], t.cost[h*m+k] = route, hops, cost
		}
	}
	t.route = func(head, tail int) []int { return routes[head*m+tail] }
	return t, nil
}

// bestChain is the best-first search over sets of transfers (TCCL): the chain
// at the front of the queue is measured; if it stays in front, it is extended
// by one hop in every way; the first complete one that stays in front is the
// best, because a further transfer never makes the slowest one faster.
// Head and tail are numbers inside the site.
func (s *search) bestChain(ctx context.Context, members []int, head, tail int) ([]int, []Hop, float64, error) {
	m := len(members)
	rest, err := s.completions(ctx, members, tail)
	if err != nil {
		return nil, nil, 0, err
	}
	q := &queue{}
	push := func(p partial, at int) {
		p.bound = dearer(p.bound, rest[p.set*m+at])
		if !math.IsInf(p.bound, 1) {
			p.born = len(*q) + s.measured
			heap.Push(q, p)
		}
	}
	push(partial{chain: []int{head}, set: 1 << head}, head)
	for q.Len() > 0 {
		p := heap.Pop(q).(partial)
		at := p.chain[len(p.chain)-1]
		if !p.measured {
			cost, ok, err := s.measure(ctx, p.hops)
			if err != nil {
				return nil, nil, 0, err
			}
			if !ok { // no budget: the best guess stands, and the ring is measured as a whole if it can be
				return s.guess(ctx, members, head, tail)
			}
			p.measured, p.bound = true, dearer(p.bound, cost)
			push(p, at)
			continue
		}
		if len(p.chain) == m {
			return named(members, p.chain), p.hops, p.bound, nil
		}
		for to := range m {
			if p.set&(1<<to) != 0 || to == tail && len(p.chain) < m-1 {
				continue
			}
			for _, way := range s.ways[members[at]*s.n+members[to]] {
				push(partial{
					chain: extend(p.chain, to), hops: extend(p.hops, way), set: p.set | 1<<to,
					bound: dearer(p.bound, s.alone(way)),
				}, to)
			}
		}
	}
	return nil, nil, math.Inf(1), nil
}

// extend returns a copy of list with more behind it.
func extend[T any](list []T, more ...T) []T {
	return append(append(make([]T, 0, len(list)+len(more)), list...), more...)
}

// guess is the best chain by the measurements of single pairs.
func (s *search) guess(ctx context.Context, members []int, head, tail int) ([]int, []Hop, float64, error) {
	t, err := allChains(context.WithoutCancel(ctx), members, s.n, s.cost, dearer)
	if err != nil {
		return nil, nil, 0, err
	}
	route := t.route(head, tail)
	var hops []Hop
	for k := 1; k < len(route); k++ {
		hops = append(hops, s.ways[route[k-1]*s.n+route[k]][0])
	}
	return route, hops, t.cost[head*len(members)+tail], nil
}

// completions bounds the cost of what is still to come: entry set*m+at is the
// least cost of going from at through all members outside set to tail, by the
// single measurements.
func (s *search) completions(ctx context.Context, members []int, tail int) ([]float64, error) {
	m := len(members)
	full := 1<<m - 1
	rest := make([]float64, (full+1)*m)
	for set := full; set >= 0; set-- {
		if ctx.Err() != nil && set&0xff == 0 {
			return nil, ctx.Err()
		}
		for at := range m {
			if set == full {
				if at != tail {
					rest[set*m+at] = math.Inf(1)
				}
				continue
			}
			least := math.Inf(1)
			for to := range m {
				if set&(1<<to) == 0 {
					least = min(least, dearer(s.cost[members[at]*s.n+members[to]], rest[(set|1<<to)*m+to]))
				}
			}
			rest[set*m+at] = least
		}
	}
	return rest, nil
}

func named(members, chain []int) []int {
	out := make([]int, len(chain))
	for k, i := range chain {
		out[k] = members[i]
	}
	return out
}

// rings enumerates the rings made of the sites' chains in the order of the
// bounds that the dynamic programme gives, measures each as a whole, and stops
// when no other can be faster than the fastest measured.
func (s *search) rings(ctx context.Context, o *order) (Plan, error) {
	best := Plan{Bound: 1000 / o.best()}
	least := math.Inf(1)
	q := &queue{}
	push := func(p partial) {
		if p.bound < least {
			p.born = len(*q) + s.measured
			heap.Push(q, p)
		}
	}
	first, m := o.sites[0], len(o.sites[0].members)
	for h := range m {
		for t, tail := range first.members {
			if route := first.route(h, t); route != nil {
				push(partial{chain: route, hops: s.routes[0][h*m+t], set: 1, head: h, bound: dearer(first.cost[h*m+t], o.complete[o.at(1, h)+tail])})
			}
		}
	}
	for q.Len() > 0 && (*q)[0].bound < least {
		p := heap.Pop(q).(partial)
		if len(p.hops) == s.n {
			cost, ok, err := s.measure(ctx, p.hops)
			if err != nil {
				return Plan{}, err
			}
			if !ok {
				break
			}
			if cost < least {
				least = cost
				best.Ring, best.Hops, best.Bottleneck = p.chain, p.hops, 1000/cost
			}
			continue
		}
		tail := p.chain[len(p.chain)-1]
		if len(p.chain) == s.n {
			for _, way := range s.ways[tail*s.n+p.chain[0]] {
				push(partial{chain: p.chain, hops: extend(p.hops, way), set: p.set, head: p.head, bound: dearer(p.bound, s.alone(way))})
			}
			continue
		}
		for k, site := range o.sites {
			if p.set&(1<<k) != 0 {
				continue
			}
			m := len(site.members)
			for i, from := range site.members {
				for j, to := range site.members {
					route := site.route(i, j)
					if route == nil {
						continue
					}
					set := p.set | 1<<k
					rest := dearer(site.cost[i*m+j], o.complete[o.at(set, p.head)+to])
					for _, way := range s.ways[tail*s.n+from] {
						push(partial{
							chain: extend(p.chain, route...), hops: append(extend(p.hops, way), s.routes[k][i*m+j]...),
							set: set, head: p.head, bound: dearer(dearer(p.bound, s.alone(way)), rest),
						})
					}
				}
			}
		}
	}
	best.Measured = s.measured
	if best.Ring == nil {
		if s.measured < s.Budget && ctx.Err() == nil {
			return best, topo.ErrNoRing
		}
		return best, fmt.Errorf("%w: %d sets measured; raise the budget or name smaller sites", ErrBudget, s.measured)
	}
	best.Optimal = best.Bottleneck >= best.Bound*(1-1e-12)
	return best, nil
}
