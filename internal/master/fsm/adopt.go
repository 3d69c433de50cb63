package fsm

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/master/fsm/pace"
	"github.com/gopccl/gopccl/internal/master/fsm/rings"
	"github.com/gopccl/gopccl/internal/wire"
)

// defaultNoise is how much better a ring must be to replace the one in force.
const defaultNoise = 0.2

// Config.Patience by default, and the longest it grows to.
const (
	restless = 10 * time.Second
	calm     = 24 * time.Hour
)

// maxRefused bounds the rings that are remembered as worse than they looked.
const maxRefused = 16

// job is one run of the solver for a group.
type job struct {
	id      uint64
	group   *group
	members []wire.UUID
}

// search is what the solver has found for a group, and when that may change the ring.
type search struct {
	job       *job          // the solver that works beside the run
	optimal   bool          // the ring in order is proved to be the best
	rate      float64       // slowest link of the ring in order, or when a search began, Mbit/s
	postponed []wire.UUID   // found too soon after the last change
	refused   [][]wire.UUID // worse than they looked, oldest first
	changed   time.Duration // the last change of order
	watched   time.Duration // the last look at the slowest link
	patience  time.Duration // until a search may cause the next change
}

// ripe is when a ring that was found may replace the one in force.
func (s *search) ripe() time.Duration { return s.changed + s.patience }

// refuses reports whether ring was worse than it looked.
func (s *search) refuses(ring []wire.UUID) bool {
	return slices.ContainsFunc(s.refused, func(r []wire.UUID) bool { return rings.SameCycle(r, ring) })
}

// refuse notes that ring is worse than it looked; the one before it comes back.
func (s *search) refuse(ring []wire.UUID, now time.Duration) {
	if len(s.refused) == maxRefused {
		s.refused = slices.Delete(s.refused, 0, 1)
	}
	s.refused = append(s.refused, slices.Clone(ring))
	s.postponed, s.changed = nil, now
	s.wait()
}

// wait doubles the time until the next change.
func (s *search) wait() { s.patience = min(2*s.patience, calm) }

// matrix returns the members of g by uuid and the rates between them. Pairs
// that cannot reach each other have no link.
func (m *Machine) matrix(g *group) ([]*client, topo.Matrix) {
	ms := slices.Clone(m.members(g))
	slices.SortFunc(ms, byUUID)
	x := topo.NewMatrix(len(ms))
	bad := conflicts(ms, 0)
	for i, c := range ms {
		for k, o := range ms {
			if i != k && !bad.Forbidden(i, k) {
				x.Set(i, k, c.link(o).mbps)
			}
		}
	}
	return ms, x
}

// solve asks for a ring of g.
func (m *Machine) solve(g *group, background bool) job {
	ms, x := m.matrix(g)
	m.numbers.jobs++
	j := job{id: m.numbers.jobs, group: g, members: uuids(ms)}
	start := indices(ms, m.normalise(g))
	sh := g.sharing(ms)
	g.search.rate, _, _ = sh.Value(x, start)
	m.out = append(m.out, Solve{
		Job: j.id, Group: g.id, Background: background, Members: slices.Clone(j.members), Matrix: x, Sharing: sh, Start: start,
	})
	return j
}

// solved takes a solver's ring, if it is one of the members it was asked
// about and they are still the members.
func (m *Machine) solved(e Solved) {
	if i := slices.IndexFunc(m.solving.jobs, func(j job) bool { return j.id == e.Job }); i >= 0 {
		j := m.solving.jobs[i]
		m.adopt(j, e, false)
		if e.More {
			return
		}
		m.solving.jobs = slices.Delete(m.solving.jobs, i, i+1)
		j.group.search.optimal = e.Optimal
		if len(m.solving.jobs) == 0 {
			m.optimized()
		}
		return
	}
	for _, g := range m.groups {
		if g.search.job == nil || g.search.job.id != e.Job {
			continue
		}
		j := *g.search.job
		if !e.More {
			g.search.job, g.search.optimal = nil, e.Optimal
		}
		if e.Ring != nil {
			m.adopt(j, e, true)
		}
	}
}

// adopt makes a ring the one of the next round if it is better than the one in
// force by more than the noise of the measurements.
func (m *Machine) adopt(j job, e Solved, background bool) {
	g := j.group
	if e.Ring == nil {
		m.fact(Fact{Kind: "ring", Warn: true, Group: g.id, Text: fmt.Sprintf("ring of %d peers kept: %v", len(j.members), e.Err)})
		return
	}
	ms, x := m.matrix(g)
	sh := g.sharing(ms)
	bottle, sum, ok := sh.Value(x, indices(ms, e.Ring))
	if !ok || len(m.ringMembers(g)) != len(ms) {
		m.fact(Fact{Kind: "ring", Warn: true, Group: g.id, Text: "the solver's ring does not fit the group, ring kept"})
		return
	}
	now := m.normalise(g)
	oldBottle, oldSum, oldOK := sh.Value(x, indices(ms, now))
	if oldOK && !m.cfg.gains(bottle, sum, oldBottle, oldSum) {
		if !background {
			m.fact(Fact{Kind: "ring", Group: g.id, Text: fmt.Sprintf("ring kept, slowest link %.0f Mbit/s", oldBottle)})
		}
		return
	}
	if g.search.refuses(e.Ring) {
		return
	}
	if background {
		if m.now < g.search.ripe() {
			g.search.postponed, m.census.changing = e.Ring, true
			return
		}
		g.search.wait()
	}
	g.prefer(e.Ring)
	g.search.postponed, g.search.changed, g.search.rate = nil, m.now, bottle
	m.fact(Fact{
		Kind: "ring", Group: g.id,
		Text: fmt.Sprintf("better ring of %d peers found, slowest link %.0f instead of %.0f Mbit/s", len(ms), bottle, oldBottle),
	})
	if background {
		m.offer(g)
	}
}

// gains reports whether a ring is better than another one by more than the noise.
func (c Config) gains(bottle, sum, oldBottle, oldSum float64) bool {
	by := 1 + c.Noise
	if c.Objective == topo.Sum {
		return sum*by < oldSum
	}
	return bottle > oldBottle*by || bottle >= oldBottle && sum*by < oldSum
}

// reconsider looks at a ring that a search has found too soon after the last
// one.
func (m *Machine) reconsider(g *group) {
	if g.search.postponed != nil && m.now >= g.search.ripe() {
		ring := g.search.postponed
		g.search.postponed = nil
		m.adopt(job{group: g}, Solved{Ring: ring}, true)
	}
}

// search lets the solver go on beside the run until the members change.
func (m *Machine) search(g *group) {
	if !m.cfg.Solver || !m.cfg.Background || g.search.job != nil || len(m.members(g)) < 3 {
		return
	}
	j := m.solve(g, true)
	g.search.job = &j
}

// forget ends what was thought out for members that are no longer the members.
func (m *Machine) forget(g *group) {
	if g.search.job != nil {
		m.out = append(m.out, StopSolve{Job: g.search.job.id})
	}
	m.withdraw(g)
	g.forgetHosts(m.ringMembers(g))
	// The rate of the ring that was chosen last says whether the next one needs a search.
	g.search = search{rate: g.search.rate, watched: g.search.watched, patience: m.cfg.Patience, changed: m.now}
	g.inForce.pace, g.before = pace.Pace{}, nil
}

// wanted reports whether a better ring waits for a round of g.
func (m *Machine) wanted(g *group) bool {
	if g.order == nil || len(g.ring) < 3 {
		return false
	}
	ring, _ := m.arrange(g)
	return !rings.SameCycle(ring, g.ring)
}

// The others waited for a link that was at work for slowShare of a collective: it
// gave all that it has. Of other links it is only known that they have no less. A
// new value moves the known one by newShare.
const (
	slowShare = 0.5
	newShare  = 0.3
)

// watchEvery bounds how often reports of links lead to a look at the ring.
const watchEvery = time.Second

// linkReport learns from what a link gave in a collective, and starts a search
// where the slowest link of the ring is no longer what the ring was chosen for.
func (m *Machine) linkReport(c *client, p wire.C2MLinkReport) {
	o := m.uuids[p.To]
	if o == nil || o.group != c.group || !c.can.topology || !(p.Mbps > 0) || math.IsInf(p.Mbps, 0) || !(p.Busy >= 0 && p.Busy <= 1) {
		return
	}
	l := c.link(o)
	if p.Busy >= slowShare && l.known && l.mbps > 0 && m.learnShare(c, o, p.Mbps) {
		m.watch(c.group)
		return
	}
	mbps := l.mbps
	switch {
	case !l.known || l.mbps == 0:
		if p.Busy < slowShare || m.crowded(c, o) {
			return // no measurement: a lower bound, or a part of what is shared
		}
		mbps = p.Mbps
	case p.Busy >= slowShare:
		mbps += newShare * (p.Mbps - mbps)
	default:
		mbps = max(mbps, p.Mbps)
	}
	m.learn(c, p.To, mbps, l.deviation)
	m.watch(c.group)
}

// watch starts a search if the slowest link of the ring of g has changed by
// more than the noise since the last one.
func (m *Machine) watch(g *group) {
	if g.search.job != nil || !m.cfg.Background || m.now < max(g.search.ripe(), g.search.watched+watchEvery) {
		return
	}
	g.search.watched = m.now
	ms, x := m.matrix(g)
	slowest, _, ok := g.sharing(ms).Value(x, indices(ms, g.ring))
	if !ok {
		return
	}
	if by := 1 + m.cfg.Noise; g.search.rate > 0 && slowest < g.search.rate*by && slowest*by > g.search.rate {
		return
	}
	g.search.rate = slowest
	m.search(g)
}
