package fsm

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// beats are the signs of life of clients that have agreed on them.
type beats struct {
	on   bool
	next time.Duration // they are sent
	look time.Duration // after members that are away
	// dazed is until when members that have left a master which stood still try to come back.
	dazed time.Duration
	due   time.Duration // no client can be silent for too long before
}

// advance moves the clock. If the machine was not run for long after a
// deadline (the process was stopped, the machine slept), the missing signs of
// life are our own fault: all bounds are re-armed instead of dropping everybody.
func (m *Machine) advance(now time.Duration) {
	now = max(now, m.now)
	late := now - m.due
	m.now = now
	if !m.hasDue || m.cfg.HeartbeatInterval <= 0 {
		return
	}
	if late > 0 {
		m.overslept(late)
		for _, c := range m.away {
			c.place.awayUntil += late
			c.place.awaySince += late
		}
	}
	if late <= 2*m.cfg.HeartbeatInterval {
		// Shorter pauses add up: none of them counts as a client's silence.
		if late > 0 {
			for _, c := range m.clients {
				c.seen += late
			}
		}
		if late > 100*time.Millisecond { // what others have sent may be waiting, and they come another time
			m.round.membersAt += late + 500*time.Millisecond
			m.beats.dazed = max(m.beats.dazed, now+500*time.Millisecond)
		}
		return
	}
	for _, c := range m.silent {
		c.since += late
	}
	for _, c := range m.away { // who tries to come back may need another try
		c.place.awayUntil = max(c.place.awayUntil, now+m.cfg.Linger)
	}
	for _, c := range m.clients {
		c.seen = now
		c.wait.since += late
		c.progress.at += late
		c.pending.wait.since += late
	}
	for _, g := range m.groups {
		for t := range g.tags.all() {
			t.wait.since += late
			t.ending.since += late
		}
	}
	for _, g := range m.groups {
		if g.change != nil {
			g.change.due += late
		}
		g.mesh.due += late
	}
	for _, f := range m.trials.open {
		f.due += late + m.cfg.HeartbeatInterval
	}
	// One interval more: reports that were sent meanwhile have to be read.
	m.round.since = min(m.round.since+late+m.cfg.HeartbeatInterval, now)
	m.round.membersAt += late + m.cfg.HeartbeatInterval
	if m.probes != nil {
		m.probes.due += late
		m.probes.giveUp += late
	}
	m.voteDue = max(m.voteDue, now)
	m.beats.next, m.beats.dazed = now, now+time.Second
	m.fact(Fact{Kind: "paused", Warn: true, Text: fmt.Sprintf("the master itself stood still for %v; deadlines start again", late.Round(time.Millisecond))})
}

// overslept has a recovery make up for the time that this master stood still.
func (m *Machine) overslept(late time.Duration) {
	const (
		reading = 25 * time.Millisecond  // what a peer says may be waiting to be read
		away    = 100 * time.Millisecond // ... or it comes another time
		most    = 10                     // of a machine that is always late
	)
	r := &m.recovery
	r.since += late
	for _, b := range r.back {
		if b.since += late; late > reading {
			b.since = m.now
		}
		if b.c.seen = min(b.c.seen+late, m.now); late > 2*m.cfg.HeartbeatInterval {
			b.c.seen = m.now
		}
	}
	if r.on && late > away && r.slept < most {
		least := time.Second
		if r.again {
			least = m.cfg.Linger
		}
		r.slept++
		r.since = max(r.since, m.now+least-m.grace(m.survey()))
	}
}

// timers acts on every bound that was reached.
func (m *Machine) timers() {
	if m.solving.on && m.now >= m.solving.due {
		m.fact(Fact{Kind: "ring", Warn: true, Text: "the solver did not answer in time, rings kept"})
		m.optimized()
	}
	m.probesDue()
	m.changesDue()
	m.meshesDue()
	if m.cfg.RegisterTimeout > 0 {
		for _, c := range m.silent {
			if m.now >= c.since+m.cfg.RegisterTimeout {
				m.close(c, "dropped", fmt.Sprintf("not registered within %v", m.cfg.RegisterTimeout))
			}
		}
	}
	if at, due := m.recoveryDue(); due && m.now >= at {
		m.recovery.news = true
	}
	m.commitStates()
	m.awayDue()
	m.giveUpLone()
	m.dropSilent()
	m.payTopology()
	m.hurryRound()
	m.preflightsDue()
	m.triesDue()
	m.rescuesDue()
	m.hurry()
	if m.beats.on && m.now >= m.beats.next {
		m.beats.next = m.now + m.cfg.HeartbeatInterval
		m.beats.on = false
		for _, b := range m.recovery.back {
			if b.c.can.heartbeat {
				m.beats.on = true
				m.send(b.c, wire.M2CHeartbeat{})
			}
		}
		for _, c := range m.clients {
			if c.can.heartbeat && !c.closing {
				m.beats.on = true
				m.send(c, wire.M2CHeartbeat{})
			}
		}
	}
}

// maxDrops bounds how many are dropped for their silence in one step: every one
// that stays is told of every one that goes.
const maxDrops = 32

// dropSilent closes who was silent for too long. Signs of life only move that
// on, so it looks at all clients no more often than the earliest of them was
// due when it last did.
func (m *Machine) dropSilent() {
	if !m.beats.on || m.now < m.beats.due {
		return
	}
	m.beats.due = m.now + m.cfg.HeartbeatTimeout
	dropped := 0
	for _, b := range slices.Clone(m.recovery.back) {
		if c := b.c; c.can.heartbeat && m.now >= c.seen+m.cfg.HeartbeatTimeout {
			m.close(c, "dropped", fmt.Sprintf("silent for %v", (m.now-c.seen).Round(time.Millisecond)))
		}
	}
	for _, c := range m.clients {
		switch {
		case !c.can.heartbeat:
		case dropped == maxDrops:
			m.beats.due = m.now // go on with the next step
			return
		case m.now >= c.seen+m.cfg.HeartbeatTimeout:
			m.close(c, "dropped", fmt.Sprintf("silent for %v", (m.now-c.seen).Round(time.Millisecond)))
			dropped++
		default:
			m.beats.due = min(m.beats.due, c.seen+m.cfg.HeartbeatTimeout)
		}
	}
}

// nextDue returns the earliest bound.
func (m *Machine) nextDue() (time.Duration, bool) {
	var due time.Duration
	has := false
	earliest := func(t time.Duration) {
		if !has || t < due {
			due, has = t, true
		}
	}
	if m.recovery.on && m.cfg.HeartbeatInterval > 0 {
		earliest(m.now + m.cfg.HeartbeatInterval/4) // it has to see that it stood still
	}
	if m.solving.on {
		earliest(m.solving.due)
	}
	if m.probes != nil {
		earliest(m.probes.due)
	}
	if m.rescueBy > 0 {
		earliest(m.rescueBy)
	}
	if m.census.changing {
		m.census.changing = false
		for _, g := range m.inhabited() {
			if at, due := m.changeDue(g); due {
				m.census.changing = true
				earliest(at)
			}
			if g.mesh.state == meshPreparing {
				m.census.changing = true
				earliest(g.mesh.due)
			}
		}
	}
	if at, due := m.recoveryDue(); due {
		earliest(at)
	}
	if at, due := m.statesDue(); due {
		earliest(at)
	}
	if m.cfg.RegisterTimeout > 0 {
		// Those that are closed may have to wait for a confirmation until they are out.
		if i := slices.IndexFunc(m.silent, func(c *client) bool { return !c.closing }); i >= 0 {
			earliest(m.silent[i].since + m.cfg.RegisterTimeout)
		}
	}
	for _, c := range m.away {
		earliest(c.place.awayUntil)
	}
	if len(m.away) > 0 {
		earliest(m.beats.look)
	}
	if at, due := m.topologyDue(); due {
		earliest(at)
	}
	if m.beats.on {
		earliest(m.beats.due)
		earliest(m.beats.next)
	}
	for _, f := range m.trials.open {
		earliest(f.due)
	}
	if m.trials.at > 0 {
		earliest(m.trials.at)
	}
	if m.trials.voteBy > 0 {
		earliest(m.trials.voteBy)
	}
	if at, due := m.roundDue(); due {
		earliest(at)
	}
	if m.voteBound() > 0 && len(m.clients) > 0 {
		earliest(m.voteDue)
	}
	return due, has
}
