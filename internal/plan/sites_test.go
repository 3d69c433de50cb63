package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

func TestSites(t *testing.T) {
	const ms = time.Millisecond
	m := newModel(inSites([]int{3, 3, 3}, ms/2, 30*ms, 1000, 100))
	require.Equal(t, [][]int{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}}, m.sites())
	require.Equal(t, [][]int{{0, 1}, {2}, {3, 4, 5}}, newModel(inSites([]int{2, 1, 3}, ms, 5*ms, 10, 10)).sites())
	require.Nil(t, newModel(inSites([]int{2, 2}, ms, 2*ms, 10, 10)).sites(), "no gap")
	require.Nil(t, newModel(inSites([]int{2, 2}, 1000, 20_000, 10, 10)).sites(), "one machine")
	require.Nil(t, newModel(even4Rated()).sites())
}

// threeSites is a group of three sites of three, of which everything was measured.
func threeSites() *model {
	return newModel(inSites([]int{3, 3, 3}, time.Millisecond/2, 30*time.Millisecond, 1000, 100))
}

// whole is the scheme in which all trees have the same part.
func whole(name string, groups [][]Tree) *Scheme {
	return &Scheme{Name: name, Trees: slices.Concat(groups...)}
}

// across returns what goes from members of one site to those of another, by from and to, in parts of the
// data.
func across(m *model, s *Scheme) []float64 {
	n := m.N
	load := make([]float64, n*n)
	for i := range s.Trees {
		for k, up := range s.Trees[i].Up {
			if up >= 0 && m.site[k] != m.site[up] {
				load[k*n+up] += 1 / float64(len(s.Trees))
			}
			if down := s.Trees[i].Down[k]; down >= 0 && m.site[k] != m.site[down] {
				load[down*n+k] += 1 / float64(len(s.Trees))
			}
		}
	}
	return load
}

// Of equal sites each member has one in each other site, and between two of them as much goes as of three
// members that send to each other.
func TestSumsInsideOfSites(t *testing.T) {
	m := threeSites()
	groups := m.throughSites(m.sites(), few(m.sites()))
	s := whole("sites 3", groups)
	require.Len(t, s.Trees, 9)
	require.NoError(t, s.Check(9))
	load := across(m, s)
	for i := range 9 {
		for k := range 9 {
			if m.site[i] != m.site[k] {
				want := 0.0
				if i%3 == k%3 {
					want = 2.0 / 9
				}
				require.InDelta(t, want, load[i*9+k], 1e-12, "from %d to %d", i, k)
			}
		}
	}
	require.Equal(t, 61*time.Millisecond, m.line(s).Delay)
}

// Around sites each sends to one other, and all of them together as much as members of a ring.
func TestSumsAroundSites(t *testing.T) {
	m := threeSites()
	s := whole("sites 3 in a ring", m.aroundSites(m.sites()))
	require.Len(t, s.Trees, 9)
	require.NoError(t, s.Check(9))
	sum := map[[2]int]float64{}
	for at, v := range across(m, s) {
		if i, k := at/9, at%9; v > 0 {
			require.Equal(t, i%3, k%3)
			require.InDelta(t, 4.0/9, v, 1e-12)
			sum[[2]int{m.site[i], m.site[k]}] += v
		}
	}
	require.Len(t, sum, 3)
	for way, v := range sum {
		require.NotContains(t, sum, [2]int{way[1], way[0]})
		require.InDelta(t, 4.0/3, v, 1e-12)
	}
	waits := m.line(s).Delay
	m.passing = 0
	require.Equal(t, 121*time.Millisecond, m.line(s).Delay)
	require.Greater(t, waits, m.line(s).Delay, "what other sites have sent is passed on")
}

// Whatever the sizes of sites, members of one do the same for the others.
func TestAgentsTakeTurns(t *testing.T) {
	for _, sizes := range [][]int{{3, 3, 3}, {1, 3}, {2, 3}, {2, 4, 4}, {6, 3, 1, 2}, {3, 5}, {4, 6}} {
		m := newModel(inSites(sizes, time.Millisecond/2, 30*time.Millisecond, 1000, 100))
		for name, groups := range map[string][][]Tree{"sites": m.throughSites(m.sites(), few(m.sites())), "sites in a ring": m.aroundSites(m.sites())} {
			s := whole(name, groups)
			require.NoError(t, s.Check(m.N))
			sent, received := make([]float64, m.N), make([]float64, m.N)
			// Trees of an owner share its part.
			part := map[int]float64{}
			for i := range s.Trees {
				part[s.Trees[i].Owner()]++
			}
			for i := range s.Trees {
				tree := &s.Trees[i]
				for k := range m.N {
					for _, way := range [][2]int{{k, tree.Up[k]}, {tree.Down[k], k}} {
						if way[0] >= 0 && way[1] >= 0 && m.site[way[0]] != m.site[way[1]] {
							sent[way[0]] += 1 / part[tree.Owner()]
							received[way[1]] += 1 / part[tree.Owner()]
						}
					}
				}
			}
			for i := range m.N {
				first := slices.Index(m.site, m.site[i])
				require.InDelta(t, sent[first], sent[i], 1e-9, "%s of %v: member %d", name, sizes, i)
				require.InDelta(t, received[first], received[i], 1e-9, "%s of %v: member %d", name, sizes, i)
			}
		}
	}
}

// Where that would take many trees, some members are taken more often than others: all have to be told.
func TestManyTurnsAreCut(t *testing.T) {
	for _, sizes := range [][]int{{2, 3, 5}, {13, 14, 15}, {3, 7, 23}, {22, 23}, {7, 7, 7, 8, 8, 9, 9, 9}} {
		p := inSites(sizes, time.Millisecond/2, 30*time.Millisecond, 1000, 100)
		m := newModel(p)
		for _, groups := range [][][]Tree{m.throughSites(m.sites(), few(m.sites())), m.aroundSites(m.sites())} {
			s := &Scheme{Name: "sites", Trees: equally(groups)}
			require.NoError(t, s.Check(m.N))
			require.LessOrEqual(t, len(s.Trees), max(mostRelays, m.N))
			part := make([]float64, m.N)
			for i := range s.Trees {
				part[s.Trees[i].Owner()] += float64(s.Trees[i].Weight) / partUnits
			}
			for _, v := range part {
				require.InDelta(t, 1, v, 1e-3, "%v", sizes)
			}
		}
		o := Large(p)
		require.Less(t, len(o.Encode()), wire.MaxSchemes, "%v", sizes)
	}
}

// Along a long way only so many stripes are under way.
func TestALongWayBoundsARing(t *testing.T) {
	m := newModel(inSites([]int{2, 2, 2, 2, 2, 2, 2, 2}, time.Millisecond/2, 50*time.Millisecond, 10_000, 10_000))
	s := &Scheme{Name: "sites 8 in a ring", Trees: equally(m.aroundSites(m.sites()))}
	m.passing = 0
	l := m.line(s)
	require.Equal(t, 701*time.Millisecond, l.Delay)
	require.InEpsilon(t, 5*0.701, l.At(64<<20).Seconds(), 0.01, "its delay, and once more for each 16 MiB")
	trial := takes(Trial(m.Problem, 0, 0), LeastTrial).Scheme
	require.Equal(t, 101*time.Millisecond, m.predicted(trial).Delay)
}

// What members of a site have shown in one all-reduce is what the site has. In others each may have had all of
// its way.
func TestSitesShowWhatTheyHaveTogether(t *testing.T) {
	p := inSites([]int{3, 3}, 520*time.Microsecond, 30*time.Millisecond, 0, 0)
	p.Up, p.Down = []float64{30, 95, 33, 20, 20, 20}, slices.Repeat([]float64{33}, 6)
	mbps := func(rates []float64) (list []float64) {
		for _, r := range rates[:2] {
			list = append(list, r*8/1e6)
		}
		return list
	}
	require.InDeltaSlice(t, []float64{158, 60}, mbps(newModel(p).out), 1e-9)
	p.Shown = []Shown{
		{Up: []float64{30, 32, 33, 0, 0, 0}, Down: p.Down},
		{Up: []float64{0, 95, 0, 20, 0, 0}, Down: p.Down},
		{Up: []float64{20, 40, 20, 20, 20, 20}},
	}
	m := newModel(p)
	require.InDeltaSlice(t, []float64{95, 60}, mbps(m.out), 1e-9)
	require.InDeltaSlice(t, []float64{99, 99}, mbps(m.in), 1e-9)
	require.InDelta(t, 95e6/8, m.up[1], 1)
	p.Hopeful = true
	hoped := newModel(p.hoped())
	require.InDelta(t, (hope*66+95)*1e6/8, hoped.in[0], 1, "what comes is hoped for of sites, too")
	require.InDelta(t, 33, p.Shown[0].Down[0], 1e-9)
	p.Up[1] = 105
	require.InDelta(t, 105e6/8, newModel(p).out[0], 1, "no less than one of its members")

	p.Rates[1*6+0], p.Rates[1*6+3], p.Rates[2*6+4] = 900, 120, 110
	m = newModel(p)
	require.InDeltaSlice(t, []float64{120, 60}, mbps(m.out), 1e-9, "nor than was measured between sites")
	require.InDeltaSlice(t, []float64{99, 120}, mbps(m.in), 1e-9)
	p.Up[1], p.Up[2], p.Shown = 0, 0, nil
	require.InDeltaSlice(t, []float64{120, 60}, mbps(newModel(p).out), 1e-9, "of any of its members")
}

// A trial times sums inside of sites, in about the same parts, under whatever name.
func TestATrialTimesSites(t *testing.T) {
	m := threeSites()
	const size = 16 << 20
	trial := takes(Trial(m.Problem, size, 0), size).Scheme
	var around *Scheme
	for _, s := range m.withSites() {
		if s.Name == "sites 3 in a ring" {
			around = s
		}
	}
	m.Timed = []Timed{{Scheme: trial, Bytes: size, Took: 9 * time.Second, Often: true}, {Scheme: around, Bytes: size, Took: 7 * time.Second, Often: true}}
	l := m.line(around)
	require.InDelta(t, 7, l.At(size).Seconds(), 0.01, "the latest counts")
	m.Timed = m.Timed[:1]
	l = m.line(around)
	require.InDelta(t, 9, l.At(size).Seconds(), 0.01)
	other := &Scheme{Name: around.Name, Trees: slices.Clone(around.Trees)}
	other.Trees[0].Weight /= 2
	l = m.line(other)
	require.Less(t, l.At(size), 8*time.Second, "in other parts")
}

// Sites are gone around from each to a near one.
func TestTheWayAroundSites(t *testing.T) {
	place := []int{0, 0, 90, 90, 30, 30, 60, 60} // on a line, in ms
	p := Problem{N: len(place), Delay: make([]time.Duration, len(place)*len(place))}
	for i, a := range place {
		for k, b := range place {
			p.Delay[i*p.N+k] = max(time.Duration(max(a-b, b-a))*time.Millisecond, time.Millisecond/2)
		}
	}
	m := &model{Problem: p}
	var order []int
	for _, s := range m.circle(m.sites()) {
		order = append(order, place[s[0]])
	}
	require.Equal(t, []int{0, 30, 60, 90}, order)
}

// Where many sites send to one at a time, queues overflow: large all-reduces go around. Small ones
// take the shorter way.
func TestLargeOnesGoAroundSites(t *testing.T) {
	p := inSites([]int{3, 3, 3, 3}, 520*time.Microsecond, 30*time.Millisecond, 0, 0)
	n := p.N
	p.Up, p.Down = slices.Repeat([]float64{33}, n), slices.Repeat([]float64{33}, n)
	o := Large(p)
	require.Equal(t, "sites 4 in a ring", o.For(64<<20).Scheme.Name)
	m := newModel(p)
	star, ring := whole("sites 4", m.throughSites(m.sites(), few(m.sites()))), whole("sites 4 in a ring", m.aroundSites(m.sites()))
	require.Less(t, m.line(star).At(1<<20), m.line(ring).At(1<<20))
	require.Less(t, m.line(ring).At(64<<20), m.line(star).At(64<<20))
}

// What sums inside of sites took longer than predicted is predicted of whatever else passes on between
// sites, and not the other way around: a bad plan of relays says nothing of them.
func TestRelaysUseWhatSitesShare(t *testing.T) {
	m := threeSites()
	sites, around := whole("sites 3", m.throughSites(m.sites(), few(m.sites()))), whole("sites 3 in a ring", m.aroundSites(m.sites()))
	relays := whole("relays", m.throughSites(m.sites(), every(m.sites())))
	require.Equal(t, []family{insideSites, insideSites, acrossSites, exchange}, []family{m.familyOf(sites), m.familyOf(around), m.familyOf(relays), m.familyOf(Direct(9, nil))})
	const size = 64 << 20
	took := func(s *Scheme) time.Duration { return m.line(s).At(size) }
	was := []time.Duration{took(sites), took(relays), took(Direct(9, nil))}
	m.Timed = []Timed{{Scheme: around, Bytes: size, Took: 2 * took(around), Often: true}}
	m.compare()
	require.InEpsilon(t, 2*float64(was[0]), float64(took(sites)), 1e-6)
	require.InEpsilon(t, 2*float64(was[1]), float64(took(relays)), 1e-6)
	require.Equal(t, was[2], took(Direct(9, nil)))
	m.Timed = []Timed{{Scheme: relays, Bytes: size, Took: 3 * was[1], Often: true}}
	m.compare()
	require.Equal(t, was[0], took(sites))
	require.InEpsilon(t, 3*float64(was[1]), float64(took(relays)), 1e-6)
}

// A thin path between sites is used for sums alone.
func TestAThinPathBetweenSites(t *testing.T) {
	p := inSites([]int{4, 4}, time.Millisecond/2, 40*time.Millisecond, 1000, 10)
	o := Large(p)
	at := o.For(64 << 20)
	require.NotNil(t, at)
	require.Equal(t, "sites 2, all pairs", at.Scheme.Name)
	pairs := func(at *Option) (used int) {
		for _, v := range across(newModel(p), at.Scheme) {
			if v > 0 {
				used++
			}
		}
		return used
	}
	require.Equal(t, 2*16, pairs(at), "what a pair carries is what it waits for")
	p = inSites([]int{4, 4}, time.Millisecond/2, 40*time.Millisecond, 0, 0)
	p.Up, p.Down = slices.Repeat([]float64{5}, 8), slices.Repeat([]float64{5}, 8)
	require.Equal(t, 2*4, pairs(takes(Large(p), 64<<20)), "sites may share one way out")
}

// Three sites of three, as a laboratory has shown them: only those that the ring lets send
// to another site have shown anything, and what is near shows nothing at all. A site may
// have one way out for all. Sums inside of sites spare a quarter of what crosses it, and an
// exchange would send twice of what a ring does.
func TestSitesAlongARing(t *testing.T) {
	const size = 16 << 20
	p := inSites([]int{3, 3, 3}, 520*time.Microsecond, 30*time.Millisecond, 0, 0)
	p.Ring = []int{2, 0, 1, 3, 5, 4, 7, 6, 8} // out of its sites by 1, 4 and 8
	p.Up, p.Down, p.Seen = make([]float64, 9), make([]float64, 9), make([]float64, 81)
	for _, way := range [][2]int{{1, 3}, {4, 7}, {8, 2}} {
		p.Up[way[0]], p.Down[way[1]] = 95, 96
		p.Seen[way[0]*9+way[1]], p.Rates[way[0]*9+way[1]] = 95, 82
	}
	p.Timed = []Timed{{Bytes: size, Took: 3360 * time.Millisecond}}
	at := takes(Large(p), size)
	require.NotNil(t, at)
	require.Equal(t, "sites 3 in a ring", at.Scheme.Name)
	require.InDelta(t, 2.5, at.At(size).Seconds(), 0.2)
	require.Contains(t, at.Slowest, "what comes to the site of member 6, 96 Mbit/s")
	m := newModel(p)
	direct := m.predicted(Direct(9, nil))
	require.Greater(t, direct.At(size), 6*time.Second)

	// What is near was measured: it takes a part of what its ends have, as it did.
	for i := range 9 {
		for k := range 9 {
			if i != k && i/3 == k/3 {
				p.Rates[i*9+k] = 1000
			}
		}
	}
	m = newModel(p)
	require.False(t, m.free[1])
	require.InDelta(t, 1000e6/8, m.up[0], 1)

	// Without anything of a site nothing is planned.
	p = inSites([]int{3, 3, 3}, 520*time.Microsecond, 30*time.Millisecond, 0, 0)
	p.Up, p.Down = make([]float64, 9), slices.Repeat([]float64{100}, 9)
	p.Up[0], p.Up[3] = 100, 100
	require.Empty(t, Large(p).List)
	p.Up[8] = 100
	require.NotEmpty(t, Large(p).List)
}

// The best of many predictions is too good: what has been timed is left for what is predicted to be better by more
// than that.
func TestTimedSitesStay(t *testing.T) {
	const size = 16 << 20
	p := inSites([]int{3, 3, 3}, 520*time.Microsecond, 30*time.Millisecond, 0, 0)
	p.Up, p.Down = slices.Repeat([]float64{33}, 9), slices.Repeat([]float64{33}, 9)
	name := func(slow float64) string {
		p.Up[4], p.Down[7], p.Timed = slow, slow, nil
		trial := takes(Trial(p, size, 0), size).Scheme
		l := newModel(p).predicted(trial)
		p.Timed = []Timed{{Scheme: trial, Bytes: size, Took: l.At(size), Often: true}}
		return takes(Large(p), size).Scheme.Name
	}
	require.Equal(t, "sites 3 in a ring", name(30))
	require.Equal(t, "sites 3 in a ring, shares", name(20))
}
