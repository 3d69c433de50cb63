package fsm

import (
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// RecoveryInfo says how far a recovery is.
type RecoveryInfo struct {
	// Began is when it began, Until when it goes on without those who are missing, on the
	// clock of the machine.
	Began, Until time.Duration
	// Stuck: it does not go on without them, as nobody says that they may be dropped.
	Stuck bool
	// Silent have come back, and have not said what they hold.
	Silent int
	Groups []RecoveringGroup // ascending ids
}

// RecoveringGroup is a group of which somebody knows.
type RecoveringGroup struct {
	ID      uint32
	Members int // of its last ring
	Missing []MissingMember
}

// MissingMember has not come back.
type MissingMember struct {
	UUID   wire.UUID
	Broken bool // those who are here say that the connections to it have ended
}

// recovering returns how far the recovery is, nil if there is none.
func (m *Machine) recovering() *RecoveryInfo {
	r := &m.recovery
	if !r.on {
		return nil
	}
	gs := m.survey()
	info := &RecoveryInfo{Began: r.since, Until: m.until(gs), Stuck: !m.lead(gs)}
	if !r.begun {
		info.Began, info.Until = m.now, m.now+m.longGrace()
	}
	for _, b := range r.back {
		if b.report == nil {
			info.Silent++
		}
	}
	for _, g := range gs {
		o := RecoveringGroup{ID: g.id, Members: len(g.all)}
		for _, u := range g.missing {
			o.Missing = append(o.Missing, MissingMember{UUID: u, Broken: g.said[u] != nil && g.said[u].broken > 0})
		}
		slices.SortFunc(o.Missing, func(a, b MissingMember) int { return wire.UUID.Compare(a.UUID, b.UUID) })
		info.Groups = append(info.Groups, o)
	}
	return info
}
