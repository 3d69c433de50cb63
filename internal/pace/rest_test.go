package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Pulses outlast the longest of the last long pauses by half, within bounds, however many
// short ones follow it.
func TestRest(t *testing.T) {
	var r Rest
	now := time.Second
	require.Equal(t, now+5*time.Minute, r.Begin(now), "nothing is known")
	pause := func(d time.Duration) time.Duration {
		now += d
		r.End(now)
		now += time.Second
		return r.Begin(now) - now
	}
	require.Equal(t, 5*time.Minute, pause(time.Second))
	require.Equal(t, 12*time.Minute, pause(8*time.Minute))
	for range 3 * rests { // an outer step of many operations
		require.Equal(t, 12*time.Minute, pause(2*time.Second))
	}
	for range rests {
		pause(2 * time.Minute)
	}
	require.Equal(t, 5*time.Minute, pause(2*time.Minute), "long ago")
	require.Equal(t, 15*time.Minute, pause(time.Hour))
	r = Rest{}
	r.End(now)
	require.Equal(t, 5*time.Minute, r.Begin(now)-now, "data that follow no pause are none")
}

// BBR keeps its window, and forgets what it knows by pulses.
func TestKeeps(t *testing.T) {
	for name, keeps := range map[string]bool{"bbr": true, "bbr2": true, "cubic": false, "reno": false, "": false} {
		require.Equal(t, keeps, Keeps(name), name)
	}
}
