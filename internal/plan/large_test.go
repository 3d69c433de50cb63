package plan

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// hosts is a group whose members have rates of their own, in Mbit/s, and one delay.
func hosts(up, down []float64, delay time.Duration) Problem {
	n := len(up)
	p := even(n, delay, 0)
	p.Rates = make([]float64, n*n)
	for i := range n {
		for k := range n {
			if i != k {
				p.Rates[i*n+k] = min(up[i], down[k])
			}
		}
	}
	return p
}

// inSites is a group in sites of so many members.
func inSites(size []int, near, far time.Duration, inside, between float64) Problem {
	var of []int
	for s, n := range size {
		of = append(of, slices.Repeat([]int{s}, n)...)
	}
	p := even(len(of), far, 0)
	p.Rates = make([]float64, len(p.Delay))
	for i := range of {
		for k := range of {
			switch at := i*len(of) + k; {
			case i == k:
			case of[i] == of[k]:
				p.Delay[at], p.Rates[at] = near, inside
			default:
				p.Rates[at] = between
			}
		}
	}
	return p
}

var (
	mixedUp   = []float64{20, 50, 50, 100, 100, 200, 300, 500}
	mixedDown = []float64{100, 100, 200, 200, 100, 200, 300, 500}
)

// What members receive in a trial is what the others can send: a plan made of hope is that
// of their real rates, as far as one in vain is bearable.
func TestHopes(t *testing.T) {
	const bytes = 8 << 20
	p := even(8, 15*time.Millisecond, 0)
	p.Rates = make([]float64, 64)
	p.Up, p.Down = []float64{71, 24, 77, 48, 46, 80, 98, 77}, []float64{49, 55, 41, 51, 37, 48, 53, 53}
	seen := Large(p)
	p.Hopeful = true
	hoped := Large(p)
	is, becomes := seen.For(bytes), hoped.For(bytes)
	require.InDelta(t, 1.17, is.At(bytes).Seconds()/becomes.At(bytes).Seconds(), 0.01)
	require.Equal(t, "what member 1 sends, 24 Mbit/s", becomes.Slowest)
	p.Hopeful = false
	require.LessOrEqual(t, newModel(p).line(becomes.Scheme).At(bytes).Seconds(), bearable*is.At(bytes).Seconds())

	// All but two receive a tenth of what they send: with hope the others have more to do, and
	// in vain that takes longer.
	p.Up = slices.Repeat([]float64{100}, 8)
	p.Down = slices.Repeat([]float64{10}, 8)
	p.Down[0], p.Down[1] = 100, 100
	best, m := Large(p), newModel(p)
	p.Hopeful = true
	hoped, h := Large(p), newModel(p.hoped())
	cost := func(m *model, o Options, size uint64) float64 {
		if at := o.For(size); at != nil {
			return m.line(at.Scheme).At(size).Seconds()
		}
		return m.ring().At(size).Seconds()
	}
	for size := uint64(LeastLarge); size <= mostLarge; size *= 2 {
		require.LessOrEqual(t, cost(m, hoped, size), bearable*cost(m, best, size))
	}
	require.Less(t, 1.5*cost(h, large(p.hoped()), bytes), cost(h, best, bytes), "there was something to hope for")
}

// To whom all ways were measured, nobody hopes for more than came over the best of them.
func TestNobodyHopesForMoreThanWasMeasured(t *testing.T) {
	p := even(4, 15*time.Millisecond, 20)
	p.Up, p.Down = []float64{20, 300, 300, 300}, []float64{20, 20, 20, 20}
	p.Rates, p.Hopeful = slices.Repeat([]float64{20}, 16), true
	require.False(t, p.Hopes())
	p.Rates[1*4+2] = 0
	require.Equal(t, []float64{20, 20, 300, 20}, p.hoped().Down)
	p.Rates = nil
	require.Equal(t, []float64{40, 300, 300, 300}, p.hoped().Down)
}

func TestWaysLimit(t *testing.T) {
	up, down := mixedUp, mixedDown
	p := hosts(up, down, 15*time.Millisecond)
	require.False(t, p.WaysLimit(), "hosts do")
	for i := range 8 {
		p.Rates[i*8+(i+1)%8] /= 2
	}
	require.False(t, p.WaysLimit(), "few do")
	for i := range 8 {
		p.Rates[i*8+(i+2)%8] /= 2
		p.Rates[i*8+(i+3)%8] /= 2
	}
	require.True(t, p.WaysLimit())
	q := hosts(slices.Repeat([]float64{1000}, 8), slices.Repeat([]float64{1000}, 8), 15*time.Millisecond)
	for i := range 8 {
		for k := range 8 {
			if i/4 != k/4 {
				q.Rates[i*8+k] = 100
			} else {
				q.Delay[i*8+k] = 300 * time.Microsecond
			}
		}
	}
	require.False(t, q.WaysLimit(), "near ones are faster")
	p.Delay = make([]time.Duration, 64)
	require.False(t, p.WaysLimit(), "near ones say nothing")
	p.Delay = nil
	require.False(t, p.WaysLimit())

	p = hosts(slices.Repeat([]float64{50}, 8), slices.Repeat([]float64{50}, 8), 15*time.Millisecond)
	require.False(t, p.WaysLimit(), "or hosts do, who knows")
}

// A slow uplink owns nothing of large operations, and the ring is slower by nearly the
// bound of 2(n-1)/n.
func TestUnequalRatesAreShared(t *testing.T) {
	const bytes = 16 << 20
	o := Large(hosts(mixedUp, mixedDown, 15*time.Millisecond))
	at := o.For(bytes)
	require.NotNil(t, at)
	require.Equal(t, "shares", at.Scheme.Name)
	require.Greater(t, float64(o.Ring.At(bytes))/float64(at.At(bytes)), 1.7)
	require.Zero(t, at.Scheme.Trees[0].Weight)
	require.Greater(t, at.Scheme.Trees[7].Weight, at.Scheme.Trees[5].Weight)
	require.Equal(t, "predicted 7.41s, 13.13s along the ring; the slowest is what member 0 sends, 20 Mbit/s", o.Why(at, bytes))
	require.Nil(t, o.For(1<<19), "small ones have a choice of their own")
}

// Equal hosts keep the ring for large operations: without pacing the exchange is slower.
func TestEqualRatesKeepTheRing(t *testing.T) {
	rates := slices.Repeat([]float64{100}, 8)
	o := Large(hosts(rates, rates, 15*time.Millisecond))
	require.Nil(t, o.For(64<<20))
	require.Nil(t, (*Options)(nil).For(1))
}

func even4Rated() Problem {
	r := slices.Repeat([]float64{10}, 4)
	return hosts(r, r, time.Millisecond)
}

// What is predicted of a scheme is what the bytes of its plan say.
func TestCostsAreThoseOfThePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 7).Draw(t, "n")
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "draw") }
		m := newModel(hosts(slices.Repeat([]float64{8}, n), slices.Repeat([]float64{8}, n), time.Millisecond)) // 1 byte per us
		tree := anyScheme(n, 1, draw)
		cost := m.of(&tree.Trees[0])
		for r, p := range plansOfScheme(tree, n, 1) {
			sent, received := p.Sent(func(int) int { return 1000 }), p.Received(func(int) int { return 1000 })
			require.InDelta(t, float64(sent)/1e9, cost[r], 1e-12)
			require.InDelta(t, float64(received)/1e9, cost[n+r], 1e-12)
			for _, l := range p.Out {
				require.InDelta(t, float64(len(l.Segments))*1e-6, cost[2*n+r*n+l.Peer], 1e-12)
			}
		}
	})
}

// Parts are at most a few percent dearer than the best ones, which a formula has where
// members are bound by one rate each.
func TestPartsAreNearTheBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 60 {
		n := 3 + rng.IntN(8)
		rate := make([]float64, n)
		for i := range rate {
			rate[i] = 10 * float64(1+rng.IntN(50))
		}
		p := hosts(rate, rate, 10*time.Millisecond)
		m := newModel(p)
		for i := range m.pair {
			m.pair[i] = 1e18
		}
		s := m.schemes()[0]
		require.NoError(t, s.Check(n))
		var sum, most float64
		for _, t := range s.Trees {
			sum += float64(t.Weight)
		}
		for i, t := range s.Trees {
			most = max(most, (1+float64(n-2)*float64(t.Weight)/sum)/m.up[i])
		}
		best := 1 / slices.Min(m.up)
		left := slices.Sorted(slices.Values(m.up))
		for len(left) > 0 { // those that own something
			total := 0.0
			for _, r := range left {
				total += r
			}
			if tau := float64(n-2+len(left)) / total; tau*left[0] >= 1 || len(left) == 1 {
				best = max(best, tau)
				break
			}
			left = left[1:]
		}
		require.Less(t, most/best, 1.25, "%v", rate)
	}
}

// Options survive the wire, and whatever else comes is refused or lawful.
func TestOptionsOnTheWire(t *testing.T) {
	for _, p := range []Problem{
		hosts(mixedUp, mixedDown, 15*time.Millisecond),
		inSites([]int{4, 4}, time.Millisecond/2, 40*time.Millisecond, 1000, 10),
	} {
		o := Large(p)
		o.List = append(o.List, Option{From: 1 << 60, Line: o.Ring})
		got, err := ParseOptions(o.Encode(), p.N)
		require.NoError(t, err)
		require.Equal(t, &o, got)
		older := false
		for cut := range len(o.Encode()) {
			_, err := ParseOptions(o.Encode()[:cut], p.N)
			if err == nil { // what plans wait for stands behind them, and may be missing
				require.False(t, older)
				older = true
			}
		}
		require.True(t, older)
		_, err = ParseOptions(o.Encode(), p.N+1)
		require.Error(t, err)
	}
	require.Nil(t, (&Options{}).Encode())
	twoTrees := &Scheme{Name: "trees", Trees: []Tree{{1, []int{-1, 0, 1}, []int{-1, 0, 0}}}}
	o := &Options{List: []Option{{From: 7, Scheme: twoTrees}}}
	got, err := ParseOptions(o.Encode(), 3)
	require.NoError(t, err)
	require.Equal(t, o, got)
	for says, spoil := range map[string]func(){
		"in order":        func() { o.List = append(o.List, o.List[0]) },
		`plan ""`:         func() { o.List = o.List[:1]; twoTrees.Name = "" },
		`plan "a\nb"`:     func() { twoTrees.Name = "a\nb" },
		"with 1 trees":    func() { twoTrees.Name = strings.Repeat("x", 33) },
		"is in a cycle":   func() { twoTrees.Name = "t"; twoTrees.Trees[0].Up = []int{-1, 2, 1} },
		"time is negativ": func() { o.Ring.Delay = -1 },
	} {
		o.List[0].Scheme = &Scheme{Name: "trees", Trees: []Tree{{1, []int{-1, 0, 1}, []int{-1, 0, 0}}}}
		o.List, o.Ring, twoTrees = o.List[:1], Line{}, o.List[0].Scheme
		spoil()
		_, err := ParseOptions(o.Encode(), 3)
		require.ErrorContains(t, err, says)
	}
}

func FuzzParseOptions(f *testing.F) {
	o := Large(inSites([]int{2, 2}, time.Millisecond/2, 40*time.Millisecond, 1000, 10))
	f.Add(o.Encode(), 4)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		o, err := ParseOptions(b, n)
		if err != nil {
			return
		}
		for i := range o.List {
			if s := o.List[i].Scheme; s != nil {
				require.NoError(t, s.Check(n))
			}
		}
		again, err := ParseOptions(o.Encode(), n)
		if len(o.List) > 0 {
			require.NoError(t, err)
			require.Equal(t, o, again)
		}
	})
}

// With rates or delays that are not known nothing but the ring is planned.
func TestUnknownRatesKeepTheRing(t *testing.T) {
	good := func() Problem { return hosts(mixedUp, mixedDown, 15*time.Millisecond) }
	require.NotEmpty(t, Large(good()).List)
	for name, spoil := range map[string]func(p *Problem){
		"a delay":             func(p *Problem) { p.Delay[1] = -1 },
		"what a member sends": func(p *Problem) { clear(p.Rates[:8]) },
		"what one receives": func(p *Problem) {
			for i := range 8 {
				p.Rates[i*8+3] = 0
			}
		},
		"no rates": func(p *Problem) { p.Rates = nil },
		"no ring":  func(p *Problem) { p.Ring = nil },
	} {
		p := good()
		spoil(&p)
		require.Empty(t, Large(p).List, name)
	}
	up, down := slices.Repeat([]float64{20, 400}, MostPlanned), slices.Repeat([]float64{1000}, 2*MostPlanned)
	require.NotEmpty(t, Large(hosts(up[:18], down[:18], 15*time.Millisecond)).List)
	require.Empty(t, Large(hosts(up[:MostPlanned+1], down[:MostPlanned+1], 15*time.Millisecond)).List, "too many members")
	require.Empty(t, Large(hosts(mixedUp[:2], mixedDown[:2], time.Millisecond)).List)
	one := good()
	one.Rates[8] = 0
	require.NotEmpty(t, Large(one).List, "the rate of one pair is not needed")
}

// What members were seen to send counts where nothing was measured, between sites also
// what pairs were.
func TestWhatWasSeen(t *testing.T) {
	p := even(4, 15*time.Millisecond, 0)
	p.Rates = make([]float64, 16)
	require.Empty(t, Large(p).List)
	p.Up, p.Down = []float64{20, 100, 200, 400}, []float64{500, 500, 500, 0}
	require.Empty(t, Large(p).List, "what one can receive is not known")
	p.Down[3] = 500
	at := Large(p)
	require.Equal(t, "shares", at.For(16<<20).Scheme.Name)
	require.Zero(t, at.For(16 << 20).Scheme.Trees[0].Weight)
	m := newModel(p)
	require.InDelta(t, 20e6/8, m.pair[1], 1)
	require.InDelta(t, 400e6/8, m.pair[3*4], 1)

	p.Seen = make([]float64, 16)
	p.Seen[1], p.Seen[2] = 3, 3
	require.InDelta(t, 20e6/8, newModel(p).pair[1], 1, "there are no sites")
	for i := range 4 { // 0 and 1, 2 and 3
		p.Delay[i*4+i^1] = 100 * time.Microsecond
	}
	m = newModel(p)
	require.InDelta(t, freeMbps*1e6/8, m.pair[1], 1, "near ones show nothing")
	require.InDelta(t, 3e6/8, m.pair[2], 1)
	for _, odd := range []float64{-1, 0, math.NaN(), math.Inf(1)} {
		p.Up[0], p.Up[1] = odd, odd // a site
		require.Nil(t, newModel(p))
	}
}

// Plans stay while others are little better, and go when the network is another one.
func TestSteadyPlans(t *testing.T) {
	p := even(4, 15*time.Millisecond, 0)
	p.Rates, p.Up, p.Down = make([]float64, 16), []float64{20, 100, 200, 400}, []float64{500, 500, 500, 500}
	const size = 16 << 20
	last := Large(p)
	require.Equal(t, last, Steady(p, Options{}, last, size), "the ring is slower")
	p.Up[1] = 110
	require.Equal(t, last, Steady(p, last, Large(p), size))
	p.Up = []float64{400, 200, 100, 20}
	fresh := Large(p)
	require.Equal(t, fresh, Steady(p, last, fresh, size))
	p.Up = []float64{100, 100, 100, 100}
	p.Timed = []Timed{{Bytes: size, Took: time.Second}}
	now := Steady(p, last, Large(p), size)
	require.Nil(t, now.For(size), "back to the ring")
	p.Timed = nil
	p.Up[0] = 0
	require.Equal(t, last, Steady(p, last, Options{}, size), "nothing is known")

	require.Equal(t, last, last.Without(nil))
	require.Equal(t, last, last.Without([]string{"sites 2"}))
	without := last.Without([]string{"shares"})
	require.Nil(t, without.For(size))
	require.NotNil(t, last.For(size))
}

// What links of the ring have shown is as little as they were asked for, and what members that are near to
// others have shown is, too.
func TestRingAtBest(t *testing.T) {
	const size = 16 << 20
	p := even(4, 15*time.Millisecond, 0)
	p.Rates = make([]float64, 16)
	require.Zero(t, RingAtBest(p, size), "nothing is known of members")
	p.Up, p.Down = slices.Repeat([]float64{50}, 4), slices.Repeat([]float64{60}, 4)
	p.Rates[p.Ring[0]*4+p.Ring[1]] = 5
	require.InDelta(t, 0.09+1.1*40.27, RingAtBest(p, size).Seconds(), 0.1, "it was measured")
	p.Rates = make([]float64, 16)
	require.InDelta(t, 0.09+1.1*4.027, RingAtBest(p, size).Seconds(), 0.01)
	p.Up[2] = 25
	require.InDelta(t, 0.09+1.1*8.053, RingAtBest(p, size).Seconds(), 0.01, "it is near to nobody")

	p = inSites([]int{2, 1, 1, 1}, 520*time.Microsecond, 30*time.Millisecond, 0, 0)
	p.Up, p.Down = []float64{15, 15, 30, 31, 30}, []float64{15, 15, 30, 30, 29}
	wire := func() float64 { return (RingAtBest(p, size) - newModel(p).alongRing()).Seconds() }
	require.InDelta(t, 1.1*2*4.0/5*size*8/29e6, wire(), 0.01)
	p.Rates[0*5+1], p.Rates[1*5+0] = 1000, 1000
	require.InDelta(t, 1.1*2*4.0/5*size*8/29e6, wire(), 0.01, "what is near says nothing of what is not")
	p.Up[4] = 12
	require.InDelta(t, 1.1*2*4.0/5*size*8/12e6, wire(), 0.01, "as much was asked of it as of others")
	p.Rates[2*5+3] = 4
	require.InDelta(t, 1.1*2*4.0/5*size*8/4e6, wire(), 0.01, "it was measured")
}

// Where there is no way between two members a trial uses none: the one on the shortest way around passes
// on, in sites as well, unless the sums inside of them need no such way.
func TestTrialsGoAroundClosedWays(t *testing.T) {
	apart := func() Problem {
		p := even(4, 30*time.Millisecond, 0)
		p.Rates = make([]float64, 16)
		for _, at := range []int{0*4 + 3, 3*4 + 0, 1*4 + 3, 3*4 + 1} {
			p.Delay[at] = 10 * time.Millisecond
		}
		return p
	}
	sites := func() Problem { return inSites([]int{3, 1, 3}, 520*time.Microsecond, 30*time.Millisecond, 0, 0) }
	closed := func(p Problem, ways ...[2]int) Problem {
		for _, w := range ways {
			p.Delay[w[0]*p.N+w[1]], p.Rates[w[0]*p.N+w[1]] = -1, -1
		}
		return p
	}
	for name, p := range map[string]Problem{
		"one way":           closed(apart(), [2]int{0, 1}),
		"both ways":         closed(apart(), [2]int{0, 1}, [2]int{1, 0}),
		"between two sites": closed(sites(), [2]int{0, 3}),
		"inside of a site":  closed(sites(), [2]int{0, 1}),
	} {
		t.Run(name, func(t *testing.T) {
			o := Trial(p, 0, 0)
			s := o.For(LeastTrial).Scheme
			require.NoError(t, s.Check(p.N))
			for _, tree := range s.Trees {
				for i := range p.N {
					if up, down := tree.Up[i], tree.Down[i]; up >= 0 {
						require.Zero(t, p.Rates[i*p.N+up], "from %d to %d", i, up)
						require.Zero(t, p.Rates[down*p.N+i], "from %d to %d", down, i)
					}
				}
			}
			if p.N == 4 {
				require.Len(t, s.Trees, 4)
				require.Equal(t, []int{3, -1, 1, 1}, s.Trees[1].Up)
				require.Equal(t, []int{-1, 3, 0, 0}, s.Trees[0].Down)
			}
		})
	}
	alone := closed(apart(), [2]int{0, 1}, [2]int{0, 2}, [2]int{0, 3})
	require.Empty(t, Trial(alone, 0, 0).List, "there is no way at all")
}

// A trial is for all-reduces of a size that is not too large, and can be told.
func TestTrialOptions(t *testing.T) {
	o := Trial(Problem{N: 4, Delay: make([]time.Duration, 16)}, 16<<20, 8*time.Second)
	require.Equal(t, TrialName, o.For(LeastTrial).Scheme.Name)
	require.NotNil(t, o.For(MostTrial))
	require.Nil(t, o.For(LeastTrial-1))
	require.Nil(t, o.For(MostTrial+1))
	require.Equal(t, 8*time.Second, o.Ring.At(16<<20))

	p := inSites([]int{3, 1, 3}, 520*time.Microsecond, 30*time.Millisecond, 0, 0)
	apart := Trial(p, 0, 0)
	s := apart.For(LeastTrial).Scheme
	require.NoError(t, s.Check(p.N))
	require.True(t, slices.ContainsFunc(s.Trees, passesOn), "a site may have one way out for all")
	require.Equal(t, insideSites, (&model{Problem: p, site: []int{0, 0, 0, 1, 2, 2, 2}}).familyOf(s))
	p.Delay[1] = -1
	require.Empty(t, Trial(p, 0, 0).List, "nobody knows how far it is")
	require.Empty(t, Trial(Problem{N: 2, Delay: make([]time.Duration, 4)}, 0, 0).List)
	less := Trial(Problem{N: 4, Delay: make([]time.Duration, 16)}, 3<<19, 0)
	require.Nil(t, less.For(3<<19-1))
	require.NotNil(t, less.For(3<<19), "of the size in use")
	require.Contains(t, o.Why(o.For(LeastTrial), LeastTrial), "members show")
	back, err := ParseOptions(o.Encode(), 4)
	require.NoError(t, err)
	require.Equal(t, o.List[0].Scheme.Trees, back.List[0].Scheme.Trees)
}

// What a plan waits for is told with it, and to ends that do not know it as well.
func TestSlowestIsTold(t *testing.T) {
	p := even(4, 15*time.Millisecond, 0)
	p.Rates, p.Up, p.Down = make([]float64, 16), []float64{20, 100, 200, 400}, []float64{500, 500, 500, 500}
	o := Large(p)
	at := o.For(16 << 20)
	require.Equal(t, "what member 0 sends, 20 Mbit/s", at.Slowest)
	require.Contains(t, o.Why(at, 16<<20), "the slowest is what member 0 sends")
	p.Down[1] = 10
	require.Contains(t, newModel(p).slowest(at.Scheme), "what member 1 receives, 10 Mbit/s")
	p.Rates[2*4+3] = 1
	require.Equal(t, "the way from member 2 to 3, 1 Mbit/s", newModel(p).slowest(at.Scheme))

	b := o.Encode()
	back, err := ParseOptions(b, 4)
	require.NoError(t, err)
	require.Equal(t, at.Slowest, back.For(16<<20).Slowest)
	cut := len(b)
	for i := range o.List {
		cut -= 1 + len(o.List[i].Slowest)
	}
	back, err = ParseOptions(b[:cut], 4)
	require.NoError(t, err)
	require.Empty(t, back.For(16<<20).Slowest)
	_, err = ParseOptions(b[:len(b)-1], 4)
	require.Error(t, err)
	b[cut+1] = 7
	_, err = ParseOptions(b, 4)
	require.ErrorContains(t, err, "waits for")
}

// Four hosts of 100 Mbit/s and 30 ms, as a laboratory has shown them: along the ring links
// give 90 Mbit/s over a whole all-reduce, and each seems to carry 115 to 146 for a moment.
// What the ring was timed with is what it takes, and what an exchange took more than was
// predicted it takes again.
func TestWhatWasTimed(t *testing.T) {
	const size = 16 << 20
	p := even(4, 15*time.Millisecond, 0)
	p.Rates = make([]float64, 16)
	for i, from := range p.Ring {
		p.Rates[from*4+p.Ring[(i+1)%4]] = 90
	}
	p.Up, p.Down = []float64{146, 123, 115, 116}, []float64{142, 128, 132, 129}
	seems := Large(p)
	require.InDelta(t, 2.55, seems.Ring.At(size).Seconds(), 0.1)
	require.NotNil(t, seems.For(size), "bursts are taken for rates")

	timed := p
	timed.Timed = []Timed{{Bytes: size, Took: 2400 * time.Millisecond}}
	require.InDelta(t, 2.4, Large(timed).Ring.At(size).Seconds(), 0.01)
	timed.Up, timed.Down = []float64{98, 95, 97, 96}, []float64{99, 98, 97, 99}
	require.Nil(t, takes(Large(timed), size))

	// The plan has been used, and did not keep what was promised.
	timed.Up, timed.Down = p.Up, p.Down
	at := takes(Large(timed), size)
	require.NotNil(t, at)
	timed.Timed = append(timed.Timed, Timed{Scheme: at.Scheme, Bytes: size, Took: 2500 * time.Millisecond})
	require.NotNil(t, takes(Large(timed), size), "its first time opened windows")
	timed.Timed[1].Often = true
	require.Nil(t, takes(Large(timed), size))
	m := newModel(timed)
	l := m.line(at.Scheme)
	require.InDelta(t, 2.5, l.At(size).Seconds(), 0.01)
	last := Options{List: []Option{*at}}
	require.Equal(t, last, Steady(timed, last, Options{}, size), "as fast as the ring: that is for bars")
	timed.Timed[1].Took = 4 * time.Second
	require.Nil(t, takes(Steady(timed, last, Options{}, size), size))

	// What was timed is worth more than what is predicted.
	before := timed
	other := &Scheme{Name: "another", Trees: slices.Clone(at.Scheme.Trees)}
	other.Trees[0].Weight *= 3
	before.Timed = []Timed{{Scheme: other, Bytes: size, Took: 1800 * time.Millisecond, Often: true}, {Scheme: at.Scheme, Bytes: size, Took: 2 * time.Second, Often: true}}
	back := Options{List: []Option{{From: LeastLarge, Scheme: other}}}
	require.Equal(t, back, Steady(before, last, back, size))
	before.Timed[1].Took = 1880 * time.Millisecond
	require.Equal(t, last, Steady(before, last, back, size), "no two all-reduces take the same time")
	before.Timed[1] = Timed{Scheme: at.Scheme, Bytes: size, Took: 2400 * time.Millisecond}
	require.Equal(t, last, Steady(before, last, back, size), "its first one opened windows")
	before.Timed[0].Often, before.Timed[1] = false, Timed{Scheme: at.Scheme, Bytes: size, Took: 1720 * time.Millisecond, Often: true}
	require.Equal(t, last, Steady(before, last, back, size), "the other one may have had luck")

	// It was better than predicted: that is not promised of others. A trial opens
	// connections, and one that was disturbed does not bar its kind.
	timed.Timed[1].Took = time.Second
	l = newModel(timed).line(at.Scheme)
	require.InDelta(t, 1, l.At(size).Seconds(), 0.01, "it is judged by what it took")
	require.Equal(t, [families]float64{1, 1, 1}, newModel(timed).over)
	timed.Timed[1] = Timed{Scheme: Trial(timed, size, time.Second).List[0].Scheme, Bytes: size, Took: time.Hour}
	require.Equal(t, [families]float64{mostOver, 1, 1}, newModel(timed).over)
}

// takes returns what an all-reduce of so many bytes takes.
func takes(o Options, bytes uint64) *Option { return o.For(bytes) }
