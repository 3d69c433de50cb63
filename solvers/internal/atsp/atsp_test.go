package atsp

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func free() bool { return false }

func random(t *rapid.T, n int) Weights {
	w := Weights{N: n, W: make([]int64, n*n)}
	top := rapid.SampledFrom([]int64{3, 100, 1 << 40}).Draw(t, "top")
	for i := range w.W {
		w.W[i] = rapid.Int64Range(0, top).Draw(t, "w")
	}
	return w
}

// brute returns the least length of a permutation's cycles (assignment) or of
// a tour.
func brute(w Weights, tour bool) int64 {
	best := int64(math.MaxInt64)
	succ := make([]int32, w.N)
	used := make([]bool, w.N)
	var try func(i int, sum int64)
	try = func(i int, sum int64) {
		if i == w.N {
			if _, sizes := Cycles(succ); !tour || len(sizes) == 1 {
				best = min(best, sum)
			}
			return
		}
		for j := range w.N {
			if j != i && !used[j] {
				used[j], succ[i] = true, int32(j)
				try(i+1, sum+w.W[i*w.N+j])
				used[j] = false
			}
		}
	}
	try(0, 0)
	return best
}

func TestAssign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 7).Draw(t, "n")
		w := random(t, n)
		a := Assign(w, free)
		require.Equal(t, brute(w, false), a.Value)
		var dual int64
		for i := range n {
			dual += a.U[i] + a.V[i]
			require.Equal(t, int32(i), a.Pred[a.Succ[i]])
			for j := range n {
				if i != j {
					require.GreaterOrEqual(t, w.W[i*n+j], a.U[i]+a.V[j])
				}
			}
		}
		require.Equal(t, a.Value, dual)
	})
}

func TestLocal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 30).Draw(t, "n")
		w := random(t, n)
		a := Assign(w, free)
		succ := append([]int32(nil), a.Succ...)
		Patch(w, succ, free)
		first := order(succ, nil)
		require.Len(t, first, n)
		l := NewLocal(w, a, w.Length(first), 8, 1)
		l.Set(first)
		best, _ := l.Iterate(50, func(int) float64 { return 0.3 }, free)
		require.Len(t, best, n)
		l.check(t)
		require.LessOrEqual(t, w.Length(best), w.Length(first))
		l.forget()
		before, length := l.Order(), l.length
		if n < leastNodes {
			return
		}
		for range 5 {
			l.kick()
			l.check(t)
			l.Descend(free)
			l.check(t)
		}
		l.undo()
		l.check(t)
		require.Equal(t, before, l.at)
		require.Equal(t, length, l.length)
	})
}

func (l *Local) check(t require.TestingT) {
	seen := make([]bool, l.n)
	var sum int64
	for p, i := range l.at {
		require.False(t, seen[i])
		seen[i] = true
		require.Equal(t, int32(p), l.pos[i])
		j := l.next(i)
		require.Equal(t, i, l.prev(j))
		require.Equal(t, l.w[int(i)*l.n+int(j)], l.outW[i])
		require.Equal(t, l.outW[i], l.inW[j])
		sum += int64(l.outW[i])
	}
	require.Equal(t, sum, l.length)
}

// Branch and bound finds the shortest tour below any bound, or that there is none.
func TestBranch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 7).Draw(t, "n")
		w := random(t, n)
		best := brute(w, true)
		upper := best + rapid.SampledFrom([]int64{-1, 0, 1, 5, 1 << 45}).Draw(t, "above")
		found := int64(never)
		complete := Branch(w, Assign(w, free), upper, free, func(o []int32, length int64) {
			require.Less(t, length, min(found, upper))
			require.Equal(t, w.Length(o), length)
			seen := map[int32]bool{}
			for _, i := range o {
				seen[i] = true
			}
			require.Len(t, seen, n)
			found = length
		})
		require.True(t, complete)
		if best < upper {
			require.Equal(t, best, found) // S1-17
		} else {
			require.Equal(t, int64(never), found)
		}
	})
}

// A stopped proof proves nothing.
func TestBranchStops(t *testing.T) {
	r := newRNG(5)
	w := Weights{N: 40, W: make([]int64, 1600)}
	for i := range w.W {
		w.W[i] = int64(r.intn(100)) + 1
		if i/40%4 != i%40%4 { // four sites: the assignment bound is far away
			w.W[i] += 5000
		}
	}
	steps := 0
	require.False(t, Branch(w, Assign(w, free), never, func() bool { steps++; return steps > 50 }, func([]int32, int64) {}))
}

// All members of a population stay tours, and its books stay right.
func TestPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(5, 30).Draw(t, "n")
		w := random(t, n)
		a := Assign(w, free)
		l := NewLocal(w, a, w.Length(Patched(w, a, free)), 8, rapid.Uint64().Draw(t, "seed"))
		l.Set(l.wander())
		p := NewPool(l, rapid.IntRange(1, 12).Draw(t, "size"), rapid.IntRange(0, 3).Draw(t, "rounds"), func(int) float64 { return 1 }, free)
		check := func() {
			uses := make([]uint16, n*n)
			least := int64(never)
			for _, m := range p.tours {
				o := m.order()
				require.Len(t, o, n)
				var length int64
				for k, i := range o {
					j := o[(k+1)%n]
					require.Equal(t, j, m.succ[i])
					require.Equal(t, i, m.pred[j])
					length += int64(l.w[int(i)*n+int(j)])
					uses[int(i)*n+int(j)]++
				}
				require.Equal(t, length, m.length)
				least = min(least, length)
			}
			require.Equal(t, uses, p.uses)
			_, best := p.Best()
			require.Equal(t, least, best)
		}
		check()
		steps := 0
		p.Breed(30, func() bool { steps++; return steps > 2000 }, func() {})
		check()
	})
}

// The whole search proves shortest tours of small instances, whatever it
// starts from, and is honest about its bound.
func TestSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 7).Draw(t, "n")
		w := random(t, n)
		best := brute(w, true)
		last := int64(never)
		s := Search{
			W: w, Seed: rapid.Uint64().Draw(t, "seed"), Over: free, Left: func() time.Duration { return time.Hour },
			Branch: rapid.Bool().Draw(t, "branch"), Prove: rapid.Bool().Draw(t, "prove"),
			Report: func(o []int32, length int64) bool {
				require.Less(t, length, last)
				require.Equal(t, w.Length(o), length)
				last = length
				return false
			},
		}
		if rapid.Bool().Draw(t, "start") {
			s.Start = [][]int32{identity(n)}
		}
		s.Run()
		require.Equal(t, s.Length, last)
		require.LessOrEqual(t, s.Bound, best)
		require.GreaterOrEqual(t, s.Length, best)
		if s.Branch || s.Proved {
			require.True(t, s.Proved)
			require.Equal(t, best, s.Length) // S1-17
		}
	})
}
