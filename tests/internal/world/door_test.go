package world

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/trace"
)

// A newcomer is forgotten when others have gone on for long, not when all stand still, nor while the
// master has said that it waits.
func TestGoing(t *testing.T) {
	now := time.Unix(1, 0)
	g := going{moved: now}
	log := &bytes.Buffer{}
	master := slog.New(door{slog.NewTextHandler(log, nil), func(r Report) { g.close(now, r.Wait) }}).With(trace.Subsystem, trace.SubMaster)
	steps := func(d, each time.Duration) (counts time.Duration) {
		was := g.time
		for end := now.Add(d); now.Before(end); {
			now = now.Add(each)
			g.step(now)
		}
		return g.time - was
	}
	require.Equal(t, 30*time.Second, steps(30*time.Second, 30*time.Millisecond))
	require.Equal(t, 2*longestStep, steps(2*time.Minute, time.Minute), "all stand still")
	for range 2 { // both kinds
		master.Warn("newcomers have cost the members too many rounds: no more of them are let in for 1m20s (and 2 more)")
	}
	require.Contains(t, log.String(), "subsystem=master")
	require.Zero(t, steps(60*time.Second, 30*time.Millisecond))
	require.Equal(t, 10*time.Second, steps(30*time.Second, 40*time.Millisecond))
	now = now.Add(time.Hour)
	master.Warn("newcomers of a kind have cost the members too many rounds: no more of them are let in for 10s")
	require.Zero(t, steps(9*time.Second, 30*time.Millisecond))
}
