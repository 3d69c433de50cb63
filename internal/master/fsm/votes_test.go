package fsm

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// ends are the phases that each member has to end: how they begin, and how one
// member ends its part.
var ends = map[string]struct {
	begin, end wire.Packet
	what       string
	data       bool // moves bytes of tensors
}{
	"collective": {initiate(7), complete(7, false), "the end of collective 7", true},
	"sync":       {syncVoteOf(0, 0, entry("k", 1)), wire.C2MDistSharedStateComplete{}, "the end of the synchronisation", true},
	"optimize":   {wire.C2MOptimizeTopology{}, wire.C2MOptimizeTopologyWorkComplete{}, "the end of the optimization", false},
}

// during lets time pass in which everybody is alive, and the last one moves so
// many bytes per second.
func (w *world) during(d time.Duration, rate uint64, cs ...ClientID) {
	for end := w.now + d; w.now < end; {
		w.after(time.Second)
		for i, c := range cs {
			beat := wire.C2MHeartbeat{Reports: true}
			if i == len(cs)-1 {
				beat.Moved = rate * uint64(w.now/time.Second)
			}
			if w.closed[c] == "" {
				w.send(c, beat)
			}
		}
	}
}

func (w *world) named() (texts []string) {
	for _, f := range w.facts {
		if f.Kind == "waiting-for" {
			texts = append(texts, f.Text)
		}
	}
	return texts
}

// A peer that holds up the end of a phase is named once, with what is known of its
// progress, and dropped if there is a bound and it does not move.
func TestHolderOfAnEnd(t *testing.T) {
	for name, tc := range ends {
		for _, moves := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				cfg := watchful
				cfg.PhaseTimeout = 2 * time.Minute
				w := newWorld(t, cfg)
				cs := w.members(3, true)
				for _, c := range cs {
					w.send(c, tc.begin)
				}
				rate := uint64(0)
				if moves {
					rate = 1000
				}
				w.during(40*time.Second, rate, cs...)
				require.Empty(t, w.named(), "nobody waits yet")
				w.send(cs[0], tc.end)
				w.send(cs[1], tc.end)
				w.during(29*time.Second, rate, cs...)
				require.Empty(t, w.named())
				w.during(60*time.Second, rate, cs...)
				require.Len(t, w.named(), 1)
				text := w.named()[0]
				require.Contains(t, text, tc.what+" open for 30s")
				require.Contains(t, text, w.ids[cs[2]].Short())
				require.NotContains(t, text, w.ids[cs[0]].Short())
				switch {
				case tc.data && moves:
					require.Contains(t, text, "still moving")
				case tc.data:
					require.Contains(t, text, "moved nothing for ")
				default:
					require.NotContains(t, text, "mov")
				}
				w.during(5*time.Minute, rate, cs...)
				if tc.data && moves {
					require.Empty(t, w.closed, "slow is not stuck")
					w.during(119*time.Second, 0, cs...)
					require.Empty(t, w.closed)
					w.during(2*time.Second, 0, cs...)
				}
				w.isClosed(cs[2], "did not end "+strings.TrimPrefix(tc.what, "the end of ")+" within 2m0s")
				require.NotContains(t, w.closed, cs[0])
				require.NotContains(t, w.closed, cs[1])
			})
		}
	}
}

// A PCCL peer says nothing of its progress: it is named without, and dropped
// by the clock alone. Without a bound none is.
func TestHolderWithoutProgress(t *testing.T) {
	for _, bound := range []time.Duration{0, time.Minute} {
		cfg := watchful
		cfg.PhaseTimeout = bound
		w := newWorld(t, cfg)
		cs := w.members(2, false)
		for _, c := range cs {
			w.send(c, initiate(1))
		}
		w.send(cs[0], complete(1, false))
		w.after(59 * time.Second)
		require.Len(t, w.named(), 1)
		require.True(t, strings.HasSuffix(w.named()[0], ")"), w.named()[0])
		require.NotContains(t, w.named()[0], "mov")
		require.Empty(t, w.closed)
		w.after(time.Hour)
		if bound == 0 {
			require.Empty(t, w.closed)
			require.Len(t, w.named(), 1)
		} else {
			w.isClosed(cs[1], "did not end collective 1 within 1m0s")
		}
	}
}

// Many that are late share one line.
func TestManyLateVoters(t *testing.T) {
	w, by := crowd(t, watchful, 1, 64)
	w.send(by[0][0], acceptVote)
	w.during(31*time.Second, 0, by[0]...)
	require.Len(t, w.named(), 1)
	require.Contains(t, w.named()[0], "and 47 more")
}
