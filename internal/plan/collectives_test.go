package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// promise is what a kind promises: who has the data of a chunk, and whose data each
// member has of it in the end.
func promise(j Job) (has func(rank, chunk int) bool, want func(rank, chunk int) []int) {
	all := make([]int, j.N)
	for i := range all {
		all[i] = i
	}
	only := func(ok bool, who ...int) []int {
		if ok {
			return who
		}
		return nil
	}
	always := func(int, int) bool { return true }
	switch j.Kind {
	case AllReduce:
		return always, func(int, int) []int { return all }
	case ReduceScatter:
		return always, func(r, c int) []int { return only(r == c, all...) }
	case Reduce:
		return always, func(r, _ int) []int { return only(r == j.Root, all...) }
	case Broadcast:
		return func(r, _ int) bool { return r == j.Root }, func(int, int) []int { return []int{j.Root} }
	case AllGather:
		return func(r, c int) bool { return r == c }, func(_, c int) []int { return []int{c} }
	case Gather:
		return func(r, c int) bool { return r == c }, func(r, c int) []int { return only(r == j.Root, c) }
	case Scatter:
		return func(r, _ int) bool { return r == j.Root }, func(r, c int) []int { return only(r == c, j.Root) }
	case AllToAll:
		return func(r, c int) bool { return r == c/j.N }, func(r, c int) []int { return only(r == c%j.N, c/j.N) }
	}
	return always, func(int, int) []int { return nil }
}

// least is what member me has to send of chunks of these sizes.
func least(j Job, size []int) int {
	at := func(d int) int { return j.Order[mod(slices.Index(j.Order, j.Me)+d, j.N)] }
	d := mod(slices.Index(j.Order, j.Me)-slices.Index(j.Order, j.Root), j.N)
	total := 0
	for _, n := range size {
		total += n
	}
	switch j.Kind {
	case AllReduce:
		if j.Mesh {
			return total - size[j.Me] + (j.N-1)*size[j.Me]
		}
		return total - size[j.Me] + total - size[at(1)]
	case AllGather:
		return total - size[at(1)]
	case ReduceScatter:
		return total - size[j.Me]
	case Broadcast:
		if d == j.N-1 {
			return 0
		}
		return total
	case Reduce:
		if d == 0 {
			return 0
		}
		return total
	case Gather:
		switch {
		case d == 0:
			return 0
		case j.Mesh:
			return size[j.Me]
		}
		n := 0
		for k := range d {
			n += size[at(-k)]
		}
		return n
	case Scatter:
		switch {
		case d == 0:
			return total - size[j.Me]
		case j.Mesh:
			return 0
		}
		n := 0
		for k := 1; k < j.N-d; k++ {
			n += size[at(k)]
		}
		return n
	case AllToAll:
		n := 0
		for from := range j.N {
			for to := range j.N {
				if from == to || j.Mesh && from != j.Me {
					continue
				}
				place := func(m int) int { return mod(slices.Index(j.Order, m)-slices.Index(j.Order, from), j.N) }
				if j.Mesh || place(j.Me) < place(to) {
					n += size[from*j.N+to]
				}
			}
		}
		return n
	}
	return 0
}

// plansOf returns the plans of all members.
func plansOf(j Job) []*Plan {
	return each(j.N, func(r int) *Plan {
		j.Me = r
		return For(j)
	})
}

func checkJob(j Job) error {
	has, want := promise(j)
	return checkEach(plansOf(j), has, want)
}

// Every kind, for every number of members and root, over the ring and over a mesh:
// both ends of a lane agree, it ends with one part on each wire, everybody has what
// is promised, and sums do not depend on what comes first.
func TestEveryKindKeepsItsPromise(t *testing.T) {
	for k := range Kind(NumKinds) {
		for n := 1; n <= 6; n++ {
			for root := range n {
				for _, mesh := range []bool{false, true} {
					require.NoError(t, checkJob(Job{Kind: k, N: n, Root: root, Mesh: mesh}), "%v, %d members, root %d, mesh %v", k, n, root, mesh)
				}
			}
		}
	}
}

func TestAnyRingAndAnyRoot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := Job{Kind: Kind(rapid.IntRange(0, NumKinds-1).Draw(t, "kind")), N: rapid.IntRange(2, 16).Draw(t, "n")}
		if j.Kind == AllToAll && j.N > 8 {
			j.N -= 8 // n*n chunks that each pass n links
		}
		j.Root = rapid.IntRange(0, j.N-1).Draw(t, "root")
		j.Order = rapid.Permutation(indices(j.N)).Draw(t, "order")
		j.Mesh = rapid.Bool().Draw(t, "mesh")
		require.NoError(t, checkJob(j), "%+v", j)
	})
}

func indices(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// What each member sends is the least that its way allows, for blocks of any size.
func TestNothingIsSentTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := Job{Kind: Kind(rapid.IntRange(0, NumKinds-1).Draw(t, "kind")), N: rapid.IntRange(2, 16).Draw(t, "n")}
		j.Root = rapid.IntRange(0, j.N-1).Draw(t, "root")
		j.Order = rapid.Permutation(indices(j.N)).Draw(t, "order")
		j.Mesh = rapid.Bool().Draw(t, "mesh")
		sizes := make([]int, j.Kind.chunks(j.N))
		for i := range sizes {
			sizes[i] = rapid.IntRange(0, 1000).Draw(t, "size") * rapid.IntRange(0, 1).Draw(t, "some")
		}
		size := func(c int) int { return sizes[c] }
		sent, received := 0, 0
		for r, p := range plansOf(j) {
			j.Me = r
			require.Equal(t, least(j, sizes), p.Sent(size), "%+v, blocks of %v", j, sizes)
			sent, received = sent+p.Sent(size), received+p.Received(size)
		}
		require.Equal(t, sent, received)
	})
}

// The marks: of S bytes in all, in blocks of the same size.
func TestMarks(t *testing.T) {
	const n, block, s = 4, 3, 12
	for _, c := range []struct {
		kind  Kind
		mesh  bool
		chunk int
		sent  [n]int // by distance from the root
	}{
		{AllReduce, false, block, [n]int{18, 18, 18, 18}},
		{AllReduce, true, block, [n]int{18, 18, 18, 18}},
		{AllGather, false, block, [n]int{9, 9, 9, 9}},
		{ReduceScatter, false, block, [n]int{9, 9, 9, 9}},
		{Broadcast, false, s, [n]int{s, s, s, 0}},
		{Reduce, false, s, [n]int{0, s, s, s}},
		{Gather, false, block, [n]int{0, 3, 6, 9}},
		{Gather, true, block, [n]int{0, 3, 3, 3}},
		{Scatter, false, block, [n]int{9, 6, 3, 0}},
		{Scatter, true, block, [n]int{9, 0, 0, 0}},
		{AllToAll, false, block, [n]int{18, 18, 18, 18}}, // (n-1) S / 2
		{AllToAll, true, block, [n]int{9, 9, 9, 9}},
		{Barrier, true, block, [n]int{}},
	} {
		var sent [n]int
		for r, p := range plansOf(Job{Kind: c.kind, N: n, Mesh: c.mesh}) {
			sent[r] = p.Sent(func(int) int { return c.chunk })
		}
		require.Equal(t, c.sent, sent, "%v, mesh %v", c.kind, c.mesh)
	}
}

// Faults that a planner may have are found, whatever the kind.
func TestAWrongCollectiveIsNoticed(t *testing.T) {
	faults := map[string]func(p *Plan, rng *rand.Rand) bool{
		"sent before it came": func(p *Plan, rng *rand.Rand) bool {
			return some(p.Out, rng, func(l *Lane, s *Segment) bool {
				ok := !s.After.None()
				s.After = Ref{}
				return ok
			})
		},
		"added twice": func(p *Plan, rng *rand.Rand) bool {
			return some(p.In, rng, func(l *Lane, s *Segment) bool {
				ok := s.Do == Set
				s.Do = Add
				return ok
			})
		},
		"not added": func(p *Plan, rng *rand.Rand) bool {
			return some(p.In, rng, func(l *Lane, s *Segment) bool {
				ok := s.Do.Reduces()
				s.Do = Set
				return ok
			})
		},
		"never final": func(p *Plan, rng *rand.Rand) bool {
			return some(p.In, rng, func(l *Lane, s *Segment) bool {
				ok := s.Do == Finish
				s.Do = Add
				return ok
			})
		},
		"added in the order of arrival": func(p *Plan, rng *rand.Rand) bool {
			return some(p.In, rng, func(l *Lane, s *Segment) bool {
				ok := !s.After.None()
				s.After = Ref{}
				return ok
			})
		},
		"a block is forgotten": func(p *Plan, rng *rand.Rand) bool {
			if len(p.Out) == 0 {
				return false
			}
			l := &p.Out[rng.IntN(len(p.Out))]
			l.Segments = l.Segments[:len(l.Segments)-1]
			return true
		},
		"another order": func(p *Plan, rng *rand.Rand) bool {
			for i := range p.Out {
				if s := p.Out[i].Segments; len(s) > 1 && s[0].Chunk != s[1].Chunk {
					s[0], s[1] = s[1], s[0]
					return true
				}
			}
			return false
		},
		"to another peer": func(p *Plan, rng *rand.Rand) bool {
			if len(p.Out) == 0 {
				return false
			}
			l := &p.Out[rng.IntN(len(p.Out))]
			l.Peer = (l.Peer + 1) % p.N
			return true
		},
	}
	for name, fault := range faults {
		found := 0
		for k := range Kind(NumKinds) {
			for _, mesh := range []bool{false, true} {
				for seed := range uint64(4) {
					j := Job{Kind: k, N: 4, Root: int(seed) % 4, Mesh: mesh}
					plans, rng := plansOf(j), rand.New(rand.NewPCG(seed, 1))
					if !fault(plans[rng.IntN(4)], rng) {
						continue
					}
					found++
					has, want := promise(j)
					require.Error(t, checkEach(plans, has, want), "%s: %v, mesh %v", name, k, mesh)
				}
			}
		}
		require.Positive(t, found, name)
	}
}

// some does f to segments from one of chance on, until it is true for one.
func some(lanes []Lane, rng *rand.Rand, f func(*Lane, *Segment) bool) bool {
	var all [][2]int
	for i := range lanes {
		for k := range lanes[i].Segments {
			all = append(all, [2]int{i, k})
		}
	}
	if len(all) == 0 {
		return false
	}
	turn := rng.IntN(len(all))
	for n := range all {
		at := all[(turn+n)%len(all)]
		s := lanes[at[0]].Segments[at[1]]
		if changed := s; f(&lanes[at[0]], &changed) {
			lanes[at[0]].Segments[at[1]] = changed
			return true
		}
	}
	return false
}

// Chunks by weight tile the buffer, begin at whole lines of a cache, and have their
// share but for one line.
func TestCut(t *testing.T) {
	require.Equal(t, []int{0, 128, 300}, Cut(300, 1, []uint32{1, 2, 2}))
	require.Equal(t, []int{0, 0, 7}, Cut(7, 8, []uint32{1, 1, 1}))
	require.Equal(t, []int{0, 5, 5}, Cut(5, 4, []uint32{0, 1, 0}))
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(0, 1<<50).Draw(t, "count")
		elem := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "elem")
		weights := rapid.SliceOfN(rapid.Uint32(), 1, 20).Draw(t, "weights")
		weights[0] |= 1
		sum := 0.0
		for _, w := range weights {
			sum += float64(w)
		}
		at, before := 0, 0.0
		for i, end := range Cut(count, elem, weights) {
			before += float64(weights[i])
			require.GreaterOrEqual(t, end, at)
			require.True(t, end*elem%64 == 0 || end == count)
			require.InDelta(t, float64(count)*before/sum, end, float64(64/elem)+float64(count)*1e-12, fmt.Sprint(weights))
			at = end
		}
		require.Equal(t, count, at)
	})
}
