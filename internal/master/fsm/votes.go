package fsm

import (
	"fmt"
	"strings"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

const (
	// mostNames bounds the names in one line of the log.
	mostNames = 16
	// mostLooks bounds the clients that are looked at for the collectives of a
	// group at once; the rest of its collectives is looked at lookPause later.
	mostLooks = 1 << 16
	lookPause = time.Second
	// movedLately is how old the news of moved bytes may be for a peer to be moving.
	movedLately = 5 * time.Second
)

// openVote is a vote, or the end of a phase, that some clients wait in and others
// hold up.
type openVote struct {
	what  string
	end   bool      // of a phase
	data  bool      // a phase that moves bytes of tensors
	group *group    // nil: all groups
	wait  *wait     // of the first that waits in it
	late  []*client // who could go on and did not
}

// limit is the bound on v, 0 if there is none.
func (m *Machine) limit(v *openVote) time.Duration {
	if v.end {
		return m.cfg.PhaseTimeout
	}
	return m.cfg.VoteTimeout
}

// voteBound is the shortest bound on votes and phases, 0 if there is none.
func (m *Machine) voteBound() time.Duration {
	least := time.Duration(0)
	for _, d := range []time.Duration{m.cfg.VoteTimeout, m.cfg.WarnVoteAfter, m.cfg.PhaseTimeout} {
		if d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}

// dueAt moves the next look at the votes to t if that is earlier.
func (m *Machine) dueAt(t time.Duration) { m.voteDue = min(m.voteDue, t) }

// ripe reports whether v, of which the wait is known, has reached a
// bound; if not, it sees to it that the votes are looked at when it does.
func (m *Machine) ripe(v *openVote) bool {
	due, any := time.Duration(0), false
	if m.cfg.WarnVoteAfter > 0 && !v.wait.warned {
		due, any = v.wait.since+m.cfg.WarnVoteAfter, true
	}
	if l := m.limit(v); l > 0 && (!any || v.wait.since+l < due) {
		due, any = v.wait.since+l, true
	}
	switch {
	case !any:
		return false
	case m.now < due:
		m.dueAt(due)
		return false
	}
	return true
}

// voteScan looks for one kind of vote or end among clients.
type voteScan struct {
	m     *Machine
	found []openVote
}

// waitOf is the wait of c that a vote is about.
type waitOf func(c *client) *wait

func inState(c *client) *wait { return &c.wait }

// add looks among cs for those who wait, and if they do so for too long for
// those who are late: by holds, or for nil by what keeps a client from voting.
func (s *voteScan) add(v openVote, cs []*client, inVote func(*client) bool, of waitOf, holds func(*client) bool) {
	for _, c := range cs {
		if c.phase == Accepted && !c.closing && inVote(c) {
			if w := of(c); v.wait == nil || w.since < v.wait.since {
				v.wait = w
			}
		}
	}
	if v.wait == nil || !s.m.ripe(&v) {
		return
	}
	var free, stuck []*client
	for _, c := range cs {
		switch {
		case c.phase != Accepted || c.closing || inVote(c):
		case holds != nil:
			if holds(c) {
				free = append(free, c)
			}
		// A client that works or waits in a vote of its own is late for a reason. If
		// none is free, the votes conflict, and the oldest one stands.
		case c.state == Idle || c.state == ConnectFailed || c.state == Collective && !c.performing():
			free = append(free, c)
		case c.state.votes() && c.wait.since >= v.wait.since:
			stuck = append(stuck, c)
		}
	}
	if v.late = free; len(free) == 0 {
		v.late = stuck
	}
	if len(v.late) > 0 {
		s.found = append(s.found, v)
	}
}

// openVotes lists the votes, and the phases about to end, that wait for clients which
// are free to go on, and have reached a bound.
func (m *Machine) openVotes() []openVote {
	s := &voteScan{m: m}
	in := func(state State) func(*client) bool { return func(c *client) bool { return c.state == state } }
	s.add(openVote{what: "to accept newcomers"}, m.clients, func(c *client) bool {
		return c.state == VoteAccept && !c.group.round.again
	}, inState, nil)
	s.add(openVote{what: "to optimize the topology"}, m.clients, in(VoteOptimize), inState, nil)
	// A group with gopccl peers, or that repeats a round, waits for its own members only.
	for _, g := range m.inhabited() {
		if g.round.again {
			s.add(openVote{what: "to repeat the round", group: g}, m.members(g), func(c *client) bool { return party(c.state) == 0 }, inState, nil)
		} else if g.natives > 0 {
			s.add(openVote{what: "to establish connections", group: g}, m.members(g), in(VoteEstablish), inState, nil)
		}
	}
	s.add(openVote{what: "to establish connections"}, m.clients, func(c *client) bool {
		return c.state == VoteEstablish && c.group.natives == 0 && !c.group.round.again
	}, inState, nil)
	s.add(openVote{what: "whether peers are pending"}, m.clients, func(c *client) bool { return c.pending.open },
		func(c *client) *wait { return &c.pending.wait }, nil)
	if m.probes == nil { // otherwise they wait for each other's probes, which have bounds of their own
		s.add(openVote{what: "the optimization", end: true}, m.clients, in(VoteOptimizeDone), inState, in(Optimizing))
	}
	for _, g := range m.inhabited() {
		ms := m.members(g)
		s.add(openVote{what: "to synchronise the shared state", group: g}, ms, in(VoteSync), inState, nil)
		s.add(openVote{what: "the synchronisation", end: true, data: true, group: g}, ms, in(VoteSyncDone), inState,
			func(c *client) bool { return c.state == Distribute || c.state == Request })
		s.tags(g, ms)
	}
	return s.found
}

// tags looks for the collectives of g that are not voted for, and not ended.
func (s *voteScan) tags(g *group, ms []*client) {
	looks := mostLooks
	for t := range g.tags.all() {
		if looks -= len(ms); looks < 0 {
			s.m.dueAt(s.m.now + lookPause)
			return
		}
		in := func(state OpState) func(*client) bool {
			return func(c *client) bool { o := c.op(t.tag); return o != nil && o.state == state }
		}
		if t.runs() == 0 {
			s.add(openVote{what: fmt.Sprintf("to start collective %d", t.tag), group: g}, ms, in(VoteInit),
				func(*client) *wait { return &t.wait }, nil)
		} else if t.ops[VoteComplete] > 0 {
			s.add(openVote{what: fmt.Sprintf("collective %d", t.tag), end: true, data: true, group: g}, ms, in(VoteComplete),
				func(*client) *wait { return &t.ending }, in(Perform))
		}
	}
}

// standstill is how long c has moved nothing of the phase whose end others wait for
// some time; without a word from it, since they wait.
func (m *Machine) standstill(c *client, v *openVote) time.Duration {
	if !v.data || !c.progress.told {
		return m.now - v.wait.since
	}
	return m.now - max(c.progress.at, v.wait.since)
}

// names lists those who are late, with what is known of their progress.
func (m *Machine) names(v *openVote) string {
	var names []string
	for i, c := range v.late {
		if i == mostNames {
			names = append(names, fmt.Sprintf("and %d more", len(v.late)-i))
			break
		}
		name := c.name()
		if v.end && v.data && c.progress.told {
			if d := m.now - c.progress.at; d < movedLately {
				name += " (still moving)"
			} else {
				name += fmt.Sprintf(" (moved nothing for %v)", d.Round(time.Second))
			}
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// hurry names, and in the end drops, clients that leave the votes of others or the
// end of a phase open. It looks at all of them, so it runs only when the first can
// be due: voteDue, or a full bound later for what is yet to begin.
func (m *Machine) hurry() {
	if m.voteBound() <= 0 || m.now < m.voteDue {
		return
	}
	m.voteDue = m.now + m.voteBound()
	for _, v := range m.openVotes() {
		if m.dropHolders(&v) {
			continue
		}
		if m.cfg.WarnVoteAfter > 0 && !v.wait.warned && m.now >= v.wait.since+m.cfg.WarnVoteAfter {
			v.wait.warned = true
			what := "vote " + v.what
			if v.end {
				what = "the end of " + v.what
			}
			text := fmt.Sprintf("%s open for %v, missing: %s", what, (m.now - v.wait.since).Round(time.Millisecond), m.names(&v))
			if v.group != nil {
				m.tell(v.group, "waiting-for", true, "%s", text)
			} else {
				m.fact(Fact{Kind: "waiting-for", Warn: true, Text: text})
			}
		}
		if at := v.wait.since + m.limit(&v); at > m.now {
			m.dueAt(at)
		}
	}
}

// dropHolders drops those who are late by more than the bound, and reports whether
// there are any. A client that still moves bytes of the phase is slow, and not late.
func (m *Machine) dropHolders(v *openVote) bool {
	limit, found := m.limit(v), false
	if limit <= 0 || m.now < v.wait.since+limit {
		return false
	}
	for _, c := range v.late {
		stood := m.standstill(c, v)
		switch {
		case stood < limit:
			m.dueAt(m.now + limit - stood)
			continue
		case v.end:
			m.close(c, "dropped", fmt.Sprintf("did not end %s within %v", v.what, limit))
		default:
			m.close(c, "dropped", fmt.Sprintf("did not vote %s within %v", v.what, limit))
		}
		found = true
	}
	return found
}

// beat takes a sign of life that may say how many bytes the peer has moved.
func (m *Machine) beat(c *client, p wire.C2MHeartbeat) {
	if !p.Reports {
		return
	}
	if !c.progress.told || p.Moved != c.progress.bytes {
		c.progress.bytes, c.progress.at = p.Moved, m.now
	}
	c.progress.told = true
}
