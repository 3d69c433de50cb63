//go:build wan

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The same over an emulated wide area, with blackouts of a pair of hosts: trainers at a
// distance come and go, are killed and stopped, and every result is compared with the
// model. A blackout ends nobody, and costs a step one repeat of each of its operations at most.
func TestChurnOverAWideArea(t *testing.T) {
	length := 40 * time.Second
	profiles := []string{"regional"}
	if *soak {
		length, profiles = 10*time.Minute, []string{"intercontinental", "lossy"}
	}
	for _, profile := range profiles {
		t.Run(profile, func(t *testing.T) {
			o := options{length: length, seed: uint64(time.Now().UnixNano() % 1000), network: profile}.usual()
			o.tell = func(text string) { t.Log(text) }
			t.Logf("seed %d", o.seed)
			r, err := run(t.Context(), o)
			require.NoError(t, err)
			t.Log("\n" + r.table())
			require.NoError(t, r.conditions()) // S2-01
			require.NotZero(t, r.kills)
			require.NotZero(t, r.dark.blackouts)
		})
	}
}
