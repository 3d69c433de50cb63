package ptxtest

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGridStrideLoop(t *testing.T) {
	for _, n := range []int{0, 1, 31, 97, 1000} {
		m := start(t, Options{Seed: uint64(n)}, sample)
		a, b := make([]float32, n), make([]float32, n)
		for i := range a {
			a[i], b[i] = float32(i)/3, float32(i*i)
		}
		d := m.give(make([]float32, n+1))
		require.NoError(t, m.launch("add", 3, 70, 0, d, m.give(a), m.give(b), uint64(n)))
		got := make([]float32, n+1)
		m.take(d, got)
		for i := range a {
			require.Equal(t, a[i]+b[i], got[i], "element %d of %d", i, n)
		}
		require.Zero(t, got[n])
	}
}

func TestVectors(t *testing.T) {
	const n = 100
	m := start(t, Options{}, sample)
	r := rand.New(rand.NewPCG(1, 2))
	a, b := make([]float32, 4*n), make([]float32, 4*n)
	for i := range a {
		a[i], b[i] = math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32())
	}
	d := m.give(make([]float32, 4*n))
	require.NoError(t, m.launch("mixed", 2, 33, 0, d, m.give(a), m.give(b), uint64(n)))
	got := make([]uint32, 4*n)
	m.take(d, got)
	for i := range n {
		x, y := a[4*i:], b[4*i:]
		most := float32(math.Max(float64(x[3]), float64(y[3])))
		if x[3] != x[3] {
			most = y[3]
		} else if y[3] != y[3] {
			most = x[3]
		}
		for j, want := range []float32{x[0] + y[0], x[1] * y[1], x[2] / y[2], float32(math.Sqrt(float64(y[3]))) + most} {
			if want != want {
				want = math.Float32frombits(nan32)
			}
			require.Equal(t, math.Float32bits(want), got[4*i+j], "%v %v", x[j], y[j])
		}
	}
}

// All threads of a block take part in one number, for any count of them.
func TestBlockSum(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, threads := range []int{32, 64, 160, 1024} {
		m := start(t, Options{Seed: uint64(threads)}, sample)
		a := make([]byte, 3000)
		for i := range a {
			a[i] = byte(r.Uint32())
		}
		want := uint64(0)
		for i := range threads {
			s := uint64(0)
			for j := i; j < len(a); j += threads {
				s = s*31 + (uint64(a[j]) ^ uint64(j)>>3)
			}
			want += s
		}
		d := m.give(make([]uint64, 1))
		require.NoError(t, m.launch("sum", 1, uint32(threads), 0, d, m.give(a), uint64(len(a))))
		got := make([]uint64, 1)
		m.take(d, got)
		require.Equal(t, want, got[0], "%d threads", threads)
	}
}

func TestDivergentDivision(t *testing.T) {
	const n = 200
	m := start(t, Options{}, sample)
	r := rand.New(rand.NewPCG(5, 6))
	a, b := make([]int64, n), make([]int64, n)
	for i := range a {
		a[i], b[i] = int64(r.Uint64()), int64(r.Uint64())>>r.IntN(64)|1
		if i%3 == 0 { // both short: the compiler's other branch
			a[i], b[i] = int64(r.Uint32()), int64(r.Uint32()|1)
		}
	}
	d := m.give(make([]int64, n))
	require.NoError(t, m.launch("divide", 1, 256, 0, d, m.give(a), m.give(b), int32(n)))
	got := make([]int64, n)
	m.take(d, got)
	for i := range a {
		h, _ := bits.Mul64(uint64(a[i]), uint64(b[i]))
		require.Equal(t, a[i]/b[i]+a[i]%b[i]+int64(uint32(a[i])/7)+int64(h), got[i], "%d / %d", a[i], b[i])
	}
}

func TestCalls(t *testing.T) {
	const n = 300
	m := start(t, Options{}, sample)
	r := rand.New(rand.NewPCG(7, 8))
	a := make([]float32, n)
	for i := range a {
		a[i] = (r.Float32() - 0.5) * 100
	}
	d := m.give(make([]float32, n))
	require.NoError(t, m.launch("calls", 5, 64, 0, d, m.give(a), int32(n)))
	got := make([]float32, n)
	m.take(d, got)
	for i, x := range a {
		rest := float32(int32(x)) + float32(math.RoundToEven(float64(x)))
		if i&7 > 3 {
			require.Equal(t, x*2+float32(int32(x))+float32(math.RoundToEven(float64(x))), got[i])
			continue
		}
		want := math.Exp(float64(x)) + float64(rest)
		require.InEpsilon(t, want, got[i], 1e-5, "%v", x)
	}
}

func TestMemories(t *testing.T) {
	m := start(t, Options{Seed: 9}, sample)
	d := make([]uint32, 96)
	sum := uint32(0)
	for i := range 32 {
		d[i] = uint32(i * 7)
		sum += uint32(i*7) + uint32(i&3) + 1
	}
	p, most := m.give(d), m.give([]int32{5})
	require.NoError(t, m.launch("memories", 1, 32, 128, p, most, int32(3)))
	got, max := make([]uint32, 96), make([]int32, 1)
	m.take(p, got)
	m.take(most, max)
	require.Equal(t, sum, got[0])
	require.Equal(t, int32(93), max[0])
	counted := map[uint32]bool{}
	for i := range 32 {
		require.Equal(t, uint32(i*7&7*7+1), got[32+i], "own array of thread %d", i)
		counted[got[64+i]] = true
	}
	for i := range uint32(32) {
		require.True(t, counted[40+i], "the variable never was %d", 40+i)
	}
}
