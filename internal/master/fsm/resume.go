package fsm

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/internal/wire"
)

// maxEnded bounds the groups that are remembered after their last peer has left.
const maxEnded = 1024

// ended is what is kept of a group whose last client has left: it may be the
// only place that still knows how far the run had come.
type ended struct {
	id    uint32
	next  uint64       // the expected revision
	print *Fingerprint // of the state before it, nil if unknown
}

// Fingerprint tells shared states apart: a digest of the entries they were voted with.
type Fingerprint [sha256.Size]byte

func printOf(entries []wire.StateEntry) *Fingerprint {
	h := sha256.New()
	var b []byte
	for _, e := range entries {
		b = binary.BigEndian.AppendUint64(b[:0], uint64(len(e.Key)))
		b = append(b, e.Key...)
		b = binary.BigEndian.AppendUint64(b, e.Hash)
		b = append(b, byte(e.HashType), byte(e.DType), 0)
		if e.AllowInequality {
			b[len(b)-1] = 1
		}
		h.Write(b)
	}
	return (*Fingerprint)(h.Sum(nil))
}

// forgetEmpty drops groups that have no client left, but for the revision that
// they expect (as PCCL does, quirk Q15): a peer that comes back with
// less than the others had would otherwise begin the run anew without notice. A
// group that has come no further than its first state is not a loss.
func (m *Machine) forgetEmpty(gs []*group) {
	for _, g := range gs {
		if len(g.clients) > 0 {
			continue
		}
		if m.cfg.PCCLRevisionRule && g.state.next != 0 {
			m.freed = true // what it had passed on
			*g = group{id: g.id, census: g.census, stirred: g.stirred, state: sharedState{next: g.state.next}}
			continue
		}
		if i := slices.Index(m.groups, g); i >= 0 {
			m.groups = slices.Delete(m.groups, i, i+1)
			m.remember(g)
			m.commitEnded(g)
		}
	}
}

func (m *Machine) remember(g *group) {
	e := ended{id: g.id}
	if e.next, e.print = g.state.reached(); e.next < 2 {
		return
	}
	m.ended = slices.DeleteFunc(m.ended, func(o ended) bool { return o.id == e.id })
	if len(m.ended) == maxEnded {
		m.fact(Fact{Kind: "state-reset", Warn: true, Group: m.ended[0].id, Text: fmt.Sprintf(
			"the group is forgotten, which expects revision %d: %d others have ended since", m.ended[0].next, maxEnded)})
		m.records.forget(m.ended[0].id)
		m.ended = slices.Delete(m.ended, 0, 1)
	}
	m.keep(e)
	m.fact(Fact{Kind: "state-kept", Group: g.id, Text: fmt.Sprintf(
		"the last peer has left; the group continues with shared state of revision %d, or of %d as it was. %s", e.next, e.next-1, beginAnew)})
}

// keep remembers how far a group had come.
func (m *Machine) keep(e ended) {
	m.ended = append(slices.DeleteFunc(m.ended, func(o ended) bool { return o.id == e.id }), e)
}

// reached returns the revision that is expected of a group when it is empty, and
// the print of the state before it, nil if unknown.
func (s *sharedState) reached() (next uint64, print *Fingerprint) {
	if !s.electing {
		return s.next, s.print
	}
	// No member has confirmed the state that was elected last, but it was there.
	if next = max(s.prev, s.next-1); next != s.prev {
		return next, nil
	}
	return next, s.print
}

// beginAnew is what an operator can do about a state that is lost.
const beginAnew = "To start over: set master.lost_state to anew (SIGHUP reads it again), call ResetSharedState, or use another peer group, or a master that knows nothing of this run"

// recall gives a new group what is known of an earlier one with its id.
func (m *Machine) recall(g *group) {
	if i := slices.IndexFunc(m.ended, func(e ended) bool { return e.id == g.id }); i >= 0 {
		g.state = sharedState{next: m.ended[i].next, print: m.ended[i].print, resumes: true}
		m.ended = slices.Delete(m.ended, i, i+1)
	}
}

// judgeResumed sets the standing of all votes of the first election after a
// group was empty: the highest revision counts, as in a first election, if it is
// at least the expected one, or the one before with the content that it had.
func (s *sharedState) judgeResumed(ms []*client) (elected uint64, offered bool) {
	highest := uint64(0)
	for _, c := range ms {
		if c.candidate() {
			highest = max(highest, c.vote.revision)
		}
	}
	switch same := highest == s.next-1; {
	case highest >= s.next:
		return judge(ms)
	case same && s.print != nil:
		for _, c := range ms {
			c.vote.standing = outdated
			if !c.vote.torn && c.vote.revision == highest && *printOf(c.vote.entries) == *s.print {
				c.vote.standing = match
				offered = offered || c.candidate()
			}
		}
		if offered {
			return highest, true
		}
	}
	for _, c := range ms {
		c.vote.standing = outdated
	}
	return s.next, false
}

// missing says which state no member offers, and what helps.
func (s *sharedState) missing() string {
	if !s.resumes {
		return fmt.Sprintf("no member holds the shared state of revision %d: a peer must bring it, from a checkpoint. %s", s.next, beginAnew)
	}
	return fmt.Sprintf("the group had reached revision %d when its last peer left, and no peer brings that state unchanged, or a later one: load the latest checkpoint. %s",
		s.next-1, beginAnew)
}
