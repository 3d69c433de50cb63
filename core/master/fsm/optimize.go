package fsm

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/wire"
)

// solveTimeout bounds how long M2C 6 waits for the solver.
const solveTimeout = 5 * time.Second

// betterBy is how much better a ring must be to replace the one in force:
// measurements are noisy, and rings should not flap.
const betterBy = 1.05

// job is one run of the solver for a group.
type job struct {
	id      uint64
	group   *group
	members []wire.UUID
	matrix  topo.Matrix
	start   []int
}

// checkOptimize asks for the missing edges once all agreed to measure
// (control spec, section 10, step 1). Capable peers get the list, too, and
// measure when they are called for.
func (m *Machine) checkOptimize() {
	if !m.all(VoteOptimize) {
		return
	}
	unscheduled := 0
	for _, c := range m.clients {
		if c.phase != Accepted {
			continue
		}
		c.set(Optimizing, m.now)
		p := wire.M2COptimizeTopologyResponse{}
		for _, o := range m.members(c.group) {
			if _, known := c.links[o.uuid]; o != c && !known {
				p.Requests = append(p.Requests, wire.BandwidthRequest{From: c.uuid, To: o.uuid, Addr: o.at(o.bwPort)})
			}
		}
		c.scheduled = c.topology && len(p.Requests) > 0
		p.Ext.Topology = c.scheduled
		if !c.scheduled {
			unscheduled += len(p.Requests)
		}
		m.send(c, p)
	}
	m.schedule(unscheduled)
}

// bandwidth stores one measured edge (control spec, section 10, step 3).
func (m *Machine) bandwidth(c *client, p wire.C2MReportPeerBandwidth) { m.learn(c, p.To, p.Mbps, 0) }

// learn stores the rate from c to another peer of its group. What cannot be a
// measurement is ignored (quirk Q10).
func (m *Machine) learn(c *client, u wire.UUID, mbps, deviation float64) {
	to := m.uuids[u]
	if to == nil || to == c || to.group != c.group || c.phase != Accepted || to.phase != Accepted {
		return
	}
	if !(mbps > 0) || math.IsInf(mbps, 0) {
		m.about(c, "bandwidth", true, "peer %s reported the impossible bandwidth %v to %s", c.name(), mbps, to.name())
		return
	}
	if !(deviation >= 0) || math.IsInf(deviation, 0) {
		deviation = 0
	}
	c.links[u] = link{mbps: mbps, deviation: deviation, at: m.now}
}

// checkOptimized starts the solver when all have measured.
func (m *Machine) checkOptimized() {
	if m.solving || !m.all(VoteOptimizeDone) {
		return
	}
	for _, g := range m.groups {
		ms := m.members(g)
		for _, c := range ms {
			for _, o := range ms {
				if _, known := c.links[o.uuid]; o != c && !known {
					c.links[o.uuid] = link{at: m.now} // asked for, not answered: never asked for again
				}
			}
		}
		if m.cfg.Solver && len(ms) >= 3 {
			m.solve(g, ms)
		}
	}
	if len(m.jobs) > 0 {
		m.solving, m.solveEnd = true, m.now+solveTimeout
		return
	}
	m.optimized()
}

func (m *Machine) solve(g *group, ms []*client) {
	slices.SortFunc(ms, func(a, b *client) int { return a.uuid.Compare(b.uuid) })
	m.jobSeq++
	j := job{id: m.jobSeq, group: g, matrix: topo.NewMatrix(len(ms))}
	bad := conflicts(ms, 0)
	for i, c := range ms {
		j.members = append(j.members, c.uuid)
		for k, o := range ms {
			if i != k && !bad.at(i, k) {
				j.matrix.Set(i, k, c.links[o.uuid].mbps)
			}
		}
	}
	j.start = indices(ms, m.arrange(g))
	m.jobs = append(m.jobs, j)
	e := Solve{
		Job: j.id, Group: g.id, Members: slices.Clone(j.members),
		Matrix: topo.NewMatrix(len(ms)), Start: slices.Clone(j.start),
	}
	copy(e.Matrix.Mbps, j.matrix.Mbps)
	m.out = append(m.out, e)
}

// solved takes a solver's ring, if it is one of the members it was asked
// about and they are still the members.
func (m *Machine) solved(e Solved) {
	i := slices.IndexFunc(m.jobs, func(j job) bool { return j.id == e.Job })
	if i < 0 {
		return
	}
	j := m.jobs[i]
	m.jobs = slices.Delete(m.jobs, i, i+1)
	m.adopt(j, e)
	if len(m.jobs) == 0 {
		m.optimized()
	}
}

func (m *Machine) adopt(j job, e Solved) {
	if e.Ring == nil {
		m.fact(Fact{Kind: "ring", Warn: true, Group: j.group.id, Text: fmt.Sprintf("ring of %d peers kept: %v", len(j.members), e.Err)})
		return
	}
	now := m.ringMembers(j.group)
	idx := make([]int, 0, len(e.Ring))
	for _, u := range e.Ring {
		idx = append(idx, slices.Index(j.members, u))
	}
	bottle, sum, ok := j.matrix.Value(idx)
	if !ok || len(now) != len(j.members) || slices.ContainsFunc(now, func(c *client) bool { return !slices.Contains(j.members, c.uuid) }) {
		m.fact(Fact{Kind: "ring", Warn: true, Group: j.group.id, Text: "the solver's ring does not fit the group, ring kept"})
		return
	}
	oldBottle, oldSum, oldOK := j.matrix.Value(j.start)
	if oldOK && bottle <= oldBottle*betterBy && !(bottle >= oldBottle && sum*betterBy < oldSum) {
		m.fact(Fact{Kind: "ring", Group: j.group.id, Text: fmt.Sprintf("ring kept, slowest link %.0f Mbit/s", oldBottle)})
		return
	}
	j.group.order = slices.Clone(e.Ring)
	m.fact(Fact{
		Kind: "ring", Group: j.group.id,
		Text: fmt.Sprintf("better ring of %d peers found, slowest link %.0f instead of %.0f Mbit/s", len(idx), bottle, oldBottle),
	})
}

// optimized answers everybody; the next round delivers the ring.
func (m *Machine) optimized() {
	m.solving, m.jobs = false, nil
	for _, c := range m.clients {
		if c.phase == Accepted && c.state == VoteOptimizeDone {
			c.set(Idle, m.now)
			m.send(c, wire.M2COptimizeTopologyComplete{Success: true})
		}
	}
}

var noAddr = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
