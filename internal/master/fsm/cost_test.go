package fsm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// crowd is a world of groups with so many accepted members each, by group.
// Their machine does not check itself: its cost is measured.
func crowd(t testing.TB, cfg Config, groups, size int) (*world, [][]ClientID) {
	w := newWorld(t, cfg)
	w.m.unchecked = true
	by := make([][]ClientID, groups)
	for g := range groups {
		for range size {
			by[g] = append(by[g], w.join(uint32(g), true))
			if len(by[0]) == 1 && g == 0 { // the first one is let in alone
				w.send(by[0][0], connected)
			}
		}
	}
	w.send(by[0][0], acceptVote)
	for _, cs := range by {
		for _, c := range cs {
			w.send(c, connected)
		}
	}
	require.Len(t, w.accepted(), groups*size)
	w.forget()
	return w, by
}

// forget empties all inboxes.
func (w *world) forget() {
	clear(w.inbox)
	w.facts = nil
}

var watchful = Config{HeartbeatInterval: 2 * time.Second, HeartbeatTimeout: 8 * time.Second, WarnVoteAfter: 30 * time.Second}

// Finished collectives leave nothing behind, whatever the order they end in.
func TestTagsAreForgotten(t *testing.T) {
	w, by := crowd(t, Config{}, 1, 2)
	for i := range uint64(100) {
		for _, c := range by[0] {
			w.send(c, initiate(i))
		}
	}
	order := make([]uint64, 100)
	for i := range order {
		order[i] = uint64(i * 37 % 100)
	}
	for _, i := range order {
		for _, c := range by[0] {
			w.send(c, complete(i, false))
		}
	}
	require.Empty(t, slices.Collect(w.m.groups[0].tags.all()))
	require.Empty(t, w.m.groups[0].tags.list)
	for _, c := range by[0] {
		require.Equal(t, Idle, w.state(c))
	}
}

func BenchmarkHeartbeat(b *testing.B) {
	for _, shape := range [][2]int{{1, 64}, {1, 1024}, {64, 8}, {128, 8}, {256, 4}} {
		b.Run(fmt.Sprintf("groups=%d/members=%d", shape[0], shape[1]), func(b *testing.B) {
			w, by := crowd(b, watchful, shape[0], shape[1])
			i := 0
			for b.Loop() {
				w.now += time.Millisecond
				c := by[i%shape[0]][i/shape[0]%shape[1]]
				w.m.Step(w.now, PacketIn{c, wire.C2MHeartbeat{}})
				i++
			}
		})
	}
}

// BenchmarkCollective is a collective of every group, per vote.
func BenchmarkCollective(b *testing.B) {
	for _, shape := range [][2]int{{1, 64}, {1, 1024}, {128, 8}} {
		b.Run(fmt.Sprintf("groups=%d/members=%d", shape[0], shape[1]), func(b *testing.B) {
			w, by := crowd(b, watchful, shape[0], shape[1])
			all := slices.Concat(by...)
			for b.Loop() {
				for _, c := range all {
					w.m.Step(w.now, PacketIn{c, initiate(1)})
				}
				for _, c := range all {
					w.m.Step(w.now, PacketIn{c, complete(1, false)})
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(2*len(all)), "ns/vote")
		})
	}
}

// BenchmarkLongestStep prints what the longest steps take that a run may ask for.
func BenchmarkLongestStep(b *testing.B) {
	step := func(name string, prepare func() (*world, Event)) {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				b.StopTimer()
				w, ev := prepare()
				b.StartTimer()
				begin := time.Now()
				w.m.Step(w.now, ev)
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			for name, d := range map[string]time.Duration{"median-ms": took[len(took)/2], "worst-ms": took[len(took)-1]} {
				b.ReportMetric(float64(d.Microseconds())/1000, name)
			}
		})
	}
	step("tags=4096/conflict", func() (*world, Event) {
		w, by := crowd(b, watchful, 1, 3)
		for i := range maxOps {
			w.send(by[0][0], initiate(uint64(i)))
		}
		w.send(by[0][1], syncVoteOf(0, 0, entry("k", 1)))
		return w, PacketIn{by[0][2], syncVoteOf(0, 0, entry("k", 1))}
	})
	step("tags=4096/leaver", func() (*world, Event) {
		w, by := crowd(b, watchful, 1, 8)
		for i := range maxOps {
			for _, c := range by[0] {
				w.send(c, initiate(uint64(i)))
			}
		}
		return w, Gone{Client: by[0][0]}
	})
	for _, shape := range [][2]int{{1, 1024}, {128, 8}} {
		name := fmt.Sprintf("groups=%d/members=%d", shape[0], shape[1])
		step("leaver/"+name, func() (*world, Event) {
			w, by := crowd(b, watchful, shape[0], shape[1])
			return w, Gone{Client: by[0][0]}
		})
		step("all but one silent/"+name, func() (*world, Event) {
			w, by := crowd(b, watchful, shape[0], shape[1])
			return w, w.silence(by[:1], 1)
		})
		step("half silent/"+name, func() (*world, Event) {
			w, by := crowd(b, watchful, shape[0], shape[1])
			return w, w.silence(by, shape[1]/2)
		})
		step("round/"+name, func() (*world, Event) {
			w, by := crowd(b, watchful, shape[0], shape[1])
			all := slices.Concat(by...)
			for _, c := range all[1:] {
				w.send(c, acceptVote)
			}
			return w, PacketIn{all[0], acceptVote}
		})
		step("round end/"+name, func() (*world, Event) {
			w, by := crowd(b, watchful, shape[0], shape[1])
			all := slices.Concat(by...)
			for _, c := range all {
				w.send(c, acceptVote)
			}
			for _, c := range all[1:] {
				w.send(c, connected)
			}
			return w, PacketIn{all[0], connected}
		})
		step("topology/"+name, func() (*world, Event) {
			w, by := crowd(b, watchful, shape[0], shape[1])
			w.measured(by)
			return w, PacketIn{by[0][0], wire.C2MAskTopology{}}
		})
	}
}

// silence lets time pass until those are dropped who are not among the first n
// of these groups, and returns the event that does it.
func (w *world) silence(by [][]ClientID, n int) Event {
	w.after(7 * time.Second)
	for _, cs := range by {
		for _, c := range cs[:n] {
			w.send(c, wire.C2MHeartbeat{})
		}
	}
	w.after(999 * time.Millisecond)
	w.forget()
	w.now += time.Millisecond
	return Tick{}
}

// measured lets every pair of the members of each group know a rate.
func (w *world) measured(by [][]ClientID) {
	for _, cs := range by {
		for _, c := range cs {
			for _, o := range cs {
				if c != o {
					w.m.learn(w.m.conns[c], w.ids[o], float64(100+o), 0)
				}
			}
		}
	}
}
