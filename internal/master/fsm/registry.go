package fsm

import (
	"cmp"
	"slices"

	"github.com/gopccl/gopccl/internal/wire"
)

// termShift is where the term of a master stands in each of its numbers: those of a
// later master are greater, whatever the one before it has given out.
const termShift = 40

// MaxTerm bounds Config.Term: numbers of masters stay below those that peers use for
// purposes of their own.
const MaxTerm = 1<<20 - 1

// Registry is what has to outlive a master, and cannot be asked of the peers: who
// was there. Everything else they know.
type Registry struct {
	Groups []GroupRecord // ascending ids
}

// GroupRecord is what a registry says of one group.
type GroupRecord struct {
	ID           uint32
	Round        uint64      // the last round that it knows of, which names its term
	NextRevision uint64      // the expected one when that round ended, 0: none yet
	Members      []wire.UUID // of the ring of that round, who can resume; nil: all have left
}

// ended returns how far the groups had come whose members are all gone.
func (r Registry) ended() (es []ended) {
	for _, g := range r.Groups {
		if len(g.Members) == 0 && g.NextRevision >= 2 && len(es) < maxEnded {
			es = append(es, ended{id: g.ID, next: g.NextRevision})
		}
	}
	return es
}

// deserted returns r as if all had left their groups.
func (r Registry) deserted() Registry {
	gs := slices.Clone(r.Groups)
	for i := range gs {
		gs[i].Members = nil
	}
	return Registry{Groups: gs}
}

// records are the registry as this master last had it committed.
type records struct {
	groups  []GroupRecord
	last    uint64 // commit or confirmation that was asked for
	round   uint64 // the commit that the end of the running round waits for, 0: none
	written bool   // ... and that has come
	drop    uint64 // the confirmation that the removal of held waits for, 0: none
	held    []*client
}

// firstNumbers are those that a master of a term begins with.
func firstNumbers(term uint32) numbers {
	n := uint64(min(term, MaxTerm)) << termShift
	return numbers{collectives: n, probes: n, changes: n, preflights: n, decisions: n}
}

// ordinal is a number without its term.
func ordinal(n uint64) uint64 { return n & (1<<termShift - 1) }

// record makes r what the registry says of its group.
func (s *records) record(r GroupRecord) {
	i, found := slices.BinarySearchFunc(s.groups, r.ID, func(r GroupRecord, id uint32) int { return cmp.Compare(r.ID, id) })
	if found {
		s.groups[i] = r
		return
	}
	s.groups = slices.Insert(s.groups, i, r)
}

// commit asks for the registry to be written. The slices in it are shared, and never
// written to.
func (m *Machine) commit() uint64 {
	m.records.last++
	m.out = append(m.out, Commit{Number: m.records.last, Registry: Registry{Groups: slices.Clone(m.records.groups)}})
	return m.records.last
}

// commitRound has the rings of the groups that the running round succeeds in written
// before anybody hears of them. It reports whether that is awaited.
func (m *Machine) commitRound() bool {
	s := &m.records
	if !m.cfg.Authority || s.written {
		s.written = false
		return false
	}
	if s.round != 0 {
		return true
	}
	any := false
	for _, g := range m.groups {
		if took, failed := g.verdict(); took && !failed {
			any = true
			s.record(GroupRecord{ID: g.id, Round: m.round.decision, NextRevision: g.state.next, Members: m.immortal(g)})
		}
	}
	if any {
		s.round = m.commit()
	}
	return any
}

// commitEnded has it written that nobody of a group is left to wait for.
func (m *Machine) commitEnded(id uint32, next uint64) {
	if !m.cfg.Authority {
		return
	}
	i, found := slices.BinarySearchFunc(m.records.groups, id, func(r GroupRecord, id uint32) int { return cmp.Compare(r.ID, id) })
	if !found || m.records.groups[i].Members == nil {
		return
	}
	r := m.records.groups[i]
	r.Members, r.NextRevision = nil, next
	m.records.record(r)
	m.commit()
}

// commitMembers has it written that a member of g has left, without a round.
func (m *Machine) commitMembers(g *group) {
	if !m.cfg.Authority {
		return
	}
	i, found := slices.BinarySearchFunc(m.records.groups, g.id, func(r GroupRecord, id uint32) int { return cmp.Compare(r.ID, id) })
	if !found {
		return
	}
	r := m.records.groups[i]
	r.Members = m.immortal(g)
	m.records.record(r)
	m.commit()
}

// committed goes on with what waited for the registry.
func (m *Machine) committed(e Committed) {
	if s := &m.records; s.round == e.Number && e.Number != 0 {
		s.round, s.written = 0, true
		m.checkRoundEnd()
		s.written = false
	}
}

// confirmDrop asks whether this master still leads before members of batch go: their
// absence may only mean that they are at another one. It reports whether that is
// awaited.
func (m *Machine) confirmDrop(batch []*client) bool {
	s := &m.records
	if !m.cfg.Authority || s.drop == 0 && !slices.ContainsFunc(batch, func(c *client) bool { return c.phase == Accepted && c.registered }) {
		return false
	}
	s.held = append(s.held, batch...)
	if s.drop == 0 {
		s.last++
		s.drop = s.last
		m.out = append(m.out, Confirm{Number: s.drop})
	}
	return true
}

// confirmed lets go who waited for it.
func (m *Machine) confirmed(e Confirmed) {
	s := &m.records
	if r := &m.recovery; r.asked != 0 && r.asked == e.Number {
		r.sure, r.news = true, true
		return
	}
	if s.drop == 0 || s.drop != e.Number {
		return
	}
	batch := s.held
	s.drop, s.held = 0, nil
	m.remove(batch)
}
