package fsm

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/wire"
)

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
	if late <= 2*m.cfg.HeartbeatInterval {
		// Shorter pauses add up: none of them counts as a client's silence.
		for _, c := range m.clients {
			c.seen += max(late, 0)
		}
		return
	}
	for _, c := range m.silent {
		c.since += late
	}
	for _, c := range m.clients {
		c.seen = now
		c.waitSince += late
		c.pendingSince += late
	}
	for _, g := range m.groups {
		for _, t := range g.tags {
			t.since += late
		}
	}
	for _, g := range m.groups {
		if g.change != nil {
			g.change.due += late
		}
	}
	m.round.since += late
	if m.probes != nil {
		m.probes.due += late
		m.probes.giveUp += late
	}
	m.voteDue = max(m.voteDue, now)
	m.nextBeat = now
	m.fact(Fact{Kind: "paused", Warn: true, Text: fmt.Sprintf("the master itself stood still for %v, deadlines start anew", late.Round(time.Millisecond))})
}

// openVote is a vote that somebody waits in and somebody holds up.
type openVote struct {
	what   string
	group  *group // nil: all groups
	since  time.Duration
	warned *bool
	late   []*client // who could vote and did not
}

// openVotes lists the votes that wait for clients which are free to vote.
func (m *Machine) openVotes() []openVote {
	var votes []openVote
	add := func(what string, g *group, waits func(*client) bool, since func(*client) (time.Duration, *bool)) {
		v := openVote{what: what, group: g}
		for _, c := range m.clients {
			if c.phase != Accepted || c.closing || (g != nil && c.group != g) {
				continue
			}
			if waits(c) {
				if t, w := since(c); v.warned == nil || t < v.since {
					v.since, v.warned = t, w
				}
			} else {
				v.late = append(v.late, c)
			}
		}
		if v.warned == nil || len(v.late) == 0 {
			return
		}
		// Whoever works or waits in a vote of its own is late for a reason. If
		// nobody is free, the votes conflict, and the oldest one stands.
		var free, stuck []*client
		for _, c := range v.late {
			switch {
			case c.state == Idle || c.state == ConnectFailed || c.state == Collective && !c.performing():
				free = append(free, c)
			case c.state.votes() && c.waitSince >= v.since:
				stuck = append(stuck, c)
			}
		}
		v.late = free
		if len(free) == 0 {
			v.late = stuck
		}
		if len(v.late) > 0 {
			votes = append(votes, v)
		}
	}
	wait := func(c *client) (time.Duration, *bool) { return c.waitSince, &c.warned }
	in := func(s State) func(*client) bool { return func(c *client) bool { return c.state == s } }
	add("to accept newcomers", nil, in(VoteAccept), wait)
	add("to optimize the topology", nil, in(VoteOptimize), wait)
	// A group with gopccl ends waits for its own members only.
	var own []*group
	for _, g := range m.groups {
		if anyNative(m.members(g)) {
			own = append(own, g)
			add("to establish connections", g, in(VoteEstablish), wait)
		}
	}
	add("to establish connections", nil, func(c *client) bool {
		return c.state == VoteEstablish && !slices.Contains(own, c.group)
	}, wait)
	add("whether peers are pending", nil, func(c *client) bool { return c.pending },
		func(c *client) (time.Duration, *bool) { return c.pendingSince, &c.pendingWarned })
	for _, g := range m.groups {
		add("to synchronise the shared state", g, in(VoteSync), wait)
		for _, t := range g.tags {
			if len(m.performers(g, t)) > 0 {
				continue
			}
			add(fmt.Sprintf("to start collective %d", t.tag), g, func(c *client) bool { return c.op(t.tag) != nil },
				func(*client) (time.Duration, *bool) { return t.since, &t.warned })
		}
	}
	return votes
}

func (c *client) performing() bool {
	for _, o := range c.ops {
		if o.state == Perform {
			return true
		}
	}
	return false
}

// timers acts on every bound that was reached.
func (m *Machine) timers() {
	if m.solving && m.now >= m.solveEnd {
		m.fact(Fact{Kind: "ring", Warn: true, Text: "the solver did not answer in time, rings kept"})
		m.optimized()
	}
	m.probesDue()
	m.changesDue()
	if m.cfg.RegisterTimeout > 0 {
		for _, c := range m.silent {
			if m.now >= c.since+m.cfg.RegisterTimeout {
				m.close(c, "dropped", fmt.Sprintf("not registered within %v", m.cfg.RegisterTimeout))
			}
		}
	}
	for _, c := range m.clients {
		if c.beats && m.now >= c.seen+m.cfg.HeartbeatTimeout {
			m.close(c, "dropped", fmt.Sprintf("silent for %v", (m.now-c.seen).Round(time.Millisecond)))
		}
	}
	if m.round.active && m.cfg.RoundTimeout > 0 && m.now >= m.round.since+m.cfg.RoundTimeout {
		for _, c := range m.clients {
			if c.inRound && c.state == Connecting {
				m.close(c, "dropped", fmt.Sprintf("connections not established within %v", m.cfg.RoundTimeout))
			}
		}
	}
	m.hurry()
	if m.beating && m.now >= m.nextBeat {
		m.nextBeat = m.now + m.cfg.HeartbeatInterval
		m.beating = false
		for _, c := range m.clients {
			if c.beats && !c.closing {
				m.beating = true
				m.send(c, wire.M2CHeartbeat{})
			}
		}
	}
}

// patience is the shortest bound on votes, 0 if there is none.
func (m *Machine) patience() time.Duration {
	switch {
	case m.cfg.VoteTimeout <= 0:
		return max(m.cfg.WarnVoteAfter, 0)
	case m.cfg.WarnVoteAfter <= 0:
		return m.cfg.VoteTimeout
	}
	return min(m.cfg.VoteTimeout, m.cfg.WarnVoteAfter)
}

// hurry names, and in the end drops, who leaves the votes of others open. It
// looks at all votes, so it runs only when the first of them can be due:
// voteDue, or a full bound later for votes that are yet to begin.
func (m *Machine) hurry() {
	if m.patience() <= 0 || m.now < m.voteDue {
		return
	}
	m.voteDue = m.now + m.patience()
	for _, v := range m.openVotes() {
		var names []string
		for _, c := range v.late {
			names = append(names, c.name())
		}
		if m.cfg.VoteTimeout > 0 && m.now >= v.since+m.cfg.VoteTimeout {
			for _, c := range v.late {
				m.close(c, "dropped", fmt.Sprintf("did not vote %s within %v", v.what, m.cfg.VoteTimeout))
			}
			continue
		}
		if m.cfg.WarnVoteAfter > 0 && !*v.warned && m.now >= v.since+m.cfg.WarnVoteAfter {
			*v.warned = true
			f := Fact{Kind: "waiting-for", Warn: true, Text: fmt.Sprintf("vote %s open for %v, missing: %s",
				v.what, (m.now - v.since).Round(time.Millisecond), strings.Join(names, ", "))}
			if v.group != nil {
				f.Group = v.group.id
			}
			m.fact(f)
		}
		if m.cfg.VoteTimeout > 0 {
			m.voteDue = min(m.voteDue, v.since+m.cfg.VoteTimeout)
		}
		if m.cfg.WarnVoteAfter > 0 && !*v.warned {
			m.voteDue = min(m.voteDue, v.since+m.cfg.WarnVoteAfter)
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
	if m.solving {
		earliest(m.solveEnd)
	}
	if m.probes != nil {
		earliest(m.probes.due)
	}
	for _, g := range m.groups {
		if at, due := m.changeDue(g); due {
			earliest(at)
		}
	}
	if m.cfg.RegisterTimeout > 0 && len(m.silent) > 0 {
		for _, c := range m.silent {
			earliest(c.since + m.cfg.RegisterTimeout)
		}
	}
	for _, c := range m.clients {
		if c.beats {
			earliest(c.seen + m.cfg.HeartbeatTimeout)
		}
	}
	if m.beating {
		earliest(m.nextBeat)
	}
	if m.round.active && m.cfg.RoundTimeout > 0 {
		earliest(m.round.since + m.cfg.RoundTimeout)
	}
	if m.patience() > 0 && len(m.clients) > 0 {
		earliest(m.voteDue)
	}
	return due, has
}
