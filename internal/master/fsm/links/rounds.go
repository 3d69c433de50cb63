// Package links is what the master knows about measuring links: which of them
// are measured at the same time, and what measurements that were made together,
// and alone, say about hosts whose peers share what leads out or in.
package links

import (
	"math/bits"
	"net/netip"
	"slices"

	"github.com/gopccl/gopccl/internal/wire"
)

// Edge is a link from one peer to another.
type Edge struct{ From, To wire.UUID }

// Hosts returns the hosts that a link leaves and enters. ok is false for a link
// within a host, and for one whose peers are not known (any more).
type Hosts func(e Edge) (from, to netip.Addr, ok bool)

// Matchings divides edges into rounds in which no peer occurs twice as sender
// or twice as receiver, as few as there can be: the largest number of edges
// that one peer sends or receives (König). Edges keep their first free round;
// where the two peers have none in common, the rounds along an alternating path
// are swapped.
func Matchings(edges []Edge) [][]Edge {
	index := map[wire.UUID]int{}
	for _, e := range edges {
		for _, u := range []wire.UUID{e.From, e.To} {
			if _, known := index[u]; !known {
				index[u] = len(index)
			}
		}
	}
	// Ends are senders 2i and receivers 2i+1.
	ends := make([][2]int, len(edges))
	degree := make([]int, 2*len(index))
	rounds := 0
	for k, e := range edges {
		ends[k] = [2]int{2 * index[e.From], 2*index[e.To] + 1}
		for _, x := range ends[k] {
			degree[x]++
			rounds = max(rounds, degree[x])
		}
	}
	at := make([]int32, len(degree)*rounds) // edge+1 of an end in a round
	words := (rounds + 63) / 64
	taken := make([]uint64, len(degree)*words)
	set := func(k, r int) {
		for _, x := range ends[k] {
			at[x*rounds+r] = int32(k + 1)
			taken[x*words+r/64] |= 1 << (r % 64)
		}
	}
	unset := func(k, r int) {
		for _, x := range ends[k] {
			at[x*rounds+r] = 0
			taken[x*words+r/64] &^= 1 << (r % 64)
		}
	}
	free := func(x, y int) int {
		for w := range words {
			if f := ^(taken[x*words+w] | taken[y*words+w]); f != 0 {
				if r := w*64 + bits.TrailingZeros64(f); r < rounds {
					return r
				}
			}
		}
		return -1
	}
	color := make([]int, len(edges))
	for k := range edges {
		s, t := ends[k][0], ends[k][1]
		r := free(s, t)
		if r < 0 {
			r = free(s, s)
			other := free(t, t)
			// The path from t over rounds r, other, r, ... cannot end at s.
			var path []int
			for x, c := t, r; at[x*rounds+c] != 0; c = r + other - c {
				e := int(at[x*rounds+c]) - 1
				path = append(path, e)
				x = ends[e][0] + ends[e][1] - x
			}
			for _, e := range path {
				unset(e, color[e])
			}
			for _, e := range path {
				color[e] = r + other - color[e]
				set(e, color[e])
			}
		}
		color[k] = r
		set(k, r)
	}
	out := make([][]Edge, rounds)
	for k, e := range edges {
		out[color[k]] = append(out[color[k]], e)
	}
	return out
}

// Apart divides edges between hosts into rounds in which no host sends or
// receives twice. Duplicates are left out.
func Apart(edges []Edge, hosts Hosts) (rounds [][]Edge) {
	type end struct {
		host netip.Addr
		way  Way
	}
	var used []map[end]bool
	var done []Edge
	for _, e := range edges {
		from, to, ok := hosts(e)
		if !ok || slices.Contains(done, e) {
			continue
		}
		done = append(done, e)
		r := slices.IndexFunc(used, func(u map[end]bool) bool { return !u[end{from, Out}] && !u[end{to, In}] })
		if r < 0 {
			r = len(used)
			used, rounds = append(used, map[end]bool{}), append(rounds, nil)
		}
		used[r][end{from, Out}], used[r][end{to, In}] = true, true
		rounds[r] = append(rounds[r], e)
	}
	return rounds
}
