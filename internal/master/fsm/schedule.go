package fsm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/master/fsm/links"
	"github.com/gopccl/gopccl/internal/wire"
)

// Bounds of scheduled probes.
const (
	// readyTime bounds connecting to a target, busy targets included.
	readyTime = 12 * time.Second
	// sendTime bounds the sending, whatever a peer is configured to.
	sendTime = 15 * time.Second
	// Busy targets are left alone for firstBusyPause, and then for twice as long
	// each time, up to busyPause: a peer that is not scheduled measures them, a
	// stranger for a moment or a PCCL peer for seconds, and all others wait.
	firstBusyPause = 50 * time.Millisecond
	busyPause      = time.Second
	// busyPatience bounds how long busy targets are tried again, and
	// busyPerProbe adds to it for every measurement of a PCCL peer (10 s each).
	busyPatience = 20 * time.Second
	busyPerProbe = 12 * time.Second
)

// slot is an edge of the running round.
type slot struct {
	links.Edge
	state wire.ProbeState // 0: asked
	mbps  float64         // if measured
	late  time.Duration
}

func (s *slot) over() bool { return s.state >= wire.ProbeMeasured }

// schedule calls for the probes of an optimization: rounds in which every peer
// sends to at most one and receives from at most one, as in a step of the
// ring, all at the same time.
type schedule struct {
	rounds   [][]links.Edge
	busy     []links.Edge  // to be tried again
	pause    time.Duration // ... after this
	slots    []slot        // of the running round
	going    bool          // M2C 67 is out
	asked    time.Duration
	due      time.Duration
	giveUp   time.Duration
	joint    []links.Joint // links of one round that leave, or enter, the same host
	stage    stage
	alone    []links.Measured   // what links gave that were measured alone
	reached  map[wire.UUID]bool // peers with a link that was measured
	failed   map[wire.UUID]int  // links of a peer that could not be measured
	measured int
	done     int           // rounds
	skew     time.Duration // the largest between two starts of one round
}

// missing lists the edges that capable members of all groups have to measure,
// in an order in which whole rings of equal distance follow each other.
func (m *Machine) missing() []links.Edge {
	var out []links.Edge
	for _, g := range m.groups {
		ms := m.members(g)
		for k := 1; k < len(ms); k++ {
			for i, c := range ms {
				o := ms[(i+k)%len(ms)]
				if c.can.topology && !m.knows(c, o) {
					out = append(out, links.Edge{From: c.uuid, To: o.uuid})
				}
			}
		}
	}
	return out
}

// knows reports whether the link from c to o was measured, or asked for in
// vain, and is not outdated.
func (m *Machine) knows(c, o *client) bool {
	l := c.link(o)
	return l.known && (m.cfg.MaxLinkAge <= 0 || m.now < l.at+m.cfg.MaxLinkAge)
}

// scheduleProbes starts the calls for probes; unscheduled is the number of those
// that PCCL peers make by themselves.
func (m *Machine) scheduleProbes(unscheduled int) {
	m.probes = nil
	edges := m.missing()
	if len(edges) == 0 {
		return
	}
	m.probes = &schedule{
		rounds:  links.Matchings(edges),
		reached: map[wire.UUID]bool{}, failed: map[wire.UUID]int{},
		giveUp: m.now + busyPatience + time.Duration(unscheduled)*busyPerProbe,
	}
	m.nextProbes()
}

// nextProbes calls for the next round of probes, or ends them.
func (m *Machine) nextProbes() {
	p := m.probes
	p.slots, p.going = nil, false
	for len(p.slots) == 0 {
		if len(p.rounds) == 0 {
			if len(p.busy) == 0 || m.now >= p.giveUp {
				if p.rounds = m.nextStage(); len(p.rounds) > 0 {
					continue
				}
				m.endProbes()
				return
			}
			p.rounds, p.busy = links.Matchings(p.busy), nil
			p.pause = min(max(2*p.pause, firstBusyPause), busyPause)
			p.due = m.now + p.pause
			return
		}
		for _, e := range p.rounds[0] {
			c, o := m.uuids[e.From], m.uuids[e.To]
			if c == nil || o == nil || c.closing || o.closing || c.state != Optimizing || p.cutOff(e.From) || p.cutOff(e.To) {
				continue
			}
			p.slots = append(p.slots, slot{Edge: e})
			m.send(c, wire.M2CProbe{Round: m.numbers.probes + 1, To: o.uuid, Addr: o.at(o.listens.bandwidth)})
		}
		p.rounds = p.rounds[1:]
	}
	m.numbers.probes++
	p.asked, p.due = m.now, m.now+readyTime
}

func (m *Machine) endProbes() {
	p := m.probes
	m.probes = nil
	for _, c := range m.clients {
		if c.phase == Accepted && c.state == Optimizing && c.probe.scheduled {
			m.send(c, wire.M2CProbesDone{})
		}
		c.probe.scheduled = false
	}
	m.fact(Fact{Kind: "probes", Text: fmt.Sprintf("%d links measured in %d rounds, those of one round started within %v of each other",
		p.measured, p.done, p.skew.Round(time.Microsecond))})
}

// probeState takes a peer's word on its probe of the running round.
func (m *Machine) probeState(c *client, p wire.C2MProbeState) {
	s := m.probes
	if s == nil || p.Round != m.numbers.probes {
		return
	}
	i := slices.IndexFunc(s.slots, func(s slot) bool { return s.From == c.uuid })
	if i < 0 || s.slots[i].over() {
		return
	}
	slot := &s.slots[i]
	switch p.State {
	case wire.ProbeHeard:
		if rtt := m.now - s.asked; c.probe.rtt == 0 || rtt < c.probe.rtt {
			c.probe.rtt = rtt
		}
		return
	case wire.ProbeReady:
		if s.going { // it was given up
			return
		}
	case wire.ProbeMeasured:
		slot.late = time.Duration(p.Late) * time.Microsecond
		if s.stage > stageTogether {
			s.alone = append(s.alone, links.Measured{Edge: slot.Edge, Mbps: p.Mbps})
			if s.stage == stageShares {
				m.learn(c, slot.To, p.Mbps, p.Deviation)
			}
			break
		}
		m.learn(c, slot.To, p.Mbps, p.Deviation)
		slot.mbps = p.Mbps
		s.measured++
	case wire.ProbeBusy:
		s.busy = append(s.busy, slot.Edge)
	case wire.ProbeFailed:
	default:
		return
	}
	slot.state = p.State
	m.checkProbes()
}

// checkProbes goes on when the running round is ready, or over.
func (m *Machine) checkProbes() {
	s := m.probes
	if s == nil || len(s.slots) == 0 && s.due > m.now {
		return // the pause before busy targets are tried again
	}
	// Peers that left, and those whose target left, are not waited for.
	s.slots = slices.DeleteFunc(s.slots, func(x slot) bool {
		return !x.over() && (m.uuids[x.From] == nil || m.uuids[x.To] == nil)
	})
	over := true
	for _, x := range s.slots {
		if x.state < wire.ProbeReady {
			return
		}
		over = over && x.over()
	}
	switch {
	case over:
		m.roundProbed()
	case !s.going:
		m.goProbes()
	}
}

// goProbes lets all who are ready begin at the same time: those that the
// packet reaches sooner wait for the others.
func (m *Machine) goProbes() {
	s := m.probes
	s.going, s.due = true, m.now+sendTime
	var farthest time.Duration
	ready := func(x slot) *client {
		if c := m.uuids[x.From]; c != nil && x.state == wire.ProbeReady {
			return c
		}
		return nil
	}
	for _, x := range s.slots {
		if c := ready(x); c != nil {
			farthest = max(farthest, c.probe.rtt/2)
		}
	}
	for _, x := range s.slots {
		if c := ready(x); c != nil {
			m.send(c, wire.M2CProbeGo{Round: m.numbers.probes, Delay: uint32((farthest - c.probe.rtt/2).Microseconds())})
		}
	}
}

// book notes who was reached in the round that is over. Every probe of a peer
// that reaches no other lasts as long as connecting may, and all others wait for
// it: the rest of its links are left alone until the next optimization.
func (s *schedule) book() {
	failed := map[wire.UUID]int{}
	for _, x := range s.slots {
		for _, u := range []wire.UUID{x.From, x.To} {
			switch x.state {
			case wire.ProbeMeasured:
				s.reached[u], s.failed[u], failed[u] = true, 0, -len(s.slots)
			case wire.ProbeFailed:
				failed[u]++
			}
		}
	}
	for u, n := range failed {
		s.failed[u] += max(n, 0)
	}
}

// cutOffAfter is how many links in a row that fail say that a peer is cut off:
// one round has a link from it and one to it. One that was reached before may
// have been so unlucky as to be the partner of one that is cut off.
const (
	cutOffAfter     = 2
	cutOffLateAfter = 3
)

// cutOff reports whether u reaches no peer any more, as far as was tried.
func (s *schedule) cutOff(u wire.UUID) bool {
	if s.reached[u] {
		return s.failed[u] >= cutOffLateAfter
	}
	return s.failed[u] >= cutOffAfter
}

// roundProbed books a round and begins the next one.
func (m *Machine) roundProbed() {
	s := m.probes
	first, last, n := time.Duration(0), time.Duration(0), 0
	for _, x := range s.slots {
		if x.state != wire.ProbeMeasured {
			continue
		}
		if n == 0 || x.late < first {
			first = x.late
		}
		last = max(last, x.late)
		n++
	}
	if n > 0 {
		s.done++
		s.skew = max(s.skew, last-first)
	}
	if s.stage == stageTogether {
		s.book()
		m.bookJoint()
	}
	m.nextProbes()
}

// probesDue acts on the bound of the running round.
func (m *Machine) probesDue() {
	s := m.probes
	if s == nil || m.now < s.due {
		return
	}
	if len(s.slots) == 0 { // the pause is over
		m.nextProbes()
		return
	}
	ready := false
	for i := range s.slots {
		x := &s.slots[i]
		switch {
		case x.over():
		case !s.going && x.state == wire.ProbeReady:
			ready = true
		default:
			x.state = wire.ProbeFailed
			if c := m.uuids[x.From]; c != nil {
				m.about(c, "bandwidth", true, "peer %s did not measure its link in time", c.name())
			}
		}
	}
	if ready {
		m.goProbes()
		return
	}
	m.roundProbed()
}
