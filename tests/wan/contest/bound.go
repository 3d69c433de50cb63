package main

import (
	"slices"

	"github.com/gopccl/gopccl/tests/internal/lab"
	"github.com/gopccl/gopccl/tests/internal/lab/netem"
)

// ideal returns how long an all-reduce of so many bytes among the first world hosts takes
// at least, in seconds, with any schedule and without any delay; 0: nothing is limited.
// Each peer, and each site, sends what is to be summed up once, and receives the result
// once. All of them together send and receive it twice, but for the one that has each sum.
func ideal(p *lab.Profile, world, bytes int) (seconds float64) {
	up, down := make([]float64, world), make([]float64, world) // bits/s; 0: no limit
	for i, h := range p.Hosts[:world] {
		up[i] = least(h.Up.Rate, between(p, world, func(k int) netem.Queue { return p.Paths[i][k].Queue }, i))
		down[i] = least(h.Down.Rate, between(p, world, func(k int) netem.Queue { return p.Paths[k][i].Queue }, i))
	}
	out, in, at := make([]float64, len(p.Sites)), make([]float64, len(p.Sites)), 0
	for i, s := range p.Sites {
		out[i], in[i] = s.Out.Rate, s.In.Rate
		at += len(s.Hosts)
	}
	all := [][]float64{up, down}
	if at == world { // otherwise some hosts are sites of their own
		all = append(all, out, in)
	}
	for _, rates := range all {
		n := float64(len(rates))
		for _, r := range rates {
			if r > 0 {
				seconds = max(seconds, float64(bytes)*8/r)
			}
		}
		if sum := total(rates); sum > 0 {
			seconds = max(seconds, 2*(n-1)*float64(bytes)*8/sum)
		}
	}
	return seconds
}

// between returns the sum of what the paths of a host carry; 0: one has no limit.
func between(p *lab.Profile, world int, path func(k int) netem.Queue, host int) float64 {
	var rates []float64
	for k := range world {
		if k != host {
			rates = append(rates, path(k).Rate)
		}
	}
	return total(rates)
}

// total returns the sum of rates; 0: one has no limit.
func total(rates []float64) (sum float64) {
	if slices.Contains(rates, 0) {
		return 0
	}
	for _, r := range rates {
		sum += r
	}
	return sum
}

// least returns the lesser limit, where 0 is none.
func least(a, b float64) float64 {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
