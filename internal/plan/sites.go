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
	add(name, m.throughSites(sites, few(sites, m.N)))
	if len(sites) > 2 {
		add(name+" in a ring", m.aroundSites(sites, few(sites, m.N)))
	}
	best := math.Inf(1)
	for _, s := range list {
		if !m.ofPair(m.dearest(s)) {
			return list
		}
		best = min(best, float64(m.predicted(s).Byte))
	}
	if len(every(sites)(0))*m.N > mostEvery {
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

// few returns turns in which members of a site with so many take members of other sites, over as few pairs as
// it takes to take each there equally often: each pair has connections of its own, and all of a site's may share
// one way out. It is a list of steps, no longer than the largest site, and so that n members have
// no more than mostRelays trees; some are taken more often than others then.
func few(sites [][]int, n int) func(home int) []int {
	most := min(len(every(sites)(0)), max(mostRelays/n, 1))
	return func(home int) (steps []int) {
		turns := 1
		for _, s := range sites {
			each := len(s) / gcd(len(s), home)
			if turns = turns / gcd(turns, each) * each; turns > most {
				turns = most
				break
			}
		}
		for turn := range turns {
			steps = append(steps, turn*home)
		}
		return steps
	}
}

// every returns turns in which each member takes each of the others in turn.
func every(sites [][]int) func(home int) []int {
	var steps []int
	for _, s := range sites {
		for len(steps) < len(s) {
			steps = append(steps, len(steps))
		}
	}
	return func(int) []int { return steps }
}

// throughSites returns trees for each member: in every other site one member sums up,
// sends that to the owner, and spreads the result. turns says by how many steps from its own place a member
// of a site with so many takes those in others; it has a tree for each of them.
func (m *model) throughSites(sites [][]int, turns func(home int) []int) [][]Tree {
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
// around. turns is as for throughSites.
func (m *model) aroundSites(sites [][]int, turns func(home int) []int) [][]Tree {
	sites = m.circle(sites)
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
// what others of their site have. of returns what an all-reduce has shown of members; seen is the most of each.
func (m *model) ofSites(seen, rates []float64, of func(Shown) []float64) []float64 {
	sum := slices.Repeat([]float64{math.Inf(1)}, m.N)
	if slices.Max(m.site) == 0 {
		return sum
	}
	most, total := make([]float64, m.N), make([]float64, m.N)
	add := func(seen []float64) {
		now := make([]float64, m.N)
		for i, s := range m.site {
			if i < len(seen) && seen[i] > 0 && !math.IsInf(seen[i], 0) {
				now[s] += seen[i] * 1e6 / 8
			}
		}
		for s := range now {
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
		if i < len(seen) && seen[i] > 0 && !math.IsInf(seen[i], 0) {
			total[s] = max(total[s], seen[i]*1e6/8)
		}
	}
	for i, s := range m.site {
		if rates[i] == 0 {
			rates[i] = most[s]
		}
		if total[s] > 0 {
			sum[s] = total[s]
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
