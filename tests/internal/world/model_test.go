package world

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
)

// The models see what they are there to see: a peer that counts twice, one that
// is in a part of the result only, data of another step or operation.
func TestModelsHaveTeeth(t *testing.T) {
	const step, op, n = 1234, 2, 640
	plain := func(ids ...int) []float64 {
		sum := make([]float64, n)
		for _, id := range ids {
			for i := range sum {
				sum[i] += Contribution(id, step, op, i)
			}
		}
		return sum
	}
	marked := func(ids ...int) []float32 {
		sum := make([]float32, n)
		for _, id := range ids {
			for i := range sum {
				sum[i] += Mark(id, step, op, i)
			}
		}
		return sum
	}
	set, err := Contributors(plain(0, 7, 47), step, op)
	require.NoError(t, err)
	require.EqualValues(t, 1|1<<7|1<<47, set)
	set, err = Marked(marked(0, 7, 47), step, op)
	require.NoError(t, err)
	require.EqualValues(t, 1|1<<7|1<<47, set)
	var all []int
	for id := range MaxPeers {
		all = append(all, id)
	}
	_, err = Contributors(plain(all...), step, op)
	require.NoError(t, err)
	_, err = Marked(marked(all...), step, op)
	require.NoError(t, err)

	bad := func(p []float64, m []float32) {
		t.Helper()
		_, err := Contributors(p, step, op)
		require.Error(t, err)
		_, err = Marked(m, step, op)
		require.Error(t, err)
	}
	bad(plain(3, 4, 4), marked(3, 4, 4))
	bad(append(plain(3, 4, 5)[:300], plain(3, 4)[300:]...), append(marked(3, 4, 5)[:300], marked(3, 4)[300:]...))
	for _, other := range []struct {
		step uint64
		op   int
	}{{step + 1, op}, {step, op + 1}, {step - 5, op}} {
		_, err = Contributors(plain(3, 4, 5), other.step, other.op)
		require.Error(t, err)
		set, err = Marked(marked(3, 4, 5), other.step, other.op)
		require.True(t, err != nil || set != 1<<3|1<<4|1<<5, "another operation's data names others")
	}
	bad(make([]float64, n), make([]float32, n))
}

// What quantizing loses does not hide or invent a peer, in any group.
func TestMarksSurviveQuantizing(t *testing.T) {
	const n = 64 << 6
	worst := 0.0
	for _, algorithm := range []string{"minmax", "zeropoint"} {
		q, err := quant.Lookup(algorithm)
		require.NoError(t, err)
		for step := range uint64(200) {
			rng := rand.New(rand.NewPCG(step, 1))
			ids := rng.Perm(MaxPeers)[:2+rng.IntN(15)]
			// Every hop of a ring quantizes the sum so far, and the next one adds to it.
			sum, bytes := make([]float32, n), make([]byte, n)
			want := uint64(0)
			for hop, id := range ids {
				want |= 1 << id
				if hop > 0 {
					m := q.Params(dtype.Float32, dtype.Uint8, dtype.AsBytes(sum))
					q.Quantize(dtype.Float32, dtype.Uint8, &m, bytes, dtype.AsBytes(sum))
					q.Dequantize(dtype.Float32, dtype.Uint8, &m, dtype.Set, dtype.AsBytes(sum), bytes)
				}
				for i := range sum {
					sum[i] += Mark(id, step, 1, i)
				}
			}
			set, err := Marked(sum, step, 1)
			require.NoError(t, err, "%s, step %d, %d peers", algorithm, step, len(ids))
			require.Equal(t, want, set)
			for at := 0; at < n; at += block {
				worst = max(worst, doubt([block]float32(sum[at:]), step, 1, at))
			}
		}
	}
	require.Less(t, worst, 0.15, "well inside what counts as none or one")
	t.Logf("at most %.3f beside none or one", worst)
}

// doubt is how far the share of a peer is from none and one.
func doubt(share [block]float32, step uint64, op, at int) (worst float64) {
	for i := range share {
		share[i] /= height(step, op, at+i)
	}
	walsh(&share)
	for _, x := range share[1:] {
		x := float64(x) / block
		worst = max(worst, min(math.Abs(x), math.Abs(x-1)))
	}
	return worst
}
