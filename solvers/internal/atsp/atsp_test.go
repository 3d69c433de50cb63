package atsp

import (
	"math"
	"testing"

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
