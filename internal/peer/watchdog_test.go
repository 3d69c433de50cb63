package peer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/reduce"
)

// An operation that stands still is reported when it has done so for the time,
// again when that has doubled, and never while it moves.
func TestWatchdog(t *testing.T) {
	began := time.Unix(1000, 0)
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	op := func(tag uint64, phase string, received int64) OpState {
		return OpState{OpState: reduce.OpState{Tag: tag, Seq: tag, Phase: phase, Received: received, Waits: "somebody"}}
	}
	w := watcher{after: 10 * time.Second}
	reported := map[int][]uint64{}
	for s := range 100 {
		ops := []OpState{
			op(1, "running", 5),        // stands
			op(2, "running", int64(s)), // moves
			op(3, "created", 0),        // is voted on
			op(4, "ended", 7),          // its done function hangs
		}
		if s >= 50 && s < 60 {
			ops = ops[1:] // ended; another one with the same name follows
		}
		for _, f := range w.look(at(s), ops) {
			reported[s] = append(reported[s], f.tag)
			require.Equal(t, "somebody", f.waits)
		}
	}
	require.Equal(t, map[int][]uint64{ // S4-33
		10: {1, 4}, 20: {1, 4}, 40: {1, 4}, 70: {1}, 80: {1, 4},
	}, reported)
	require.Len(t, w.marks, 3)
	require.Empty(t, w.look(at(100), nil))
	require.Empty(t, w.marks, "nothing is kept of what has ended")
}
