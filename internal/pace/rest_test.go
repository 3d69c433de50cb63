package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Pulses outlast the longest of the last pauses by half, within bounds.
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
	require.Equal(t, 10*time.Second, pause(time.Second))
	require.Equal(t, 6*time.Minute, pause(4*time.Minute))
	require.Equal(t, 6*time.Minute, pause(time.Second), "one short pause says little")
	for range 6 {
		require.Equal(t, 6*time.Minute, pause(2*time.Second))
	}
	require.Equal(t, 10*time.Second, pause(2*time.Second), "long ago")
	require.Equal(t, 15*time.Minute, pause(time.Hour))
	r = Rest{}
	r.End(now)
	require.Equal(t, 5*time.Minute, r.Begin(now)-now, "data that follow no pause are none")
}
