package plan

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// network is a group in virtual time: a transfer waits until its sender has sent what is
// before it, takes the time that its bytes need there, and the delay of its way, then waits
// until the receiver has received what came before it, and takes as long there. Each frame
// costs both ends some time beside its bytes.
type network struct {
	Problem
	up, down []float64 // bytes per second
}

// event is a segment that arrives, or that has been received.
type event struct {
	at         time.Duration
	to         int
	lane, part int // of the receiver
	receives   time.Duration
	received   bool
}

func (e event) when() time.Duration { return e.at }

// agenda is a heap of what happens in virtual time, the next of it first.
type agenda[E interface{ when() time.Duration }] []E

func (a agenda[E]) Len() int           { return len(a) }
func (a agenda[E]) Less(i, k int) bool { return a[i].when() < a[k].when() }
func (a agenda[E]) Swap(i, k int)      { a[i], a[k] = a[k], a[i] }
func (a *agenda[E]) Push(x any)        { *a = append(*a, x.(E)) }
func (a *agenda[E]) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// run executes plans, of chunks of these sizes, and returns when the last member has all.
func (w *network) run(plans []*Plan, size func(chunk int) int) (took time.Duration) {
	type state struct {
		sent []int    // segments, by lane out
		done [][]bool // by lane in
	}
	members := make([]state, w.N)
	for i, p := range plans {
		members[i].sent = make([]int, len(p.Out))
		for _, l := range p.In {
			members[i].done = append(members[i].done, make([]bool, len(l.Segments)))
		}
	}
	var queue agenda[event]
	sends, receives := make([]time.Duration, w.N), make([]time.Duration, w.N)
	ready := func(i int, r Ref) bool { return r.None() || members[i].done[r.Lane-1][r.Segment] }
	push := func(i int, now time.Duration) {
		for k := range plans[i].Out {
			l := &plans[i].Out[k]
			for members[i].sent[k] < len(l.Segments) {
				at := members[i].sent[k]
				s := &l.Segments[at]
				if !ready(i, s.After) || !ready(i, s.Gate) {
					break
				}
				members[i].sent[k]++
				bytes := float64(size(s.Chunk) + frameBytes)
				leaves := max(now, sends[i]) + time.Duration(bytes/w.up[i]*1e9) + frameTime
				sends[i] = leaves
				to := slices.IndexFunc(plans[l.Peer].In, func(in Lane) bool { return in.Peer == i })
				heap.Push(&queue, event{leaves + w.Delay[i*w.N+l.Peer], l.Peer, to, at, time.Duration(bytes/w.down[l.Peer]*1e9) + frameTime, false})
			}
		}
	}
	for i := range w.N {
		push(i, 0)
	}
	// A sum is added when what is before it in the plan was: pending ones wait.
	var late []event
	for len(queue) > 0 {
		e := heap.Pop(&queue).(event)
		if !e.received {
			receives[e.to] = max(e.at, receives[e.to]) + e.receives
			e.at, e.received = receives[e.to], true
			heap.Push(&queue, e)
			continue
		}
		took = max(took, e.at)
		late = append(late, e)
		for again := true; again; {
			again = false
			for i := 0; i < len(late); i++ {
				x := late[i]
				if ready(x.to, plans[x.to].In[x.lane].Segments[x.part].After) {
					members[x.to].done[x.lane][x.part] = true
					late = slices.Delete(late, i, i+1)
					again = true
					i--
				}
			}
		}
		push(e.to, e.at)
	}
	for i := range members {
		for _, l := range members[i].done {
			for _, done := range l {
				if !done {
					return -1
				}
			}
		}
	}
	return took
}

// takes returns how long an all-reduce of so many bytes takes with the plan of Small.
func (w *network) takes(o *Options, bytes uint64) time.Duration {
	at := o.For(bytes)
	s := Direct(w.N, nil)
	var plans []*Plan
	if at == nil {
		plans = each(w.N, func(r int) *Plan { return For(Job{Kind: AllReduce, N: w.N, Me: r, Order: w.Ring}) })
	} else {
		s = at.Scheme
		plans = plansOfScheme(s, w.N, 1)
	}
	ends := Cut(int(bytes+3)/4, 4, s.Weights(1))
	return w.run(plans, func(chunk int) int {
		from := 0
		if chunk > 0 {
			from = ends[chunk-1]
		}
		return 4 * (ends[chunk] - from)
	})
}

func evenNetwork(n int, delay time.Duration, mbps float64) *network {
	w := &network{Problem: even(n, delay, mbps)}
	w.up, w.down = slices.Repeat([]float64{mbps * 1e6 / 8}, n), slices.Repeat([]float64{mbps * 1e6 / 8}, n)
	return w
}

// What many peers take for few bytes is some delays, and not 2(n-1) of them.
func TestManyPeersFewBytes(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		n     int
		bytes uint64
		hops  int
	}{
		{16, 4, 4},
		{16, 64 << 10, 4},
		{32, 4, 4},
		{128, 4, 4},
		{128, 64 << 10, 4},
		{254, 4, 4},
		{254, 1 << 10, 4},
	} {
		w := evenNetwork(c.n, 50*ms, 100)
		o := Small(w.Problem, false)
		at := o.For(c.bytes)
		require.NotNil(t, at, "%d members, %d bytes", c.n, c.bytes)
		took := w.takes(&o, c.bytes)
		t.Logf("%d members, %d bytes: %q takes %v, predicted %v, along the ring %v", c.n, c.bytes, at.Scheme.Name, took, at.At(c.bytes), w.takes(&Options{}, c.bytes))
		wire := time.Duration(2 * float64(c.bytes) * 8 / 100e6 * 1e9)
		require.LessOrEqual(t, took, time.Duration(c.hops)*50*ms+3*wire+20*ms)
		require.Positive(t, took)
		require.LessOrEqual(t, at.Scheme.most(c.n), mostWays)
		require.LessOrEqual(t, len(o.Encode()), 48<<10)
		back, err := ParseOptions(o.Encode(), c.n)
		require.NoError(t, err)
		require.Equal(t, o, *back)
	}
}

func (s *Scheme) most(n int) (most int) {
	for _, l := range s.Ways(n) {
		most = max(most, len(l))
	}
	return most
}

// What is planned is faster than the ring by as much as it has to be to be planned, and takes
// no longer than was predicted with the caution that goes with rates, in a network as it was
// said to be. It passes no way that does not exist.
func TestSmallPlansAreFaster(t *testing.T) {
	planned := 0
	for seed := range uint64(400) {
		w := wild(seed)
		n := w.N
		o := Small(w.Problem, false)
		for i := range o.List {
			s := o.List[i].Scheme
			if s == nil {
				continue
			}
			require.NoError(t, s.Check(n))
			require.True(t, modelOf(newSmall(w.Problem).Problem).passes(s.Trees))
		}
		for _, size := range smallSizes {
			at := o.For(size)
			if at == nil {
				continue
			}
			planned++
			took, ring := w.takes(&o, size), w.takes(&Options{}, size)
			require.Positive(t, took)
			require.LessOrEqual(t, smallSpeedup*took.Seconds(), ring.Seconds(), "seed %d: %s of %d", seed, at.Scheme.Name, size)
			// What is predicted has the frames of the busiest member once: on the way to the owner
			// and back each step may be at one that has as many.
			hops := 0
			for i := range at.Scheme.Trees {
				hops = max(hops, at.Scheme.Trees[i].hops())
			}
			frames := at.Delay - newSmall(w.Problem).predicted(at.Scheme).Delay
			most := at.careful(size) + (time.Duration(hops-1) * frames).Seconds()
			require.LessOrEqual(t, took.Seconds(), most, "seed %d: %s of %d", seed, at.Scheme.Name, size)
		}
	}
	require.Greater(t, planned, 2000)
}

// wild is the network of a seed: members in sites, of which some pairs have no way.
func wild(seed uint64) *network {
	random := rand.New(rand.NewPCG(seed, 1))
	n := 3 + random.IntN(22)
	w := evenNetwork(n, 0, 100)
	w.Mbps, w.Rates = 0, make([]float64, n*n)
	sites := 1 + random.IntN(n)
	for i := range n {
		for k := range n {
			at := i*n + k
			if i == k {
				continue
			}
			w.Delay[at] = time.Duration(1000+random.IntN(1001)) * time.Microsecond
			if i%sites != k%sites {
				w.Delay[at] = time.Duration(5+random.IntN(146)) * time.Millisecond
			}
			if random.IntN(10) == 0 {
				w.Rates[at], w.Delay[at] = -1, -1
			}
		}
	}
	for i, from := range w.Ring { // the ring works
		at := from*n + w.Ring[(i+1)%n]
		w.Rates[at], w.Delay[at] = 0, max(w.Delay[at], time.Millisecond)
	}
	return w
}

// Near members have the ring, and so has a group of two. Between sites whose ways are long
// what goes there is summed up inside before.
func TestSmallChoice(t *testing.T) {
	const ms = time.Millisecond
	require.Empty(t, Small(even(4, 100*time.Microsecond, 1000), true).List)
	require.Empty(t, Small(even(2, 50*ms, 100), true).List)
	gap := even(8, 50*ms, 100)
	gap.Delay[8] = -1
	require.Empty(t, Small(gap, true).List, "a delay is not known")

	small := Small(even(4, 50*ms, 100), true)
	require.Empty(t, small.List, "nothing is much faster than the exchange")

	p := inSites([]int{16, 16, 16, 16}, ms/2, 60*ms, 0, 0)
	p.Rates = nil
	o := Small(p, false)
	at := o.For(512 << 10)
	require.NotNil(t, at)
	t.Log(at.Scheme.Name)
	require.Less(t, at.At(512<<10), o.Ring.At(512<<10)/3)
}

// Options for small and large all-reduces stand in one list, and can be taken apart.
func TestSmallBesideLarge(t *testing.T) {
	const ms = time.Millisecond
	small := Small(even(32, 50*ms, 100), false)
	require.NotEmpty(t, small.List)
	require.NotNil(t, small.For(LeastTrial-1), "where nothing is known of large ones")
	require.Nil(t, small.For(LeastTrial))
	require.Equal(t, small, small.With(Options{}))
	many := Small(even(128, 50*ms, 100), false)
	many = many.With(Large(even(128, 50*ms, 100)))
	require.NotNil(t, many.For(LeastLarge), "nobody plans large ones of so many")
	p := hosts(slices.Repeat([]float64{20, 400}, 16), slices.Repeat([]float64{1000}, 32), 50*ms)
	large := Large(p)
	require.NotEmpty(t, large.List)
	all := small.With(large)
	ring := small.With(Options{Ring: large.Ring})
	require.Nil(t, ring.For(LeastLarge), "the ring is the fastest")
	for size := uint64(1); size < 1<<34; size *= 2 {
		want := small.For(size)
		if size >= LeastLarge {
			want = large.For(size)
		}
		got := all.For(size)
		require.Equal(t, want == nil, got == nil, "%d", size)
		if got != nil {
			require.Same(t, want.Scheme, got.Scheme)
		}
	}
	require.Equal(t, large.List, all.Above().List)
	require.Equal(t, small.Below().List, all.Below().List)
	require.Equal(t, large, Options{}.With(large))
	_, err := ParseOptions(all.Encode(), 32)
	require.NoError(t, err)
}

// Small plans stay while others are little better.
func TestSteadySmallPlans(t *testing.T) {
	const ms = time.Millisecond
	p := even(32, 50*ms, 100)
	last := Small(p, false)
	require.Equal(t, last, SteadySmall(p, last, Options{}))
	require.Equal(t, last, SteadySmall(p, Options{}, last), "there were none")
	p.Mbps = 90
	require.Equal(t, last, SteadySmall(p, last, Small(p, false)))
	owner := last.List[0].Scheme.Trees[0].Owner()
	for i := range 30 { // it is far away by now, but for two
		if i != owner {
			p.Delay[i*32+owner], p.Delay[owner*32+i] = 200*ms, 200*ms
		}
	}
	fresh := Small(p, false)
	require.Equal(t, fresh, SteadySmall(p, last, fresh))
	p.Delay[owner*32+1], p.Delay[32+owner] = -1, -1
	p.Rates = make([]float64, 32*32)
	p.Rates[owner*32+1], p.Rates[32+owner] = -1, -1
	fresh = Small(p, false)
	require.Equal(t, fresh, SteadySmall(p, last, fresh), "it needs a way that is gone")
	require.False(t, last.Stand(p))
	require.True(t, fresh.Stand(p))
}

// Delays that are not known are taken for those of the shortest way over one member.
func TestDelaysAreCompleted(t *testing.T) {
	d := []time.Duration{
		0, 1, 5, -1,
		1, 0, 2, -1,
		5, 2, 0, 7,
		-1, 9, 7, 0,
	}
	Complete(d, 4)
	require.Equal(t, []time.Duration{
		0, 1, 5, 12,
		1, 0, 2, 9,
		5, 2, 0, 7,
		10, 9, 7, 0,
	}, d)
	none := []time.Duration{0, -1, -1, 0}
	Complete(none, 2)
	require.Equal(t, []time.Duration{0, -1, -1, 0}, none)
}

func BenchmarkSmall(b *testing.B) {
	for _, n := range []int{8, 16, 32, 64, 128, 254} {
		p := even(n, 50*time.Millisecond, 0)
		b.Run(time.Duration(n).String(), func(b *testing.B) {
			for b.Loop() {
				Small(p, n <= 16)
			}
		})
	}
}

// BenchmarkPlans is all that a master has computed for a group, by its size: rates of all
// pairs were measured, and no two are the same.
func BenchmarkPlans(b *testing.B) {
	for _, n := range []int{3, 4, 6, 8, 10, 12, 17, 24, 32, 64, 128, 254} {
		random := rand.New(rand.NewPCG(1, uint64(n)))
		p := even(n, 0, 100)
		for at := range p.Rates {
			if at/n != at%n {
				p.Rates[at], p.Delay[at] = 20+480*random.Float64(), time.Duration(5+random.IntN(145))*time.Millisecond
			}
		}
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				Choose(p)
				Large(p)
				SteadySmall(p, Options{}, Small(p, n <= MostMeshed))
			}
		})
		if n < 17 {
			continue
		}
		gaps := slices.Clone(p.Delay)
		for at := range gaps {
			if at/n >= 8 && at%n >= 8 {
				gaps[at] = -1
			}
		}
		b.Run(strconv.Itoa(n)+" delays", func(b *testing.B) {
			for b.Loop() {
				Complete(slices.Clone(gaps), n)
			}
		})
	}
}
