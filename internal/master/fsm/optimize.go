package fsm

import (
	"math"
	"net/netip"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// solveTimeout bounds how long M2C 6 waits for the solver.
const solveTimeout = 5 * time.Second

// solving is the wait of an optimization for its solver jobs.
type solving struct {
	on   bool // M2C 6 waits for jobs
	jobs []job
	due  time.Duration
}

// checkOptimize asks for the missing edges once all agreed to measure
// (control spec, section 10, step 1). Capable peers get the list, too, and
// measure when they are called for.
func (m *Machine) checkOptimize() {
	if m.round.active || !m.all(VoteOptimize) {
		return // newcomers in a round that an earlier master began take part in this, too
	}
	for _, g := range m.groups {
		m.withdraw(g)
	}
	unscheduled := 0
	for _, c := range m.clients {
		if c.phase != Accepted {
			continue
		}
		c.set(Optimizing, m.now)
		p := wire.M2COptimizeTopologyResponse{}
		for _, o := range m.members(c.group) {
			if o != c && !m.knows(c, o) {
				p.Requests = append(p.Requests, wire.BandwidthRequest{From: c.uuid, To: o.uuid, Addr: o.at(o.listens.bandwidth)})
			}
		}
		c.probe.scheduled = c.can.topology && len(p.Requests) > 0
		p.Ext.Topology = c.probe.scheduled
		if !c.probe.scheduled {
			unscheduled += len(p.Requests)
		}
		m.send(c, p)
	}
	m.scheduleProbes(unscheduled)
}

// bandwidth stores one measured edge (control spec, section 10, step 3).
func (m *Machine) bandwidth(c *client, p wire.C2MReportPeerBandwidth) { m.learn(c, p.To, p.Mbps, 0) }

// learn stores the rate from c to another peer of its group. A value that cannot
// be a measurement is ignored (quirk Q10).
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
	c.setLink(to, link{mbps: mbps, deviation: deviation, at: m.now})
}

// checkOptimized starts the solver when all have measured. An earlier master may have told
// some that the optimization is over: they no longer take part in it.
func (m *Machine) checkOptimized() {
	if m.solving.on || m.census.all[Optimizing] > 0 || m.census.all[VoteOptimizeDone] == 0 {
		return
	}
	for _, g := range m.groups {
		ms := m.members(g)
		for _, c := range ms {
			for _, o := range ms {
				if o != c && !c.link(o).known {
					c.setLink(o, link{at: m.now}) // asked for, not answered: never asked for again
				}
			}
		}
		if m.cfg.Solver && len(ms) >= 3 {
			m.solving.jobs = append(m.solving.jobs, m.solve(g, false))
		}
	}
	if len(m.solving.jobs) > 0 {
		m.solving.on, m.solving.due = true, m.now+solveTimeout
		return
	}
	m.optimized()
}

// optimized answers everybody; the next round delivers the ring.
func (m *Machine) optimized() {
	m.solving = solving{}
	m.numbers.decisions++
	for _, c := range m.clients {
		if c.phase == Accepted && c.state == VoteOptimizeDone {
			c.set(Idle, m.now)
			p := wire.M2COptimizeTopologyComplete{Success: true}
			if c.can.resume {
				p.Decision = m.numbers.decisions
			}
			m.send(c, p)
		}
	}
	for _, g := range m.groups {
		if !g.search.optimal {
			m.search(g)
		}
	}
}

var noAddr = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
