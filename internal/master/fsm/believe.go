package fsm

import (
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/internal/wire"
)

// A report is the claim of one peer, and others are told what follows from it. What cannot
// be so is not believed. A member can still lie about what only it may know.

const (
	// mostFollowed bounds the terms that a master believes in which knows of no other.
	mostFollowed = 1 << 16
	// maxHeldBytes bounds the packets of a client that are kept while a recovery goes on:
	// one of the largest, and no more than a member that is not in one has room for.
	maxHeldBytes = wire.MaxPacket
)

// impossible says what in the report of b cannot be, "" if all of it may be so.
func (m *Machine) impossible(b *comeback, p *wire.C2MReport) string {
	s, was := &p.Round, m.recovery.were
	switch {
	case m.beyond(p):
		return "its report has numbers that no master has given out"
	case len(s.Ring) > 0 && !slices.Contains(s.Ring, b.c.uuid):
		return "its report has a ring without it"
	case repeats(s.Ring):
		return "its report has a ring with one member twice"
	case m.recovery.again && s.Decision != 0 && !slices.Contains(was, b.c.uuid):
		return "this master went on without the session: its peer was away for too long"
	case !m.recovery.again && m.outlived(b, s.Decision):
		return "the registry has a later ring without it: its peer was away for too long"
	}
	return ""
}

// outlived reports whether the others of its group went on without b, which has heard of no
// later round: the registry has one that it is not in. Only one that was dropped, or has
// left, is not in a ring that comes after its own.
func (m *Machine) outlived(b *comeback, round uint64) bool {
	i, found := m.records.find(b.group)
	if !found || !m.cfg.Authority || round == 0 {
		return false
	}
	r := &m.records.groups[i]
	return round <= r.Round && !slices.Contains(r.Members, b.c.uuid)
}

// invented reports whether b names a round that the registry does not have, that two other
// members deny, and that nobody confirms. A round is written down before any peer hears that
// it stands; but if an old copy was restored, all members know of a later one.
func (m *Machine) invented(b *comeback) bool {
	if b.report == nil || !m.cfg.Authority {
		return false
	}
	i, found := m.records.find(b.group)
	round := b.report.Round.Decision
	if !found || round <= m.records.groups[i].Round {
		return false
	}
	deny := 0
	for _, o := range m.recovery.back {
		if o == b || o.report == nil || o.group != b.group {
			continue
		}
		if o.report.Round.Decision >= round || o.report.Call.Decision == round {
			return false
		}
		if o.report.Round.Decision != 0 {
			deny++
		}
	}
	return deny > 1
}

// beyond reports whether p has numbers that are still to be given out.
func (m *Machine) beyond(p *wire.C2MReport) bool {
	n := &m.numbers
	if max(p.Round.Decision, p.Query.Decision, p.Call.Decision, p.Optimized, p.Synced) > n.decisions ||
		max(p.Change.Taken, p.Change.Prepares, p.Mesh.Change) > n.changes {
		return true
	}
	return slices.ContainsFunc(p.Ops, func(o wire.ReportedOp) bool {
		return o.Step >= wire.OpRunning && o.Seq >= n.collectives || o.After > n.collectives
	}) || slices.ContainsFunc(p.Verdicts, func(v wire.ReportedVerdict) bool { return v.Seq >= n.collectives })
}

func repeats(us []wire.UUID) bool {
	us = slices.Clone(us)
	slices.SortFunc(us, wire.UUID.Compare)
	return len(slices.Compact(us)) < len(us)
}

// doubt goes through what those who have come back say of shared states, and returns those
// who may stay.
func (m *Machine) doubt(bs []*comeback, r *recovery) (stay []*comeback) {
	top := map[uint32]uint64{} // the revision that a group may expect at most
	for _, b := range bs {
		next, known := m.expected(b.group, r)
		if !r.again && known && b.report.NextRevision > next && b.lonely(bs) {
			m.fact(Fact{Kind: "recovering", Warn: true, Peer: b.c.uuid, Remote: b.c.remote, Group: b.group, Text: fmt.Sprintf(
				"peer %s says that shared state of revision %d comes next, and nobody else does: not believed", b.c.uuid.Short(), b.report.NextRevision)})
			b.report.NextRevision = 0
		}
		top[b.group] = max(top[b.group], next)
		if !r.again {
			top[b.group] = max(top[b.group], b.report.NextRevision)
		}
	}
	for _, b := range bs {
		if b.elected() > top[b.group]+1 && m.fixed(b.group, r) && !b.echoed(bs) {
			m.turnBack(b, "its report has an election of a shared state that the group did not expect")
			continue
		}
		stay = append(stay, b)
	}
	return stay
}

// expected returns which revision a group expects, as far as this master knows without its
// members; false if it does not.
func (m *Machine) expected(id uint32, r *recovery) (next uint64, known bool) {
	if i := slices.IndexFunc(r.states, func(s groupState) bool { return s.id == id }); i >= 0 {
		return r.states[i].state.next, true
	}
	if i, found := m.records.find(id); found && m.cfg.Authority {
		return m.records.groups[i].NextRevision, true
	}
	return 0, false
}

// fixed reports whether the group can have elected nothing but what it expected: it had a
// state, and was not empty since.
func (m *Machine) fixed(id uint32, r *recovery) bool {
	if i := slices.IndexFunc(r.states, func(s groupState) bool { return s.id == id }); i >= 0 {
		return r.states[i].state.next != 0 && !r.states[i].state.resumes
	}
	i, found := m.records.find(id)
	return found && m.cfg.Authority && m.records.groups[i].NextRevision != 0 && !m.records.groups[i].Resumes
}

// lonely reports whether two others of the ring of b deny what it says of the next revision,
// and nobody confirms it. A revision that M2C 8 has told one of them M2C 7 has told all, or
// it is older than the ring, and the registry has it. Who has synchronised nothing knows
// nothing: an old copy of the registry may have been restored.
func (b *comeback) lonely(bs []*comeback) bool {
	deny := 0
	for _, o := range bs {
		if o == b || o.group != b.group || o.report.Round.Decision != b.report.Round.Decision {
			continue
		}
		if max(o.report.NextRevision, o.elected()) >= b.report.NextRevision {
			return false
		}
		if o.report.NextRevision != 0 {
			deny++
		}
	}
	return deny > 1
}

// echoed reports whether another member has voted for the state that b was told the election
// of, or a later one, or was told of it, too.
func (b *comeback) echoed(bs []*comeback) bool {
	return slices.ContainsFunc(bs, func(o *comeback) bool {
		call := &o.report.Call
		return o != b && o.group == b.group && call.Step >= wire.StepElection && max(o.elected(), call.Vote.Revision+1) >= b.elected()
	})
}

// elected returns the revision that follows on the state that b was told the election of, 0:
// none.
func (b *comeback) elected() uint64 {
	call := &b.report.Call
	switch next := call.Verdict.Ext.Resuming.NextRevision; {
	case call.Step < wire.StepFetching:
		return 0
	case next == 0 && !call.Verdict.IsOutdated:
		return call.Vote.Revision + 1
	default:
		return next
	}
}
