package contention

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Two peers behind one uplink: each alone gets all of it, together half each;
// a third transfer that does not pass it keeps its rate.
func TestSharedUplink(t *testing.T) {
	w := New(4)
	up, a, b := w.Channel(100), w.Channel(1000), w.Channel(60)
	w.Route(0, 2, a, up)
	w.Route(1, 3, a, up)
	w.Route(2, 1, b)
	for _, c := range []struct {
		set  []Transfer
		want []float64
	}{
		{[]Transfer{{0, 2}}, []float64{100}},
		{[]Transfer{{0, 2}, {1, 3}}, []float64{50, 50}},
		{[]Transfer{{0, 2}, {2, 1}, {1, 3}}, []float64{50, 60, 50}},
		{[]Transfer{{3, 0}, {0, 2}}, []float64{0, 100}},
		{nil, []float64{}},
	} {
		got, err := w.Rates(context.Background(), c.set)
		require.NoError(t, err)
		require.Equal(t, c.want, got) // S3-02
	}
	require.Equal(t, 5, w.Asked())
	alone, err := w.Alone(context.Background())
	require.NoError(t, err)
	require.Equal(t, []float64{0, 0, 100, 0, 0, 0, 0, 100, 0, 60, 0, 0, 0, 0, 0, 0}, alone)
}

func TestMalformedNetwork(t *testing.T) {
	w := New(2)
	w.Route(0, 1, 7)
	for _, s := range []Transfer{{0, 1}, {0, 0}, {-1, 0}, {0, 2}} {
		_, err := w.Rates(context.Background(), []Transfer{s})
		require.ErrorIs(t, err, ErrNetwork)
	}
	w = New(2)
	w.Route(0, 1, w.Channel(math.Inf(1)))
	_, err := w.Rates(context.Background(), []Transfer{{0, 1}})
	require.ErrorIs(t, err, ErrNetwork)
}

// No channel carries more than it can; every transfer is held back by a full
// channel on which nobody gets more; one transfer more never helps the slowest.
func TestMaxMinFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 5
		w := New(n)
		channels := rapid.IntRange(1, 6).Draw(t, "channels")
		for range channels {
			w.Channel(rapid.Float64Range(1, 100).Draw(t, "capacity"))
		}
		var set []Transfer
		for i := range n {
			for j := range n {
				if i != j && rapid.Bool().Draw(t, "used") {
					w.Route(i, j, rapid.SliceOfNDistinct(rapid.IntRange(0, channels-1), 1, channels, rapid.ID[int]).Draw(t, "route")...)
					set = append(set, Transfer{i, j})
				}
			}
		}
		rates, err := w.Rates(context.Background(), set)
		require.NoError(t, err)
		used := make([]float64, channels)
		most := make([]float64, channels)
		slowest := math.Inf(1)
		for k, s := range set {
			slowest = min(slowest, rates[k])
			for _, c := range w.route[s.From*n+s.To] {
				used[c] += rates[k]
				most[c] = max(most[c], rates[k])
			}
		}
		for c := range used {
			require.LessOrEqual(t, used[c], w.capacity[c]*(1+1e-9))
		}
		for k, s := range set {
			held := false
			for _, c := range w.route[s.From*n+s.To] {
				held = held || used[c] >= w.capacity[c]*(1-1e-9) && most[c] <= rates[k]*(1+1e-9)
			}
			require.True(t, held, "transfer %v could get more", s)
		}
		if len(set) > 1 {
			fewer, err := w.Rates(context.Background(), set[1:])
			require.NoError(t, err)
			for _, r := range fewer {
				require.GreaterOrEqual(t, r*(1+1e-9), slowest)
			}
		}
	})
}
