package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// siteGap is how much longer the ways between sites are than those inside.
	siteGap = 3
	// leastDelay is taken for shorter ones: on one machine there are no sites.
	leastDelay = 100 * time.Microsecond
	// worthPairs is how much faster sums between sites have to be over all pairs than over few of them.
	worthPairs = 1.25
	// mostEvery bounds the trees of these.
	mostEvery = 512
	// sitesName begins the names of schemes with sums inside of sites.
	sitesName = "sites"
)

// sites returns the members in groups that are near to each other, and nil if there is
// no gap between the ways inside of groups and those between them. Ways are joined from
// the shortest on; the gap is where the next one is siteGap times as long or more.
func (m *model) sites() [][]int {
	type link struct {
		d    time.Duration
		i, k int
	}
	var links []link
	for i := range m.N {
		for k := range i {
			if m.Delay[i*m.N+k] < 0 && m.Delay[k*m.N+i] < 0 {
				continue // there is no way
			}
			links = append(links, link{max(m.Delay[i*m.N+k], m.Delay[k*m.N+i], leastDelay), k, i})
		}
	}
	slices.SortFunc(links, func(a, b link) int {
		return cmp.Or(cmp.Compare(a.d, b.d), cmp.Compare(a.i, b.i), cmp.Compare(a.k, b.k))
	})
	of := make([]int, m.N) // the least member of each one's group
	for i := range of {
		of[i] = i
	}
	gap, last := float64(siteGap), time.Duration(0)
	var best []int
	for _, l := range links {
		a, b := min(of[l.i], of[l.k]), max(of[l.i], of[l.k])
		if a == b {
			continue
		}
		if ratio := float64(l.d) / float64(max(last, 1)); last > 0 && ratio >= gap {
			gap, best = ratio, slices.Clone(of)
		}
		for i := range of {
			if of[i] == b {
				of[i] = a
			}
		}
		last = l.d
	}
	if best == nil {
		return nil
	}
	index, list := map[int]int{}, [][]int{}
	for i, g := range best {
		if _, ok := index[g]; !ok {
			index[g] = len(list)
			list = append(list, nil)
		}
		list[index[g]] = append(list[index[g]], i)
	}
	return list
}

// withSites returns the schemes with sums inside of sites, the simpler ones first; none: there are no sites.
func (m *model) withSites() (list []*Scheme) {
	sites := m.sites()
	if len(sites) < 2 {
		return nil
	}
	name := fmt.Sprintf(sitesName+" %d", len(sites))
	add := func(name string, groups [][]Tree) {
		// A trial may have timed it in equal parts. Others have to be better than that.
		even := &Scheme{Name: name, Trees: equally(groups)}
		if m.passes(even.Trees) {
			list = append(list, even)
		}
		if s := m.sharedOpen(name+", shares", groups); s != nil && !s.like(even) {
			list = append(list, s)
		}
	}
	add(name, m.throughSites(sites, few(sites)))
	if len(sites) > 2 {
		add(name+" in a ring", m.aroundSites(sites))
	}
	best := math.Inf(1)
	for _, s := range list {
		if !m.ofPair(m.dearest(s)) {
			return list
		}
		best = min(best, float64(m.predicted(s).Byte))
	}
	if largest(sites)*m.N > mostEvery {
		return list
	}
	if s := m.sharedOpen(name+", all pairs", m.throughSites(sites, every(sites))); s != nil && float64(m.predicted(s).Byte)*worthPairs < best {
		list = append(list, s)
	}
	return list
}

// sharedOpen is shared, without the groups for whose trees there are no ways; nil: there is none left.
func (m *model) sharedOpen(name string, groups [][]Tree) *Scheme {
	groups = slices.DeleteFunc(groups, func(trees []Tree) bool { return !m.passes(trees) })
	if len(groups) == 0 {
		return nil
	}
	return m.shared(name, groups)
}

// equally returns the trees of all groups, of which each has the same part.
func equally(groups [][]Tree) (list []Tree) {
	for _, trees := range groups {
		for _, t := range trees {
			t.Weight = uint32(partUnits / len(trees))
			list = append(list, t)
		}
	}
	return list
}

// turns says by how many steps from its own place a member of a site with so many takes members of other sites, one
// behind the other.
type turns func(home int) (steps []int)

// few takes the members of each site equally often, over as few pairs as that takes: each pair has connections of
// its own, and all of a site's may share one way out. There are no more turns than the largest site has members, and
// not so many that all members have more than mostRelays trees: some are taken more often than others then.
func few(sites [][]int) turns {
	members := 0
	for _, s := range sites {
		members += len(s)
	}
	most := min(largest(sites), max(mostRelays/members, 1))
	return func(home int) (steps []int) {
		n := 1
		for _, s := range sites {
			each := len(s) / gcd(len(s), home)
			if n = n / gcd(n, each) * each; n > most {
				n = most
				break
			}
		}
		for turn := range n {
			steps = append(steps, turn*home)
		}
		return steps
	}
}

// every takes each member of each site.
func every(sites [][]int) turns {
	return func(int) (steps []int) {
		for step := range largest(sites) {
			steps = append(steps, step)
		}
		return steps
	}
}

// largest returns how many members the largest site has.
func largest(sites [][]int) (n int) {
	for _, s := range sites {
		n = max(n, len(s))
	}
	return n
}

// throughSites returns trees for each member: in every other site one member sums up,
// sends that to the owner, and spreads the result. A member has a tree for each of its turns.
func (m *model) throughSites(sites [][]int, turns turns) [][]Tree {
	groups := make([][]Tree, m.N)
	for h, home := range sites {
		for at, owner := range home {
			for _, step := range turns(len(home)) {
				agents := agentsOf(sites, h, at, step)
				up := inside(sites, h, agents, m.N)
				for _, agent := range agents[1:] {
					up[agent] = owner
				}
				groups[owner] = append(groups[owner], Tree{Weight: 1, Up: up, Down: up})
			}
		}
	}
	return groups
}

// aroundSites returns trees for each member in which a sum goes from site to site, and so does its
// result: each site sends to one other and receives from one, as members of a ring do. All go the same way
// around.
func (m *model) aroundSites(sites [][]int) [][]Tree {
	sites = m.circle(sites)
	turns := few(sites)
	groups := make([][]Tree, m.N)
	for h, home := range sites {
		for at, owner := range home {
			for _, step := range turns(len(home)) {
				agents := agentsOf(sites, h, at, step)
				t := Tree{Weight: 1, Up: inside(sites, h, agents, m.N), Down: inside(sites, h, agents, m.N)}
				for k := 1; k < len(agents); k++ {
					t.Up[agents[k]], t.Down[agents[k]] = agents[(k+1)%len(agents)], agents[k-1]
				}
				groups[owner] = append(groups[owner], t)
			}
		}
	}
	return groups
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// agentsOf returns who acts for each site, counted from site h on: there it is the owner, the at-th member,
// and in the others the one that is so many steps behind it.
func agentsOf(sites [][]int, h, at, step int) []int {
	agents := []int{sites[h][at]}
	for k := 1; k < len(sites); k++ {
		s := sites[(h+k)%len(sites)]
		agents = append(agents, s[(at+step)%len(s)])
	}
	return agents
}

// inside returns a tree of n members in which those of each site are below its agent, and agents below
// nobody yet. They are counted from site h on.
func inside(sites [][]int, h int, agents []int, n int) []int {
	next := make([]int, n)
	for k, agent := range agents {
		for _, i := range sites[(h+k)%len(sites)] {
			next[i] = agent
		}
		next[agent] = -1
	}
	return next
}

// circle returns sites in an order in which each is near to the one before: from each of them on the
// nearest one that is left, and of these orders the one with the shortest way around.
func (m *model) circle(sites [][]int) [][]int {
	far := func(a, b []int) time.Duration {
		if d := m.Delay[a[0]*m.N+b[0]]; d >= 0 {
			return d
		}
		return time.Hour // there is no way
	}
	var best [][]int
	least := time.Duration(math.MaxInt64)
	for first := range sites {
		left := slices.Clone(sites)
		order, around := [][]int{left[first]}, time.Duration(0)
		for left = slices.Delete(left, first, first+1); len(left) > 0; {
			last, at := order[len(order)-1], 0
			for k := range left {
				if far(last, left[k]) < far(last, left[at]) {
					at = k
				}
			}
			around += far(last, left[at])
			order, left = append(order, left[at]), slices.Delete(left, at, at+1)
		}
		if around += far(order[len(order)-1], order[0]); around < least {
			best, least = order, around
		}
	}
	return best
}

// ofSites returns what was seen of sites: the most that all members of one have shown in the same
// all-reduce, as these may share a way out, and use only one of them for it. In different ones each may have had
// all of that way. Members that have shown nothing, since what they had was for near ones, have
// what others of their site have. of returns what an all-reduce has shown of members; seen is the most of each,
// and far the most that was measured of each on a way to or from another site: no more than a site has. Both are in
// Mbit/s.
func (m *model) ofSites(seen, rates, far []float64, of func(Shown) []float64) []float64 {
	sum := slices.Repeat([]float64{math.Inf(1)}, m.N)
	if slices.Max(m.site) == 0 {
		return sum
	}
	most, total, measured := make([]float64, m.N), make([]float64, m.N), make([]float64, m.N)
	add := func(seen []float64) {
		now := make([]float64, m.N)
		for i, s := range m.site {
			now[s] += bytesPerSecond(seen, i)
			total[s] = max(total[s], now[s])
		}
	}
	for _, shown := range m.Shown {
		add(of(shown))
	}
	if len(m.Shown) == 0 {
		add(seen)
	}
	for i, s := range m.site {
		most[s] = max(most[s], rates[i])
		total[s] = max(total[s], bytesPerSecond(seen, i))
		measured[s] = max(measured[s], bytesPerSecond(far, i))
	}
	for i, s := range m.site {
		if rates[i] == 0 {
			rates[i] = most[s]
		}
		if total[s] > 0 {
			sum[s] = max(total[s], measured[s])
		}
	}
	return sum
}

// sendingSites returns what the sites that send to a site can send, in parts of what it can receive, as much
// each at most as that. used says over which pairs, by from and to.
func (m *model) sendingSites(used []bool, to int) (sum float64) {
	n := m.N
	if math.IsInf(m.in[to], 0) {
		return 0
	}
	counted := make([]bool, n)
	for at, is := range used {
		if from := m.site[at/n]; is && m.site[at%n] == to && from != to && !counted[from] {
			counted[from] = true
			sum += min(m.out[from]/m.in[to], 1)
		}
	}
	return sum
}
