package ring

import (
	"math"
	"math/bits"
	"sort"
	"time"

	"github.com/gopccl/gopccl/core/topo"
)

// Dynamic programming over subsets (Held and Karp, J. SIAM 10, 1962): paths
// from the last peer, "home", through a set of the others.

// subsetTime is roughly what the dynamic programme for n peers takes.
func subsetTime(n int) time.Duration {
	return time.Duration(n*n) * 6 * time.Nanosecond / 4 << n
}

// bySubsets solves groups of up to about 20 peers, proved. Time and memory
// double with every peer (20: 80 MB). False if the clock stopped it.
func (r *run) bySubsets() bool {
	m := r.p.Matrix
	floor := 0.0
	if r.p.Objective != topo.Sum {
		if r.bound == 0 {
			r.bound, _ = bottleneckBound(m, r.over)
		}
		rates := thresholds(m, r.best.Bottleneck, r.bound)
		k := sort.Search(len(rates), func(i int) bool {
			// The highest are the likely ones.
			return !r.connects(rates[i])
		})
		if r.over() {
			return false
		}
		if k == 0 {
			return true
		}
		floor = rates[k-1]
		r.bound = floor
	}
	ring, ok := r.shortest(floor)
	if !ok {
		return false
	}
	if ring == nil {
		return true
	}
	if s, ok := r.p.Solution(ring); ok {
		if floor == 0 {
			r.sum = s.Sum
		}
		r.offer(s)
		r.best.Optimal = true
	}
	return true
}

// connects reports whether links of at least floor hold a ring.
func (r *run) connects(floor float64) bool {
	m := r.p.Matrix
	k := m.N - 1
	in := make([]uint32, m.N) // from whom each peer can be reached
	reach := make([]uint32, 1<<k)
	for i := range m.N {
		for j := range k {
			if v, ok := m.At(j, i); ok && v >= floor {
				in[i] |= 1 << j
			}
		}
		if i < k {
			if v, ok := m.At(k, i); ok && v >= floor {
				reach[1<<i] = 1 << i
			}
		}
	}
	for set := 1; set < 1<<k; set++ {
		if set&0xffff == 0 && r.over() {
			return false
		}
		if set&(set-1) == 0 {
			continue
		}
		for left := uint32(set); left != 0; left &= left - 1 {
			last := left & -left
			if reach[uint32(set)^last]&in[bits.TrailingZeros32(last)] != 0 {
				reach[set] |= last
			}
		}
	}
	return reach[1<<k-1]&in[k] != 0
}

// shortest returns the ring with the least sum over links of at least floor;
// nil if there is none, false if the clock stopped it.
func (r *run) shortest(floor float64) ([]int, bool) {
	m := r.p.Matrix
	n, k := m.N, m.N-1
	cost := make([]float64, n*n) // column to, row from: cost[to*n+from]
	for i := range n {
		for j := range n {
			cost[j*n+i] = math.Inf(1)
			if v, ok := m.At(i, j); ok && v >= floor {
				cost[j*n+i], _ = m.Cost(i, j)
			}
		}
	}
	table := make([]float64, k<<k)
	for i := range table {
		table[i] = math.Inf(1)
	}
	for set := 1; set < 1<<k; set++ {
		if set&0x3ff == 0 && r.over() {
			return nil, false
		}
		for left := uint(set); left != 0; left &= left - 1 {
			last := bits.TrailingZeros(left)
			rest := set &^ (1 << last)
			if rest == 0 {
				table[set*k+last] = cost[last*n+k]
				continue
			}
			v := math.Inf(1)
			c := cost[last*n : last*n+k]
			for p, t := range table[rest*k : rest*k+k] {
				if t += c[p]; t < v {
					v = t
				}
			}
			table[set*k+last] = v
		}
	}
	set := 1<<k - 1
	best, last := math.Inf(1), -1
	for l := range k {
		if c := table[set*k+l] + cost[k*n+l]; c < best {
			best, last = c, l
		}
	}
	if last < 0 {
		return nil, true
	}
	ring := make([]int, n)
	ring[0] = k
	for i := n - 1; i > 0; i-- {
		ring[i] = last
		v, rest := table[set*k+last], set&^(1<<last)
		for p := range k {
			if rest != 0 && table[rest*k+p]+cost[last*n+p] == v {
				set, last = rest, p
				break
			}
		}
	}
	return ring, true
}
