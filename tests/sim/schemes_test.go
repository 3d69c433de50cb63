package sim

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pfsm "github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
)

// Large all-reduces over trees: what was measured differs from link to link, so that in
// most worlds of distant peers the members are told of such plans.

// simStripes is in how many stripes an all-reduce over trees goes.
const simStripes = 2

// scheme is what a direct exchange does instead of its two steps: the lanes of a plan,
// a message for each segment.
type scheme struct {
	plan    *plan.Plan
	ends    []int // of the chunks
	sent    [][]bool
	done    [][]bool
	out, in []int // segments that are left, by lane
}

// startScheme gives d the lanes of a large all-reduce.
func (op *op) startScheme(d *direct, large *plan.Option, n int) {
	s := &scheme{
		plan: plan.For(plan.Job{Kind: plan.AllReduce, N: n, Me: d.self, Mesh: true, Scheme: large.Scheme, Stripes: simStripes}),
		ends: plan.Cut(len(op.buf)*8, 8, large.Scheme.Weights(simStripes)), // an element stands for a line of 64 bytes
	}
	for i := range s.ends {
		s.ends[i] /= 8
	}
	for _, l := range s.plan.Out {
		s.sent, s.out = append(s.sent, make([]bool, len(l.Segments))), append(s.out, len(l.Segments))
	}
	for _, l := range s.plan.In {
		s.done, s.in = append(s.done, make([]bool, len(l.Segments))), append(s.in, len(l.Segments))
	}
	d.scheme = s
	op.p.w.collector.schemes++
	if !op.large {
		op.p.w.collector.small++
	}
}

func (s *scheme) ready(r plan.Ref) bool { return r.None() || s.done[r.Lane-1][r.Segment] }

// chunk returns where a chunk lies.
func (s *scheme) chunk(i int) (from, to int) {
	if i > 0 {
		from = s.ends[i-1]
	}
	return from, s.ends[i]
}

// laneStep is the number of a message, which no other step has.
func laneStep(segment int) int { return sumStep - 1 - segment }

// flow sends what is ready and takes in what has come.
func (op *op) flow() {
	d := op.direct
	s := d.scheme
	for moved := true; moved; {
		moved = false
		for i, l := range s.plan.Out {
			for k, seg := range l.Segments {
				if s.sent[i][k] || !s.ready(seg.After) || !s.ready(seg.Gate) {
					continue
				}
				to := d.members[l.Peer]
				way := op.p.w.link(op.p, to)
				if !way.alive || way.gen != d.out[l.Peer] {
					op.end(lost(to))
					return
				}
				from, end := s.chunk(seg.Chunk)
				op.send(way, to, laneStep(k), op.buf[from:end])
				s.sent[i][k], moved = true, true
				s.out[i]--
			}
		}
		for i, l := range s.plan.In {
			for k, seg := range l.Segments {
				if s.done[i][k] || !s.ready(seg.After) {
					continue
				}
				got, ok := op.take(d.members[l.Peer], laneStep(k))
				if !ok {
					continue
				}
				from, end := s.chunk(seg.Chunk)
				if len(got) != end-from {
					op.end(errors.New("frame of the wrong size"))
					return
				}
				for at, v := range got {
					if seg.Do.Reduces() && op.p.w.bug != chunkLost {
						v += op.buf[from+at]
					}
					op.buf[from+at] = v
				}
				s.done[i][k], moved = true, true
				s.in[i]--
			}
		}
	}
	for _, left := range append(append([]int{}, s.out...), s.in...) {
		if left > 0 {
			return
		}
	}
	op.end(nil)
}

// broke reports whether s still needs the link to member i, or from it.
func (s *scheme) broke(i int, sending bool) bool {
	lanes, left := s.plan.In, s.in
	if sending {
		lanes, left = s.plan.Out, s.out
	}
	for k, l := range lanes {
		if l.Peer == i && left[k] > 0 {
			return true
		}
	}
	return false
}

// route says what an all-reduce over the mesh goes along.
func route(e pfsm.StartData) string {
	if e.Large == nil {
		return ""
	}
	return fmt.Sprint(e.Large.Scheme.Name, e.Large.From)
}

// TestSchemes: with links measured that differ, large all-reduces take plans of their
// own, while rings change and newcomers join. Nothing fails because of it.
func TestSchemes(t *testing.T) {
	t.Parallel()
	n := uint64(150)
	if raceEnabled {
		n = 20
	}
	schemes := 0
	for seed := uint64(1); seed <= n; seed++ {
		w := distant(seed, noBug, 3+int(seed%5), 6)
		w.plan.optimize = true
		w.plan.eager, w.plan.overlap, w.plan.others, w.plan.remote = seed%2 == 0, seed%3 == 0, seed%5 == 0, seed%4 < 2
		require.Empty(t, w.run(), "seed %d", seed)
		schemes += w.collector.schemes
		require.Zero(t, w.unprovoked, "seed %d", seed)
	}
	t.Logf("%d seeds: %d all-reduces of one peer each over trees", n, schemes)
	require.Greater(t, schemes, int(n))
}

// TestLearnedRates: nobody measures anything. Members say what their connections gave,
// which changes in the middle of the runs, and the master plans by it: all members go
// the same way in each operation, and nothing fails.
func TestLearnedRates(t *testing.T) {
	t.Parallel()
	n := uint64(150)
	if raceEnabled {
		n = 20
	}
	schemes, shown := 0, 0
	for seed := uint64(1); seed <= n; seed++ {
		w := distant(seed, noBug, 3+int(seed%5), 12)
		w.plan.eager, w.plan.overlap, w.plan.others, w.plan.remote = seed%2 == 0, seed%3 == 0, seed%5 == 0, seed%4 < 2
		if seed%4 == 0 {
			w.after(w.rng.between(0, time.Second), nil, func() { w.spawn(0, true, 4) })
		}
		require.Empty(t, w.run(), "seed %d", seed)
		schemes, shown = schemes+w.collector.schemes, shown+w.collector.shown
		require.Zero(t, w.unprovoked, "seed %d", seed)
	}
	t.Logf("%d seeds: %d all-reduces of one peer each over trees, %d reports of rates", n, schemes, shown)
	require.Greater(t, schemes, int(n))
	require.Greater(t, shown, int(n))
}

// span is when the last member launched an operation, and when the last heard that it has
// succeeded.
type span struct {
	route              string
	large              bool
	launched, finished time.Duration
	members            int
}

// took notes an operation that has succeeded at a member.
func (c *book) took(op *op) {
	if c.spans == nil {
		c.spans = map[uint64]*span{}
	}
	s := c.spans[op.seq]
	if s == nil {
		s = &span{route: op.way.route, large: op.large}
		c.spans[op.seq] = s
	}
	s.members++
	s.launched, s.finished = max(s.launched, op.launched), max(s.finished, op.p.w.now)
}

// many is a world of so many distant members, more than a mesh is made of.
func many(seed uint64, bug mutation, n, loops int) *world {
	w := distant(seed, bug, n, loops)
	w.plan.events = 20_000_000
	return w
}

// TestManyMembers: groups that are too large for a mesh have plans all the same, for small
// all-reduces as well, over connections that are made for them, while members die and join.
func TestManyMembers(t *testing.T) {
	t.Parallel()
	n := uint64(12)
	if raceEnabled {
		n = 2
	}
	small, failed := 0, 0
	for seed := uint64(1); seed <= n; seed++ {
		w := many(seed, noBug, 18+int(seed%4), 5)
		w.plan.eager, w.plan.overlap, w.plan.remote = seed%2 == 0, seed%3 == 0, seed%4 > 1
		if seed%2 == 0 {
			w.after(w.rng.between(0, 2*time.Second), nil, func() { w.spawn(0, true, 4) })
		}
		if seed%4 == 3 {
			w.faults = []fault{{at: 3000, kind: kill}, {at: 9000, kind: cutPeers}}
		}
		require.Empty(t, w.run(), "seed %d", seed)
		small += w.collector.small
		failed += w.collector.directFailures
		if seed%4 != 3 {
			require.Zero(t, w.unprovoked, "seed %d", seed)
		}
	}
	t.Logf("%d seeds: %d small all-reduces of one peer each over trees, %d failed", n, small, failed)
	require.Greater(t, small, int(n))
}

// Test128Peers: the time of a tiny all-reduce of 128 peers that are 50 ms from each other,
// and from the master, one way, from the last launch to the last verdict: in virtual time,
// with the machines of all of them.
func Test128Peers(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Log("the test without the race detector does it")
		return
	}
	w := many(1, noBug, 128, 8)
	w.plan.oneWay = 50 * time.Millisecond
	require.Empty(t, w.run())
	ring, trees := time.Duration(0), time.Duration(0)
	for _, s := range w.collector.spans {
		switch took := s.finished - s.launched; {
		case s.members != 128 || s.large:
		case s.route == "":
			ring = max(ring, took)
		default:
			trees = max(trees, took)
			t.Logf("%q: %v", s.route, took)
		}
	}
	t.Logf("128 peers, 50 ms one way: %v along the ring at most, %v with a plan", ring, trees)
	require.Positive(t, trees)
	require.LessOrEqual(t, trees, 600*time.Millisecond)
}

// TestBugsOfManyMembersAreFound: what TestManyMembers looks at would notice these.
func TestBugsOfManyMembersAreFound(t *testing.T) {
	t.Parallel()
	for name, bug := range map[string]mutation{
		"ways that are not connected": waysForgotten, "ways that are let go": waysReleased, "a plan that some do not take": planForgotten,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 24; seed++ {
				w := many(seed, bug, 18, 6)
				if failure := w.run(); failure != "" || w.unprovoked > 0 {
					t.Logf("seed %d: %q, %d operations have failed", seed, failure, w.unprovoked)
					return
				}
			}
			t.Fatal("not found")
		})
	}
}

// replanned is a world of distant members whose plans are made beside the master, and that
// meanwhile have rounds, and other rings, members and meshes.
func replanned(seed uint64, bug mutation) *world {
	w := distant(8*seed+1+2*(seed%2), bug, 4+int(seed%4), 8)
	w.plan.optimize, w.plan.eager, w.plan.overlap, w.plan.others = seed%2 == 0, seed%3 == 0, seed%5 == 0, seed%7 == 0
	for i := range 3 {
		w.after(w.rng.between(0, 2*time.Second), nil, func() { w.spawn(0, true, 1+i) })
	}
	return w
}

// TestPlansComeLate: plans that are made for members, a ring or a mesh that are no more by then
// mean nothing, and those that come in time are taken.
func TestPlansComeLate(t *testing.T) {
	t.Parallel()
	n := uint64(200)
	if raceEnabled {
		n = 20
	}
	jobs, stale, schemes := 0, 0, 0
	for seed := uint64(1); seed <= n; seed++ {
		w := replanned(seed, noBug)
		require.Empty(t, w.run(), "seed %d", seed)
		require.Zero(t, w.unprovoked, "seed %d", seed)
		jobs, stale, schemes = jobs+w.collector.jobs, stale+w.collector.stale, schemes+w.collector.schemes
	}
	t.Logf("%d seeds: %d jobs, of which %d came too late; %d all-reduces of one peer each over trees", n, jobs, stale, schemes)
	require.Greater(t, stale, int(n)/4)
	require.Greater(t, schemes, int(n))
}

// TestStalePlansAreFound: what TestPlansComeLate looks at would notice it if they were taken.
func TestStalePlansAreFound(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 100; seed++ {
		w := replanned(seed, staleTaken)
		if failure := w.run(); failure != "" || w.unprovoked > 0 {
			t.Logf("seed %d: %q, %d operations have failed", seed, failure, w.unprovoked)
			return
		}
	}
	t.Fatal("not found")
}
