// Package contention models what single-pair measurements cannot see: that
// transfers which run at the same time share channels (an uplink that two peers
// of a site use, a memory channel, a switch). A Network says what each of a set
// of simultaneous transfers gets; a planner asks it through the interface Meter,
// which a real measurement can fill as well.
package contention

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
)

// Transfer is one directed flow between two peers, given by their indices.
type Transfer struct{ From, To int }

// Meter says what transfers get when all of them run at once.
type Meter interface {
	// Rates returns the rate of every transfer of set in Mbit/s, in the order of
	// set, while all of them run at the same time. A rate of 0 says that there is
	// no path. The set stays the caller's.
	Rates(ctx context.Context, set []Transfer) ([]float64, error)
}

// ErrNetwork is wrapped by what a malformed network or transfer gets.
var ErrNetwork = errors.New("not a network")

// Network is a set of channels with a capacity each, and for every pair of
// peers the channels that a transfer between them passes. It is not safe to
// change it while it is asked.
type Network struct {
	n        int
	capacity []float64
	route    [][]int // n*n; nil: there is no path
	asked    atomic.Int64
}

// New returns a network of n peers without channels.
func New(n int) *Network { return &Network{n: n, route: make([][]int, n*n)} }

// Channel adds a channel that carries mbps Mbit/s in all and returns its number.
func (w *Network) Channel(mbps float64) int {
	w.capacity = append(w.capacity, mbps)
	return len(w.capacity) - 1
}

// Route lets transfers from peer i to peer j pass the given channels, in
// addition to those that they pass already. A channel named twice is passed twice.
func (w *Network) Route(i, j int, channels ...int) {
	w.route[i*w.n+j] = append(w.route[i*w.n+j], channels...)
}

// Asked returns how many sets of transfers were measured so far.
func (w *Network) Asked() int { return int(w.asked.Load()) }

// Rates shares the channels max-min fairly, as competing TCP flows of equal
// round trip do in the long run: all rates grow together until a channel is
// full, its transfers stop there, the others grow on (Bertsekas and Gallager,
// Data Networks, section 6.5.2).
func (w *Network) Rates(_ context.Context, set []Transfer) ([]float64, error) {
	w.asked.Add(1)
	load := make([]int, len(w.capacity)) // passes of transfers that still grow
	left := append([]float64(nil), w.capacity...)
	rates := make([]float64, len(set))
	growing := make([]bool, len(set))
	open := 0
	for k, t := range set {
		if t.From < 0 || t.From >= w.n || t.To < 0 || t.To >= w.n || t.From == t.To {
			return nil, fmt.Errorf("%w: transfer %d to %d among %d peers", ErrNetwork, t.From, t.To, w.n)
		}
		route := w.route[t.From*w.n+t.To]
		if growing[k] = len(route) > 0; !growing[k] {
			continue
		}
		open++
		for _, c := range route {
			if c < 0 || c >= len(w.capacity) {
				return nil, fmt.Errorf("%w: channel %d of %d", ErrNetwork, c, len(w.capacity))
			}
			load[c]++
		}
	}
	for open > 0 {
		full, share := -1, math.Inf(1)
		for c, l := range load {
			if l > 0 && left[c]/float64(l) < share {
				full, share = c, left[c]/float64(l)
			}
		}
		if full < 0 { // nothing but channels without a bound
			return nil, fmt.Errorf("%w: a transfer passes only channels of infinite capacity", ErrNetwork)
		}
		share = max(share, 0)
		for c, l := range load {
			left[c] -= share * float64(l)
		}
		for k, t := range set {
			if !growing[k] {
				continue
			}
			rates[k] += share
			if passes(w.route[t.From*w.n+t.To], full) {
				growing[k] = false
				open--
				for _, c := range w.route[t.From*w.n+t.To] {
					load[c]--
				}
			}
		}
	}
	return rates, nil
}

func passes(route []int, channel int) bool {
	for _, c := range route {
		if c == channel {
			return true
		}
	}
	return false
}

// Alone returns the matrix that measuring one pair after the other gives, n*n
// values in Mbit/s, row from, column to, 0 where there is no path.
func (w *Network) Alone(ctx context.Context) ([]float64, error) {
	m := make([]float64, w.n*w.n)
	for i := range w.n {
		for j := range w.n {
			if i == j {
				continue
			}
			r, err := w.Rates(ctx, []Transfer{{i, j}})
			if err != nil {
				return nil, err
			}
			m[i*w.n+j] = r[0]
		}
	}
	return m, nil
}

// Shared returns the network that a matrix of single links and what their ends
// share make: mbps holds n*n rates, row from, column to, 0 for no link; host is
// the host of every peer; out and in bound what leaves and enters a host, all
// transfers together (not above 0: no bound).
func Shared(n int, mbps []float64, host []int, out, in []float64) *Network {
	w := New(n)
	channels := func(caps []float64) []int {
		ids := make([]int, len(caps))
		for i, c := range caps {
			if ids[i] = -1; c > 0 {
				ids[i] = w.Channel(c)
			}
		}
		return ids
	}
	leave, enter := channels(out), channels(in)
	for i := range n {
		for j := range n {
			v := mbps[i*n+j]
			if i == j || !(v > 0) {
				continue
			}
			w.Route(i, j, w.Channel(math.Min(v, math.MaxFloat64)))
			if host[i] == host[j] {
				continue
			}
			if c := leave[host[i]]; c >= 0 {
				w.Route(i, j, c)
			}
			if c := enter[host[j]]; c >= 0 {
				w.Route(i, j, c)
			}
		}
	}
	return w
}
