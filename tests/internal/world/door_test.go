package world

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A newcomer is forgotten when others have gone on for long, not when all stand still, nor while the
// master has said that it waits.
func TestWaited(t *testing.T) {
	var w waited
	const entry = 45 * time.Second
	steps := func(n int, each time.Duration) {
		for range n {
			w.step(each)
		}
	}
	steps(1000, 30*time.Millisecond)
	then := w
	steps(1000, 30*time.Millisecond)
	steps(2, time.Minute)
	require.False(t, w.beyond(then, entry), "all stood still")
	log := &bytes.Buffer{}
	slog.New(door{slog.NewTextHandler(log, nil), func(r Report) { w.closed += r.Wait }}).Warn(
		"newcomers have cost the members too many rounds: no more of them are let in for 1m20s (and 2 more)")
	require.Contains(t, log.String(), "too many rounds")
	steps(3000, 30*time.Millisecond)
	require.False(t, w.beyond(then, entry), "they are put off")
	steps(500, 30*time.Millisecond)
	require.True(t, w.beyond(then, entry))
	require.False(t, w.beyond(w, entry), "one that came now")
}
