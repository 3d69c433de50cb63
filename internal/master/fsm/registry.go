package fsm

import (
	"cmp"
	"slices"
	"time"

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
	Round        uint64       // the last round that it knows of, which names its term
	NextRevision uint64       // the expected one, 0: none yet
	Print        *Fingerprint // of the state before NextRevision, nil: unknown
	Resumes      bool         // all had left, and those who came have synchronised nothing
	Members      []wire.UUID  // of the ring of that round, those who can resume; nil: all have left
}

// ended returns how far the groups had come whose members are all gone.
func (r Registry) ended() (es []ended) {
	for _, g := range r.Groups {
		if len(g.Members) == 0 && g.NextRevision >= 2 && len(es) < maxEnded {
			es = append(es, ended{id: g.ID, next: g.NextRevision, print: g.Print})
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
	last    uint64        // commit or confirmation that was asked for
	round   uint64        // the commit that the end of the running round waits for, 0: none
	written bool          // ... and that has come
	states  uint64        // the commit of revisions that was asked for, 0: none
	stale   bool          // revisions have changed since the last commit
	ripe    time.Duration // when they may be committed
	drop    uint64        // the confirmation that the removal of held waits for, 0: none
	held    []*client
	later   []*client // have gone since that was asked
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
	i, found := s.find(r.ID)
	if found {
		s.groups[i] = r
		return
	}
	s.groups = slices.Insert(s.groups, i, r)
}

// find returns where the record of a group is, or belongs.
func (s *records) find(id uint32) (int, bool) {
	return slices.BinarySearchFunc(s.groups, id, func(r GroupRecord, id uint32) int { return cmp.Compare(r.ID, id) })
}

// forget removes what the registry says of a group.
func (s *records) forget(id uint32) {
	if i, found := s.find(id); found {
		s.groups = slices.Delete(s.groups, i, i+1)
	}
}

// commit asks for the registry to be written. The slices in it are shared, and never
// written to.
func (m *Machine) commit() uint64 {
	s := &m.records
	s.last++
	s.stale = false
	m.out = append(m.out, Commit{Number: s.last, Registry: Registry{Groups: slices.Clone(s.groups)}})
	return s.last
}

// recordOf is what the registry says of g when its ring stands since a round.
func (m *Machine) recordOf(g *group, round uint64) GroupRecord {
	next, print := g.state.reached()
	return GroupRecord{ID: g.id, Round: round, NextRevision: next, Print: print, Resumes: g.state.resumes, Members: m.immortal(g)}
}

// Registry returns what a later master has to find, also if it was not written yet.
func (m *Machine) Registry() Registry { return Registry{Groups: slices.Clone(m.records.groups)} }

// statesEvery bounds how often revisions are committed. Nobody waits for it, and what is
// not written when the master dies is what peers know, or have lost.
const statesEvery = time.Second

// noteState has it written that g has a new state.
func (m *Machine) noteState(g *group) {
	s := &m.records
	if i, found := s.find(g.id); found && m.cfg.Authority {
		r := &s.groups[i]
		r.NextRevision, r.Print = g.state.reached()
		r.Resumes, s.stale = g.state.resumes, true
		m.commitStates()
	}
}

// commitStates writes the revisions that have changed, if it is time.
func (m *Machine) commitStates() {
	if s := &m.records; s.stale && s.states == 0 && m.now >= s.ripe {
		s.states, s.ripe = m.commit(), m.now+statesEvery
	}
}

// statesDue returns when revisions are to be written.
func (m *Machine) statesDue() (time.Duration, bool) {
	return m.records.ripe, m.records.stale && m.records.states == 0
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
			s.record(m.recordOf(g, m.round.decision))
		}
	}
	if any {
		s.round = m.commit()
	}
	return any
}

// commitEnded has it written that nobody of g is left to wait for. Of a group that has
// come no further than its first state nothing is kept.
func (m *Machine) commitEnded(g *group) {
	i, found := m.records.find(g.id)
	if !found || !m.cfg.Authority {
		return
	}
	r := m.records.groups[i]
	r.Members, r.Resumes = nil, false
	if r.NextRevision, r.Print = g.state.reached(); r.NextRevision < 2 {
		m.records.forget(g.id)
	} else {
		m.records.record(r)
	}
	m.commit()
}

// commitReset has it written that an operator has given up the state of a group.
func (m *Machine) commitReset(id uint32) {
	i, found := m.records.find(id)
	if !found || !m.cfg.Authority {
		return
	}
	r := m.records.groups[i]
	if r.NextRevision, r.Print, r.Resumes = 0, nil, false; r.Members == nil {
		m.records.forget(id)
	} else {
		m.records.record(r)
	}
	m.commit()
}

// commitMembers has it written that a member of g has left, without a round.
func (m *Machine) commitMembers(g *group) {
	i, found := m.records.find(g.id)
	if !found || !m.cfg.Authority {
		return
	}
	r := m.records.groups[i]
	r.Members = m.immortal(g)
	m.records.record(r)
	m.commit()
}

// committed goes on with what waited for the registry.
func (m *Machine) committed(e Committed) {
	if m.records.states == e.Number {
		m.records.states = 0
	}
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
	if s.drop != 0 {
		s.later = append(s.later, batch...)
		return true
	}
	m.askDrop(batch)
	return true
}

// askDrop asks whether this master leads now that batch has gone.
func (m *Machine) askDrop(batch []*client) {
	s := &m.records
	s.last++
	s.drop, s.held = s.last, batch
	m.out = append(m.out, Confirm{Number: s.drop})
}

// goneMeanwhile has it asked again for a member that was closed and has not been told so, now that its
// connection has ended: what is answered may be from before.
func (m *Machine) goneMeanwhile(c *client) {
	s := &m.records
	if s.drop != 0 && c.mayBeElsewhere() && slices.Contains(s.held, c) {
		s.held, s.later = without(s.held, c), append(s.later, c)
	}
}

// mayBeElsewhere reports whether c may have gone to another master: it has not said that
// it ends its session.
func (c *client) mayBeElsewhere() bool { return c.phase == Accepted && c.registered && !c.place.parted }

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
	batch, later := s.held, s.later
	s.drop, s.held, s.later = 0, nil, nil
	if slices.ContainsFunc(later, (*client).mayBeElsewhere) {
		m.askDrop(later) // the answer was about the time before they went
	} else {
		batch = append(batch, later...)
	}
	m.remove(batch)
}
