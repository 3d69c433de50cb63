// Package rings is the arithmetic of rings: comparing them, keeping one up to
// date while peers come and go, and finding one around pairs that cannot be
// neighbours. It knows neither peers nor links; the state machine of the master
// asks it, and a peer is any comparable value.
package rings

import (
	"math"
	"slices"
)

// SameCycle reports whether two rings are the same, whatever peer they begin
// with. The direction counts.
func SameCycle[T comparable](a, b []T) bool {
	if len(a) != len(b) || len(a) == 0 {
		return len(a) == len(b)
	}
	at := slices.Index(b, a[0])
	if at < 0 {
		return false
	}
	for i, u := range a {
		if b[(at+i)%len(b)] != u {
			return false
		}
	}
	return true
}

// Indices returns the place in members of every peer of ring, -1 for one that is
// not among them.
func Indices[T comparable](members, ring []T) []int {
	if len(ring) == 0 {
		return nil
	}
	at := make(map[T]int, len(members))
	for i, u := range members {
		at[u] = i
	}
	idx := make([]int, len(ring))
	for k, u := range ring {
		i, ok := at[u]
		if !ok {
			i = -1
		}
		idx[k] = i
	}
	return idx
}

// Update returns order without the peers that are not members, and with the
// members that it lacks, in their order, each where it costs least: between the
// two neighbours from and to which rate is highest. Without a rate above zero it
// goes to the end. The result is a new slice.
func Update[T comparable](order, members []T, rate func(from, to T) float64) []T {
	lacking := make(map[T]bool, len(members))
	for _, u := range members {
		lacking[u] = true
	}
	ring := make([]T, 0, len(members))
	for _, u := range order {
		if lacking[u] {
			ring = append(ring, u)
			delete(lacking, u)
		}
	}
	for _, u := range members {
		if lacking[u] {
			ring = insert(ring, u, rate)
		}
	}
	return ring
}

func insert[T comparable](ring []T, u T, rate func(from, to T) float64) []T {
	best, at := -1.0, len(ring)
	for i, next := range ring {
		prev := ring[(i+len(ring)-1)%len(ring)]
		if v := math.Min(rate(prev, u), rate(u, next)); v > best && v > 0 {
			best, at = v, i
		}
	}
	return slices.Insert(ring, at, u)
}

// Spread separates strangers, if any are neighbours of each other: the result
// has them between the others, as evenly as it can be. It is nil if there is
// nothing to do, or less than two others.
func Spread[T comparable](ring []T, stranger func(T) bool) []T {
	var hosts, guests []T
	beside := false
	for i, u := range ring {
		if !stranger(u) {
			hosts = append(hosts, u)
			continue
		}
		guests = append(guests, u)
		beside = beside || len(ring) > 2 && stranger(ring[(i+1)%len(ring)])
	}
	if !beside || len(hosts) < 2 {
		return nil
	}
	out := make([]T, 0, len(ring))
	for i, u := range hosts {
		out = append(out, u)
		out = append(out, guests[i*len(guests)/len(hosts):(i+1)*len(guests)/len(hosts)]...)
	}
	return out
}
