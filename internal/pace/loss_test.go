package pace

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// usual is what is told of ways that are not known.
const usual = float64(usualLosses) / usualPackets

// What is told is what is lost, and what it was before is forgotten.
func TestLoss(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	l := &Loss{}
	require.Equal(t, usual, l.Part())
	still := Span{RTT: 101 * time.Millisecond, Base: 100 * time.Millisecond}
	send := func(ticks int, part float64) {
		for range ticks {
			l.Add(10, rng.Float64() < 10*part, still)
		}
	}
	send(50, 0.005)
	require.InDelta(t, 0.0015, l.Part(), 0.0015) // doubt
	send(500, 0.005)
	require.InDelta(t, 0.0035, l.Part(), 0.0015, "more than usual is told when it is certain")
	send(20_000, 0.005)
	require.InEpsilon(t, 0.005, l.Part(), 0.2)
	send(50_000, 0)
	require.Less(t, l.Part(), 0.0001)
}

// What a queue drops that overflows is not lost by chance.
func TestLossBehindAQueue(t *testing.T) {
	l := &Loss{}
	for range 1000 {
		l.Add(10, true, Span{RTT: 300 * time.Millisecond, Base: 30 * time.Millisecond})
	}
	require.Equal(t, usual, l.Part())
}
