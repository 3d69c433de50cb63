package fsm

import (
	"fmt"

	"github.com/gopccl/gopccl/core/errs"
)

// breakDeadlock resolves one wait that can never end and reports whether it
// found one. PCCL's peers stay in such waits for ever; without any gopccl end
// among those concerned they still do, as they may expect nothing else.
//
// Two kinds exist. A collective waits for the vote of a peer that itself waits
// in another vote, which in turn needs the peers of the collective: it is
// commenced for its voters and aborted at once. And peers of one electorate
// wait in different votes: the smaller party has to leave.
func (m *Machine) breakDeadlock() bool {
	for _, g := range m.groups {
		ms := m.members(g)
		blocked := false
		for _, c := range ms {
			blocked = blocked || c.state.votes()
		}
		if !blocked {
			continue
		}
		for _, t := range g.tags {
			if m.breakTag(g, t, ms) {
				return true
			}
		}
	}
	return m.breakConflict()
}

func (m *Machine) breakTag(g *group, t *tagState, ms []*client) bool {
	var voters []*client
	blocker := (*client)(nil)
	native := false
	for _, c := range ms {
		o := c.op(t.tag)
		switch {
		case o != nil && o.state != VoteInit:
			return false // still running
		case o != nil:
			voters = append(voters, c)
		case c.state.votes():
			blocker = c
		case c.state != Collective:
			return false // may still join the vote
		}
		native = native || c.native
	}
	if blocker == nil || len(voters) == 0 || !native {
		return false
	}
	m.commence(t, voters)
	m.abort(g, t, errs.RankConnectionLost, fmt.Sprintf("peer %s waits in %v and can never join the operation", blocker.name(), blocker.state))
	m.catchUp(g, t, voters)
	return true
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

// breakConflict looks for two votes of which each needs the voters of the
// other. Inside a group any two do. Between groups only the votes of all
// groups can: those for newcomers and for optimizing, and in groups without
// gopccl ends those for establish rounds.
func (m *Machine) breakConflict() bool {
	var world [2][]*client
	for _, g := range m.groups {
		var here [3][]*client
		ms := m.members(g)
		own := anyNative(ms)
		for _, c := range ms {
			p := party(c.state)
			if p < 0 || c.closing {
				continue
			}
			here[p] = append(here[p], c)
			if p < 2 && !(own && c.state == VoteEstablish) {
				world[p] = append(world[p], c)
			}
		}
		for i, a := range here {
			for _, b := range here[i+1:] {
				if len(a) > 0 && len(b) > 0 && m.outvote(a, b) {
					return true
				}
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
	e := cs[0].waitSince
	for _, c := range cs {
		e = min(e, c.waitSince)
	}
	return int64(e)
}
