package fsm

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gopccl/gopccl/internal/wire"
)

// standing is how a vote's revision relates to the expected one.
type standing int8

const (
	match standing = iota
	outdated
)

// syncVote is a client's part of a shared state synchronisation.
type syncVote struct {
	seq      uint64 // order of the votes
	revision uint64
	strategy wire.Strategy
	entries  []wire.StateEntry
	torn     bool // a mixture of two states: it only receives
	standing standing
	holds    bool   // the client has the state that was elected
	has      uint64 // the revision that was expected behind the last state that it had, 0: none
}

// candidate reports whether what c voted with may be elected.
func (c *client) candidate() bool { return c.vote.strategy != wire.ReceiveOnly && !c.vote.torn }

// sharedState is how far a group has come with its shared state.
type sharedState struct {
	next    uint64       // the revision that it expects, 0: none yet
	print   *Fingerprint // of the state of the last synchronisation that succeeded
	resumes bool         // the group was empty, and has synchronised nothing since

	electing    bool         // a state is handed out: M2C 7 went out, M2C 8 did not
	prev        uint64       // next before that
	chosen      *Fingerprint // of the state that was elected last
	firstHolder int          // rotates the first distributor
}

// giveUp forgets which revision is expected.
func (s *sharedState) giveUp() { s.next, s.prev, s.print, s.resumes = 0, 0, nil, false }

// mask is one candidate state with the votes for it.
type mask struct {
	entries []wire.StateEntry
	votes   int
	last    standing // of the last voter
}

func (k mask) priority() int {
	if k.last == match {
		return 1
	}
	return -2
}

// together reports whether the votes are judged together, and not each by the
// expected revision: in a group that has none yet (quirk Q70), and in one that
// was empty.
func (m *Machine) together(g *group) bool {
	return (g.state.next == 0 || g.state.resumes) && !m.cfg.PCCLRevisionRule
}

// voteSync takes a vote (control spec, section 9.1). The right to vote was
// checked before the revision may change anything (quirk Q48).
func (m *Machine) voteSync(c *client, p wire.C2MSyncSharedState) {
	g := c.group
	v := syncVote{seq: m.numbers.votes, revision: p.Revision, strategy: p.Strategy, entries: p.Entries, torn: p.Ext.Torn, has: c.vote.has}
	m.numbers.votes++
	switch {
	case v.torn:
		v.standing = outdated // whatever its revision says
	case m.together(g):
	case g.state.next == 0:
		g.state.next = p.Revision
	case p.Revision < g.state.next, c.place.apart:
		v.standing = outdated
	case p.Revision > g.state.next:
		m.kick(c, "shared state revision %d, but the next one is %d", p.Revision, g.state.next)
		return
	}
	c.vote = v
	c.set(VoteSync, m.now)
	m.checkSync(g)
}

func (m *Machine) checkSync(g *group) {
	if ms := m.members(g); allIn(ms, VoteSync) {
		m.elect(g, ms)
	}
}

// elect decides which state the group adopts (control spec, section 9.2).
// Only members that are still there have a say (quirk Q12).
func (m *Machine) elect(g *group, ms []*client) {
	elected, offered := m.standings(g, ms)
	if !offered && m.cfg.BeginAnew && !m.cfg.PCCLRevisionRule && g.state.next > 0 && slices.ContainsFunc(ms, (*client).candidate) {
		m.giveUpState(g, "no peer offers it")
		elected, offered = m.standings(g, ms)
	}
	winner, ok := m.winner(g, ms, offered)
	if !ok {
		m.nobody(g, ms)
		return
	}
	dirty := make([][]wire.StateEntry, len(ms))
	for i, c := range ms {
		var differs string
		dirty[i], differs = compare(c.vote.entries, winner)
		if differs != "" && c.vote.standing == match {
			m.kick(c, "shared state does not fit the elected one: %s", differs)
			return // the election is run again without it
		}
	}
	m.numbers.decisions++
	g.state.prev, g.state.chosen = g.state.next, printOf(winner)
	holders, why := 0, ""
	for i, c := range ms {
		if c.vote.standing == match && len(dirty[i]) == 0 {
			c.set(Distribute, m.now)
			c.vote.holds = true
			holders++
		} else {
			c.set(Request, m.now)
			c.vote.holds = false
		}
	}
	if holders > 0 || m.cfg.PCCLRevisionRule {
		g.state.next = elected + 1
		if len(ms) > 1 {
			m.recovery.youth.grow()
		}
	} else {
		why = g.state.missing()
		m.fact(Fact{Kind: "state-lost", Warn: true, Group: g.id, Text: why})
	}
	g.state.electing = holders > 0 // otherwise nothing is handed out that could get lost
	m.enforce(ms, why)
	m.distribute(g, ms, dirty, why, elected+1)
	m.tell(g, "sync", false, "shared state of revision %d elected, %d of %d members hold it", elected, holders, len(ms))
}

// standings says which revision is to be elected, and whether a member offers it.
func (m *Machine) standings(g *group, ms []*client) (elected uint64, offered bool) {
	switch {
	case !m.together(g):
		return g.state.next, slices.ContainsFunc(ms, func(c *client) bool { return c.vote.standing == match && c.candidate() })
	case g.state.next == 0:
		return judge(ms)
	}
	return g.state.judgeResumed(ms)
}

// nobody ends an election without a candidate (quirk Q71). Where states are
// torn, gopccl peers are told so: another peer, or a checkpoint, helps.
func (m *Machine) nobody(g *group, ms []*client) {
	torn := 0
	for _, c := range ms {
		if c.vote.torn {
			torn++
		}
	}
	why := fmt.Sprintf("no peer of group %d offers a shared state", g.id)
	if torn > 0 {
		why += fmt.Sprintf(": those of %d of %d members are mixtures of two states, which transfers that failed have left. "+
			"Load a checkpoint, or let a peer join that has a sound state", torn, len(ms))
		m.fact(Fact{Kind: "state-lost", Warn: true, Group: g.id, Text: why})
	}
	m.numbers.decisions++
	for _, c := range ms {
		if torn == 0 || !c.native {
			m.kick(c, "%s", why)
			continue
		}
		c.set(Request, m.now)
		c.vote.holds = false
		p := wire.M2CSyncSharedState{IsOutdated: true, Distributor: noAddr, Ext: wire.Ext{Reason: why}}
		if c.can.resume {
			p.Ext.Resuming.Decision = m.numbers.decisions
		}
		m.send(c, p)
	}
}

// giveUpState forgets the revision that g expects: the next election is judged
// like the first one.
func (m *Machine) giveUpState(g *group, why string) {
	m.fact(Fact{Kind: "state-reset", Warn: true, Group: g.id, Text: fmt.Sprintf(
		"shared state of revision %d given up: %s; the group starts over with the highest revision offered", g.state.next, why)})
	g.state.giveUp()
}

// resetState does so for an operator. Votes that are in already are judged anew.
func (m *Machine) resetState(id uint32) {
	if i := slices.IndexFunc(m.ended, func(e ended) bool { return e.id == id }); i >= 0 {
		m.giveUpState(&group{id: id, state: sharedState{next: m.ended[i].next}}, "an operator asked for it")
		m.ended = slices.Delete(m.ended, i, i+1)
		m.commitReset(id)
		return
	}
	if r := &m.recovery; r.on {
		m.resetRecovering(r, id)
		return
	}
	i := slices.IndexFunc(m.groups, func(g *group) bool { return g.id == id })
	if i < 0 || m.groups[i].state.next == 0 {
		m.fact(Fact{Kind: "state-reset", Group: id, Text: "an operator gives up the shared state, but the group expects none"})
		return
	}
	m.giveUpState(m.groups[i], "an operator asked for it")
	m.commitReset(id)
}

// resetRecovering is resetState while there are no groups. What members say that come to
// another master is not known yet.
func (m *Machine) resetRecovering(r *recovery, id uint32) {
	i := slices.IndexFunc(r.states, func(s groupState) bool { return s.id == id && s.state.next != 0 })
	if i < 0 {
		m.fact(Fact{Kind: "state-reset", Warn: true, Group: id, Text: "an operator gives up the shared state, which is not known before all members have said what they hold: ask again"})
		return
	}
	g := &group{id: id, state: r.states[i].state}
	m.giveUpState(g, "an operator asked for it")
	r.states[i].state = g.state
	m.commitReset(id)
}

// lostState takes an operator's choice for the states that are lost from now on.
func (m *Machine) lostState(anew bool) {
	if m.cfg.BeginAnew == anew {
		return
	}
	m.cfg.BeginAnew = anew
	text := "an operator lets groups wait for a lost shared state"
	if anew {
		text = "an operator lets groups whose shared state is lost start over"
	}
	m.fact(Fact{Kind: "state-reset", Warn: anew, Text: text})
}

// judge sets the standing of all votes of a first election: the highest
// revision among the states that may be handed out counts.
func judge(ms []*client) (highest uint64, offered bool) {
	for _, c := range ms {
		if c.candidate() {
			highest, offered = max(highest, c.vote.revision), true
		}
	}
	for _, c := range ms {
		c.vote.standing = match
		if c.vote.revision != highest || c.vote.torn {
			c.vote.standing = outdated
		}
	}
	return highest, offered
}

// winner counts the candidate states in the order of the votes. Of equal ones
// the one whose first vote came last wins.
func (m *Machine) winner(g *group, ms []*client, offered bool) ([]wire.StateEntry, bool) {
	voters := slices.Clone(ms)
	slices.SortFunc(voters, func(a, b *client) int {
		if a.vote.seq < b.vote.seq {
			return -1
		}
		return 1
	})
	var masks []mask
	for _, c := range voters {
		v := &c.vote
		if !c.candidate() || m.together(g) && offered && v.standing != match {
			continue
		}
		i := slices.IndexFunc(masks, func(k mask) bool { return slices.Equal(k.entries, v.entries) })
		if i < 0 {
			i = len(masks)
			masks = append(masks, mask{entries: v.entries})
		}
		masks[i].votes++
		masks[i].last = v.standing
	}
	best := -1
	for i, k := range masks {
		if best < 0 || k.priority() > masks[best].priority() ||
			k.priority() == masks[best].priority() && k.votes >= masks[best].votes {
			best = i
		}
	}
	if best < 0 || len(masks[best].entries) == 0 {
		return nil, false
	}
	return masks[best].entries, true
}

// compare returns the winner's entries whose content differs, up to the first
// entry that does not fit at all, and what does not fit.
func compare(have, winner []wire.StateEntry) (dirty []wire.StateEntry, differs string) {
	for i, w := range winner {
		if i >= len(have) {
			return dirty, fmt.Sprintf("entry %d (%.64q) is missing", i, w.Key)
		}
		h := have[i]
		if h.Key != w.Key || h.AllowInequality != w.AllowInequality || h.DType != w.DType || h.HashType != w.HashType {
			return dirty, fmt.Sprintf("entry %d is %.64q of %v instead of %.64q of %v", i, h.Key, h.DType, w.Key, w.DType)
		}
		if h.Hash != w.Hash {
			dirty = append(dirty, w)
		}
	}
	return dirty, ""
}

// enforce applies the strategies (control spec, section 9.2, step 7). why is
// the reason that a sender has to hear if there is no holder.
func (m *Machine) enforce(ms []*client, why string) {
	popular := slices.ContainsFunc(ms, func(c *client) bool { return c.vote.strategy == wire.EnforcePopular })
	for _, c := range ms {
		switch {
		case c.vote.strategy == wire.SendOnly && c.state == Request:
			if why == "" {
				why = "another shared state was elected"
			}
			m.kick(c, "sends only, but %s", why)
		case popular && c.vote.strategy != wire.EnforcePopular:
			m.kick(c, "strategy %d in a group where others enforce the popular state", c.vote.strategy)
		}
	}
}

// distribute tells every member the verdict (control spec, section 9.2, step
// 8). Requesters start at different holders; a receive-only peer hands out
// only what no other has (quirk Q14). why tells those who can read it why there is
// no holder.
func (m *Machine) distribute(g *group, ms []*client, dirty [][]wire.StateEntry, why string, next uint64) {
	var holders, last []netip.AddrPort
	for _, c := range ms {
		switch {
		case c.state != Distribute || c.closing:
		case c.vote.strategy == wire.ReceiveOnly:
			last = append(last, c.at(c.listens.state))
		default:
			holders = append(holders, c.at(c.listens.state))
		}
	}
	if len(holders) == 0 {
		holders = last
	}
	for i, c := range ms {
		p := wire.M2CSyncSharedState{Distributor: noAddr}
		if c.can.resume {
			p.Ext.Resuming = wire.Resuming{Decision: m.numbers.decisions, NextRevision: next}
		}
		if c.state == Request {
			p.IsOutdated = true
			for _, e := range dirty[i] {
				p.Keys = append(p.Keys, e.Key)
				p.Hashes = append(p.Hashes, e.Hash)
				p.HashTypes = append(p.HashTypes, e.HashType)
			}
			if c.native {
				p.Ext.Reason = why
			}
			if n := len(holders); n > 0 {
				k := g.state.firstHolder % n
				g.state.firstHolder++
				p.Distributor = holders[k]
				if c.native {
					p.Ext.Distributors = append(slices.Clone(holders[k:]), holders[:k]...)
				}
			}
		}
		m.send(c, p)
	}
}

// syncDone confirms a member's part (control spec, section 9.3).
func (m *Machine) syncDone(c *client, p wire.C2MDistSharedStateComplete) {
	if c.state == Request {
		c.vote.holds = !p.Ext.Failed
	}
	if p.Ext.Failed {
		m.about(c, "sync", true, "peer %s could not fetch the shared state", c.name())
	}
	c.set(VoteSyncDone, m.now)
	m.checkSynced(c.group)
}

func (m *Machine) checkSynced(g *group) {
	ms := m.members(g)
	if !allIn(ms, VoteSyncDone) {
		return
	}
	held := false
	for _, c := range ms {
		held = held || c.vote.holds
		has := c.vote.has
		if c.vote.holds && g.state.electing {
			has = g.state.next
		}
		c.vote, c.place.apart = syncVote{has: has}, c.place.apart && !c.vote.holds
		c.set(Idle, m.now)
	}
	// If the only holders left and no other got the state, the elected revision
	// is still to come: a peer that has it (from a checkpoint) must match.
	if !held && g.state.electing && !m.cfg.PCCLRevisionRule {
		g.state.next = g.state.prev
		m.fact(Fact{Kind: "state-lost", Warn: true, Group: g.id, Text: "every holder left before anybody had fetched the shared state"})
	}
	if held && g.state.electing {
		g.state.print, g.state.resumes = g.state.chosen, false
		defer m.noteState(g)
	}
	g.state.electing = false
	for _, c := range ms {
		m.send(c, wire.M2CSyncSharedStateComplete{NextRevision: c.nextTold(g)})
	}
}
