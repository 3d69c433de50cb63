package fsm

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
)

// breakDeadlock resolves waits that can never end and reports whether it found
// any. PCCL's peers stay in such waits for ever; without any gopccl peer among
// those concerned they still do, as they may expect nothing else.
//
// Three kinds exist. A collective waits for the vote of a peer that itself
// waits in another vote, which in turn needs the peers of the collective: it is
// commenced for its voters and aborted at once. Peers of one electorate wait in
// different votes: the smaller party has to leave. And peers ask whether others
// are pending while all others wait in votes: they are answered.
//
// A wait becomes such a one only by what happens in a group, so only those in
// which something happened are looked at.
func (m *Machine) breakDeadlock() bool {
	gs := m.census.stirred
	if len(gs) == 0 {
		return false
	}
	slices.SortFunc(gs, func(a, b *group) int { return cmp.Compare(a.id, b.id) })
	m.census.stirred = nil
	for _, g := range gs {
		g.stirred = false
	}
	found := false
	for _, g := range gs {
		found = m.breakTags(g) || found
	}
	for i := 0; i < len(gs) && !found; i++ {
		found = m.breakGroup(gs[i])
	}
	found = found || m.breakWorld() || m.breakQuery()
	if found {
		for _, g := range gs {
			g.stir() // there may be more
		}
	}
	return found
}

// breakTags ends the collectives of g that no member can join any more: all its
// members wait in other votes or for other collectives.
func (m *Machine) breakTags(g *group) bool {
	ms := m.members(g)
	blocked := g.here.voting()
	if blocked == 0 || blocked+g.here[Collective] != len(ms) || g.natives == 0 {
		return false
	}
	found := false
	for t := range g.tags.all() {
		if t.runs() > 0 || t.voters() == 0 {
			continue
		}
		found = true
		var voters []*client
		blocker := (*client)(nil)
		for _, c := range ms {
			switch {
			case c.op(t.tag) != nil:
				voters = append(voters, c)
			case c.state.votes():
				blocker = c
			}
		}
		m.commence(t, voters)
		m.abort(g, t, errs.RankConnectionLost, fmt.Sprintf("peer %s waits in %v and can never join the operation", blocker.name(), blocker.state))
		m.catchUp(g, t, voters)
	}
	return found
}

// party is the vote a client waits in; rounds of both flavours are one.
func party(s State) int {
	switch s {
	case VoteAccept, VoteEstablish:
		return 0
	case VoteOptimize:
		return 1
	case VoteSync:
		return 2
	}
	return -1
}

// breakGroup looks for two votes of a group of which each needs the voters of
// the other, as any two do.
func (m *Machine) breakGroup(g *group) bool {
	round := g.here[VoteAccept] + g.here[VoteEstablish]
	if n := g.here.voting(); n == 0 || n == round || n == g.here[VoteOptimize] || n == g.here[VoteSync] {
		return false
	}
	var here [3][]*client
	for _, c := range m.members(g) {
		if p := party(c.state); p >= 0 {
			here[p] = append(here[p], c)
		}
	}
	for i, a := range here {
		for _, b := range here[i+1:] {
			if len(a) > 0 && len(b) > 0 && m.outvote(a, b) {
				return true
			}
		}
	}
	return false
}

// breakWorld looks for two votes of all groups that need each other's voters:
// those for newcomers and for optimizing, and in groups without gopccl peers
// those for establish rounds; but a group that repeats a round waits for itself.
func (m *Machine) breakWorld() bool {
	if m.census.all[VoteOptimize] == 0 || m.census.all[VoteAccept]+m.census.all[VoteEstablish] == 0 {
		return false
	}
	var world [2][]*client
	for _, g := range m.inhabited() {
		for _, c := range m.members(g) {
			if p := party(c.state); p >= 0 && p < 2 && !(g.natives > 0 && c.state == VoteEstablish) && !(p == 0 && g.round.again) {
				world[p] = append(world[p], c)
			}
		}
	}
	return len(world[0]) > 0 && len(world[1]) > 0 && m.outvote(world[0], world[1])
}

// outvote closes the smaller of two parties that wait for each other, of
// equal ones the one that began later.
func (m *Machine) outvote(a, b []*client) bool {
	if !anyNative(a) && !anyNative(b) {
		return false
	}
	if len(a) < len(b) || len(a) == len(b) && earliest(a) > earliest(b) {
		a, b = b, a
	}
	for _, c := range b {
		m.kick(c, "waits in %v while %d peers wait in %v: the calls of the peers conflict", c.state, len(a), a[0].state)
	}
	return true
}

func earliest(cs []*client) int64 {
	e := cs[0].wait.since
	for _, c := range cs {
		e = min(e, c.wait.since)
	}
	return int64(e)
}

// breakQuery answers those who ask whether peers are pending if all
// others wait for them: those who do not ask wait in a vote. The answer gets
// the votes on: yes where others of the group wait for a round, so
// that those who asked vote for it as well, and no where they wait for anything
// else, so that those who asked go on to the same call. Newcomers are let in
// when all ask.
//
// A group in which no member waits is answered only if votes of all groups
// wait for it; otherwise the other groups get on without it.
func (m *Machine) breakQuery() bool {
	n := &m.census
	if n.asking == 0 || n.asking == n.accepted || n.natives == 0 || n.accepted-n.all.voting()-n.all[Collective] > n.asking {
		return false
	}
	rounds, others := 0, 0 // who waits for a round, and for anything else
	local := false         // somebody waits for its own group only
	for _, g := range m.inhabited() {
		for _, c := range m.members(g) {
			switch {
			case c.pending.open:
				continue
			case !c.blocked():
				return false // busy, or free to ask
			case c.state == VoteSync, c.state == Collective, party(c.state) == 0 && (g.round.again || c.state == VoteEstablish && g.natives > 0):
				local = true
			}
			if party(c.state) == 0 {
				rounds++
			} else {
				others++
			}
		}
	}
	found := false
	for _, g := range m.inhabited() {
		round, other := 0, 0
		for _, c := range m.members(g) {
			switch {
			case c.pending.open:
			case party(c.state) == 0:
				round++
			default:
				other++
			}
		}
		if round+other == 0 {
			if local || rounds > 0 && others > 0 {
				continue
			}
			round, other = rounds, others
		}
		for _, c := range m.members(g) {
			if c.pending.open {
				m.answer(c, other == 0 && round > 0)
				found = true
			}
		}
	}
	return found
}
