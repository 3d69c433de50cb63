package plan

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// piece is what a lane sends at a time in an execution, in bytes.
const piece = 32 << 10

// execution runs large plans in virtual time, as the engine does: the lanes of a member send a piece each in turn
// if it is there, at the rate of the member; it comes after a delay, is received behind what came before, at
// the rate of the receiver, and a piece leaves as soon as the same piece of the segment that it follows is done.
// Nothing is lost, and no queue is too short.
type execution struct {
	Problem
	up, down []float64 // bytes per second
	plans    []*Plan
	bytes    func(chunk int) int

	queue   agenda[moment]
	members []running
}

type running struct {
	sent    []cursor // by lane out
	done    [][]int  // pieces, by lane in and segment
	waiting [][]int  // ... that have come, but are not done
	turn    int      // the lane that sends first
	busy    bool
	free    time.Duration // when what has come is received
}

// cursor is the next piece of a lane.
type cursor struct{ segment, piece int }

// moment is when a member may send again, when a piece arrives, or when it has been received.
type moment struct {
	at            time.Duration
	member        int
	comes         int // 0: it may send; 1: it arrives; 2: it has been received
	lane, segment int // of the receiver
	bytes         int
}

func (e moment) when() time.Duration { return e.at }

func (x *execution) pieces(chunk int) int { return (x.bytes(chunk) + piece - 1) / piece }

// has reports whether a piece of what a segment follows is done; all: all of them.
func (x *execution) has(i int, r Ref, at int, all bool) bool {
	if r.None() {
		return true
	}
	if all {
		at = x.pieces(x.plans[i].In[r.Lane-1].Segments[r.Segment].Chunk) - 1
	}
	return x.members[i].done[r.Lane-1][r.Segment] > at
}

// send has a member send the next piece that is there.
func (x *execution) send(i int, now time.Duration) {
	m := &x.members[i]
	for k := 0; k < len(m.sent) && !m.busy; k++ {
		lane := (m.turn + k) % len(m.sent)
		l, c := &x.plans[i].Out[lane], &m.sent[lane]
		for c.segment < len(l.Segments) && x.pieces(l.Segments[c.segment].Chunk) == 0 {
			c.segment++
		}
		if c.segment == len(l.Segments) {
			continue
		}
		s := &l.Segments[c.segment]
		if !x.has(i, s.After, c.piece, false) || !x.has(i, s.Gate, 0, true) {
			continue
		}
		bytes := min(piece, x.bytes(s.Chunk)-c.piece*piece)
		left := now + time.Duration(float64(bytes)/x.up[i]*1e9)
		to := slices.IndexFunc(x.plans[l.Peer].In, func(in Lane) bool { return in.Peer == i })
		heap.Push(&x.queue, moment{left, i, 0, 0, 0, 0})
		heap.Push(&x.queue, moment{left + x.Delay[i*x.N+l.Peer], l.Peer, 1, to, c.segment, bytes})
		if c.piece++; c.piece == x.pieces(s.Chunk) {
			*c = cursor{c.segment + 1, 0}
		}
		m.busy, m.turn = true, lane+1
	}
}

// add does with what has come all that can be done.
func (x *execution) add(i int) {
	m := &x.members[i]
	for again := true; again; {
		again = false
		for lane, l := range m.waiting {
			for segment := range l {
				for l[segment] > 0 && x.has(i, x.plans[i].In[lane].Segments[segment].After, m.done[lane][segment], false) {
					l[segment]--
					m.done[lane][segment]++
					again = true
				}
			}
		}
	}
}

// run returns when the last member has all.
func (x *execution) run(t *testing.T) (now time.Duration) {
	x.members = make([]running, x.N)
	for i, p := range x.plans {
		x.members[i].sent = make([]cursor, len(p.Out))
		for _, l := range p.In {
			x.members[i].done = append(x.members[i].done, make([]int, len(l.Segments)))
			x.members[i].waiting = append(x.members[i].waiting, make([]int, len(l.Segments)))
		}
	}
	for i := range x.N {
		x.send(i, 0)
	}
	for len(x.queue) > 0 {
		e := heap.Pop(&x.queue).(moment)
		m := &x.members[e.member]
		switch now = e.at; e.comes {
		case 0:
			m.busy = false
		case 1:
			m.free = max(now, m.free) + time.Duration(float64(e.bytes)/x.down[e.member]*1e9)
			e.at, e.comes = m.free, 2
			heap.Push(&x.queue, e)
			continue
		case 2:
			m.waiting[e.lane][e.segment]++
			x.add(e.member)
		}
		x.send(e.member, now)
	}
	for i, p := range x.plans {
		for k, l := range p.In {
			for at, s := range l.Segments {
				require.Equal(t, x.pieces(s.Chunk), x.members[i].done[k][at])
			}
		}
	}
	return now
}

// executed returns how long bytes take with a scheme where members have these rates; nil: along the ring, in the
// order of members.
func executed(t *testing.T, p Problem, s *Scheme, bytes int) time.Duration {
	x := &execution{Problem: p}
	for i := range p.N {
		x.up, x.down = append(x.up, p.Up[i]*1e6/8), append(x.down, p.Down[i]*1e6/8)
	}
	if x.bytes = func(int) int { return bytes / p.N }; s == nil {
		x.plans = each(p.N, func(rank int) *Plan { return Ring(p.N, rank) })
	} else {
		stripes, all := Stripes(bytes), 0.0
		for i := range s.Trees {
			all += float64(s.Trees[i].Weight)
		}
		x.plans = plansOfScheme(s, p.N, stripes)
		x.bytes = func(chunk int) int {
			return int(float64(bytes) / float64(stripes) * float64(s.Trees[chunk%len(s.Trees)].Weight) / all)
		}
	}
	return x.run(t)
}

// What is predicted of plans, and of the ring, is about what they take in an execution: it allows for what networks
// do beside carrying bytes, and not for all that members wait for each other.
func TestPredictionsAreThoseOfExecutions(t *testing.T) {
	var passed, others, rings []float64
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 0))
		n := 4 + rng.IntN(5)
		p := Problem{N: n, Delay: make([]time.Duration, n*n), Rates: make([]float64, n*n)}
		for i := range n {
			p.Ring = append(p.Ring, i)
			p.Up = append(p.Up, 10*math.Pow(8, rng.Float64()))
			p.Down = append(p.Down, p.Up[i]*(1+2*float64(seed%2)*rng.Float64()))
			for k := range i {
				d := time.Duration((2 + 30*rng.Float64()) * float64(time.Millisecond))
				p.Delay[i*n+k], p.Delay[k*n+i] = d, d
			}
		}
		bytes := []int{4 << 20, 8 << 20, 32 << 20}[seed%3]
		m := newModel(p)
		if slices.Max(m.site) > 0 {
			continue // members of one are taken to share a way
		}
		rings = append(rings, executed(t, p, nil, bytes).Seconds()/m.ring().At(uint64(bytes)).Seconds())
		schemes := append(m.schemes(), Direct(n, nil))
		schemes = append(schemes, m.relayed(schemes)...)
		for _, s := range schemes {
			if s.Check(n) != nil {
				continue
			}
			took, predicted := executed(t, p, s, bytes).Seconds(), m.predicted(s).At(uint64(bytes)).Seconds()
			t.Logf("seed %d, %d members, %d MiB: %s takes %.2f s, predicted %.2f", seed, n, bytes>>20, s.Name, took, predicted)
			require.Less(t, took, 1.35*predicted, "seed %d: %s", seed, s.Name)
			require.Greater(t, took, predicted/1.6, "seed %d: %s", seed, s.Name)
			if slices.ContainsFunc(s.Trees, m.passesOnFar) {
				passed = append(passed, took/predicted)
			} else if s.Name != "direct" {
				others = append(others, took/predicted)
			}
		}
	}
	mean := func(list []float64) (sum float64) {
		for _, v := range list {
			sum += v / float64(len(list))
		}
		return sum
	}
	require.Greater(t, len(passed), 30)
	t.Logf("times of their predictions: %.2f along the ring, %.2f where members pass on what comes, %.2f otherwise", mean(rings), mean(passed), mean(others))
	require.InDelta(t, 1/(1+wireExcess), mean(rings), 0.05)
	require.InDelta(t, 1, mean(others), 0.1)
	require.InDelta(t, 0.93, mean(passed), 0.03, "by what networks need more than that")
}
