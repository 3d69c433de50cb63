package plan

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// even is a group whose members are all as far from each other.
func even(n int, delay time.Duration, mbps float64) Problem {
	p := Problem{N: n, Mbps: mbps, Delay: make([]time.Duration, n*n)}
	for i := range n {
		p.Ring = append(p.Ring, i)
		for j := range n {
			if i != j {
				p.Delay[i*n+j] = delay
			}
		}
	}
	return p
}

func TestChoice(t *testing.T) {
	const ms = time.Millisecond
	regional := Choose(even(4, 15*ms, 100))
	require.Equal(t, 90*ms, regional.Ring)
	require.Equal(t, 30*ms, regional.Exchange)
	require.Greater(t, regional.Most, uint64(400_000))
	far := Choose(even(4, 50*ms, 50))
	require.Greater(t, far.Most, uint64(400_000))
	require.Less(t, far.Most, uint64(2<<20), "unpaced, large ones are slower without the ring")
	unknown := Choose(even(4, 50*ms, 0))
	require.Equal(t, float64(assumedMbps), unknown.Mbps)
	require.Greater(t, unknown.Most, uint64(400_000))
	require.Equal(t, "delays add up to 30ms, to 90ms along the ring", regional.Why())
	require.Contains(t, Choose(even(4, 100*time.Microsecond, 0)).Why(), "less than 4ms")
	require.Contains(t, Choose(Problem{N: 4}).Why(), "a delay that is not known")

	two := even(2, 50*ms, 100)
	two.Delay[1] = 70 * ms
	require.Equal(t, Choice{Most: mostDirect, Ring: 120 * ms, Exchange: 70 * ms, Mbps: 100}, Choose(two), "there and back, or there")
	two.Delay[1] = -1
	require.Zero(t, Choose(two).Most)

	for name, p := range map[string]Problem{
		"near peers":   even(4, 100*time.Microsecond, 1000),
		"one machine":  even(8, 10*time.Microsecond, 0),
		"two members":  even(2, 3*ms, 100),
		"no delays":    {N: 4, Ring: []int{0, 1, 2, 3}},
		"another ring": {N: 4, Ring: []int{0, 1, 2}, Delay: make([]time.Duration, 16)},
	} {
		require.Zero(t, Choose(p).Most, name)
	}
	gap := even(4, 50*ms, 100)
	gap.Delay[7] = -1
	require.Zero(t, Choose(gap).Most, "a delay is not known")
}

// A ring through three sites leaves each of them once; with one member far away, a
// chunk passes both its links twice, or all but them.
func TestWaysOfTheRing(t *testing.T) {
	p := even(4, time.Millisecond, 0)
	for i := range 3 {
		p.Delay[i*4+3], p.Delay[3*4+i] = 40*time.Millisecond, 40*time.Millisecond
	}
	require.Equal(t, 2*82*time.Millisecond-2*time.Millisecond, p.alongRing())
	require.Equal(t, 80*time.Millisecond, p.exchanged())
}

// Where the exchange is chosen it is predicted to be no slower than the ring.
func TestChoiceIsNoSlower(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 17).Draw(t, "n")
		p := even(n, 0, rapid.Float64Range(0, 1e5).Draw(t, "mbps"))
		for i := range p.Delay {
			p.Delay[i] = time.Duration(rapid.IntRange(-1, 300_000).Draw(t, "delay")) * time.Microsecond
		}
		c := Choose(p)
		if c.Most == 0 {
			return
		}
		ring, exchange := c.Predict(c.Most, n)
		require.LessOrEqual(t, exchange, ring)
		require.LessOrEqual(t, c.Most, uint64(mostDirect))
		require.Equal(t, c, Choose(p))
	})
}

func TestSlowest(t *testing.T) {
	require.Equal(t, 20.0, Slowest([]float64{0, 100, 7, 20, 0, 10, 0, math.NaN(), 0}, 3))
	require.Zero(t, Slowest(make([]float64, 9), 3))
	require.Zero(t, Slowest(nil, 3))
}
