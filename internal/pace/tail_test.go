package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// played returns the times in milliseconds at which words go, of so many ticks of 10 ms behind data
// written at 5 ms.
func (t *Tail) played(ticks int, flight func(now time.Duration) Flight) (at []int) {
	for k := 1; k <= ticks; k++ {
		if now := time.Duration(k) * 10 * time.Millisecond; t.Step(now, 5*time.Millisecond, flight(now)) {
			at = append(at, k*10)
		}
	}
	return at
}

func TestTailOfDataThatArrives(t *testing.T) {
	var tail Tail
	require.Equal(t, []int{10, 20, 30}, tail.played(100, func(now time.Duration) Flight {
		f := Flight{RTT: 80 * time.Millisecond, Sent: 9000, InFlight: 9000}
		if now >= 90*time.Millisecond {
			f.Acked, f.InFlight = 9000, 63 // the words' own answers are to come
		}
		return f
	}))
	require.True(t, tail.Step(time.Second, 995*time.Millisecond, Flight{RTT: 80 * time.Millisecond, Sent: 9063, InFlight: 63}), "new data")
}

// What stays away with the words behind it, or when it was sent again, gets more of them, a round trip
// later; not for ever.
func TestTailOfDataThatDoesNotArrive(t *testing.T) {
	var tail Tail
	require.Equal(t, []int{10, 20, 30, 110, 120, 130, 210, 220, 230, 310, 320, 330}, tail.played(1000, func(time.Duration) Flight {
		return Flight{RTT: 80 * time.Millisecond, Acked: 8999, Sent: 9000, InFlight: 1}
	}))
}

func TestTailOfNothing(t *testing.T) {
	for name, f := range map[string]Flight{
		"all is answered":                {RTT: time.Second, Acked: 9000, Sent: 9000},
		"more is about to be sent":       {RTT: time.Second, Sent: 9000, InFlight: 9000, Unsent: 1},
		"the way is short":               {RTT: leastTail - 1, Sent: 9000, InFlight: 9000},
		"nothing is known of round trip": {Sent: 9000, InFlight: 9000},
	} {
		var tail Tail
		require.Empty(t, tail.played(1000, func(time.Duration) Flight { return f }), name)
	}
}
