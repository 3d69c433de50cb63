//go:build unix

package fsm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/internal/wire"
)

// The tests of this file compare what the machine takes for little and for much,
// in one process, by its processor time, which other work of the computer does not
// change. That of Windows stands still for milliseconds, and the machine is the same
// there.

// used is the processor time of the process so far.
func used(t testing.TB) time.Duration {
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// timed is how long the machine takes for an event.
func (w *world) timed(ev Event) time.Duration {
	begin := used(w.t)
	out := w.m.Step(w.now, ev)
	took := used(w.t) - begin
	w.carryOut(out)
	return took
}

// least is the shortest of a few calls of f: other work of the machine counts
// for nothing.
func least(t testing.TB, f func()) time.Duration {
	best := time.Hour
	for range 5 {
		begin := used(t)
		f()
		best = min(best, used(t)-begin)
	}
	return best
}

// A sign of life, and a vote that others have to follow, cost what the group of
// the sender has members, however many groups and clients there are.
func TestEventsCostWhatTheirGroupDoes(t *testing.T) {
	cost := func(groups int) (beat, vote time.Duration) {
		w, by := crowd(t, watchful, groups, 8)
		beat = least(t, func() {
			for i := range 256 {
				w.m.Step(w.now, PacketIn{by[i%groups][i/groups%8], wire.C2MHeartbeat{}})
			}
		})
		round := 0
		vote = least(t, func() {
			round++
			for i := range 256 {
				w.m.Step(w.now, PacketIn{by[0][i%8], initiate(uint64(round*32 + i/8))})
			}
		})
		return beat, vote
	}
	beat, vote := cost(2)
	beats, votes := cost(128)
	require.Less(t, beats, 16*beat, "heartbeats of 2 groups took %v", beat)
	require.Less(t, votes, 16*vote, "votes of 2 groups took %v", vote)
}

// Clients that were not let in, each in a group of its own, cost the others nothing.
func TestStrangersCostNothing(t *testing.T) {
	cost := func(strangers int) time.Duration {
		w, by := crowd(t, watchful, 2, 4)
		for i := range strangers {
			w.join(uint32(100+i), true)
		}
		return least(t, func() {
			for i := range 256 {
				w.m.Step(w.now, PacketIn{by[0][i%4], wire.C2MHeartbeat{}})
			}
		})
	}
	few, many := cost(4), cost(1024)
	require.Less(t, many, 8*few, "with 4 strangers: %v", few)
}

// A member with many collectives open that others can never join: the step in
// which that becomes clear ends all of them, in time proportional to their number.
func TestManyTagsAreBrokenAtOnce(t *testing.T) {
	cost := func(tags int) time.Duration {
		best := time.Hour
		for range 4 {
			w, by := crowd(t, Config{}, 1, 3)
			cs := by[0]
			for i := range tags {
				w.send(cs[0], initiate(uint64(i)))
			}
			w.send(cs[1], syncVoteOf(0, 0, entry("k", 1)))
			w.quiet(cs...)
			best = min(best, w.timed(PacketIn{cs[2], syncVoteOf(0, 0, entry("k", 1))}))
			require.Len(t, w.inbox[cs[0]], 2*tags)
			for i := range tags {
				want[wire.M2CCollectiveCommsCommence](w, cs[0])
				require.True(t, want[wire.M2CCollectiveCommsAbort](w, cs[0]).Aborted, i)
			}
			for i := range tags {
				w.send(cs[0], complete(uint64(i), true))
				want[wire.M2CCollectiveCommsComplete](w, cs[0])
			}
			w.send(cs[0], syncVoteOf(0, 0, entry("k", 1)))
			w.verdicts(cs...)
		}
		return best
	}
	few, many := cost(256), cost(maxOps)
	require.Less(t, many, 160*few, "256 tags took %v", few) // the square of the numbers has 256
}

// The cost of winding up a round in which all peers are late grows with the square
// of their number, as the news of it does, and not faster.
func TestManyLateEndAtOnce(t *testing.T) {
	cost := func(n int) time.Duration {
		best := time.Hour
		for range 3 {
			w := newWorld(t, Config{RoundTimeout: 12 * time.Second})
			w.m.unchecked = true
			first := w.join(0, true)
			w.round(true)
			for range n {
				w.join(0, false)
			}
			w.send(first, acceptVote)
			began := used(t)
			for w.m.round.active {
				due, ok := w.m.Deadline()
				require.True(t, ok)
				w.m.Step(due, Tick{})
			}
			best = min(best, used(t)-began)
			require.Less(t, len(w.m.clients), 2)
		}
		return best
	}
	few, many := cost(400), cost(1600)
	require.Less(t, many, 45*few+20*time.Millisecond, "four times as many")
}

// Peers that come back to a new master cost it what their group has members, each.
func TestReturnsCostWhatTheirGroupDoes(t *testing.T) {
	cost := func(n int) time.Duration {
		return least(t, func() {
			r := newReturning(n, n)
			for i := range n {
				r.comes(i)
			}
			require.False(t, r.m.recovery.on)
			require.Equal(t, 3*n, r.out) // M2C 1, 72 and 9
		})
	}
	few, many := cost(128), cost(1024)
	require.Less(t, many, 3*8*8*few, "with 128 peers: %v", few)
}
