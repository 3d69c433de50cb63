package fsm

import (
	"fmt"
	"time"
)

// What newcomers cost the members is time, and is paid back before others may cost more.
const (
	// repayFactor is how many times the time that members lost to newcomers goes
	// to their work before newcomers cost them more. Proved newcomers, others and
	// the trials of both have an account each: together three percent at most, beyond
	// what is lent.
	repayFactor = 100
	// unpaid is how much of that members lend to proved newcomers, and to others: as long as they
	// have lost no more, newcomers are not put off. Peers that die while they join, and machines
	// that stand still for a moment, are part of every long run, and would close it to all others
	// for minutes. It is lent anew when a master begins or gives way.
	unpaid = 10 * time.Second
	// leastClosed is the shortest time without newcomers that is told.
	leastClosed = time.Second
)

// spoil notes that newcomer c has cost the round.
func (r *round) spoil(c *client) {
	if c.trial.proof.proved {
		r.spoiledByProved = true
	} else {
		r.spoiledByOthers = true
	}
}

// lost reports whether newcomers have cost members the round. Its repetition is theirs alone: what is
// lent is time, and would be many short rounds in a row.
func (r *round) lost() bool { return r.held && (r.spoiledByProved || r.spoiledByOthers) }

// debt is the time that newcomers have cost the members. Until all but a rest of it is paid back,
// no more of the kind take part in rounds, or are waited for.
type debt struct {
	proved     account // of newcomers that had proved themselves
	others     account
	trials     time.Duration // that of trials is paid back then
	othersNext bool          // proved ones had the last round, and others waited
}

// account is when everything would be paid back.
type account time.Duration

// charge adds what was lost.
func (a *account) charge(now, lost time.Duration) {
	paid := max(time.Duration(*a), now) + repayFactor*lost
	*a = account(min(paid, now+repayFactor*unpaid+longestWait))
}

// opens returns when newcomers may cost more.
func (a account) opens() time.Duration { return time.Duration(a) - repayFactor*unpaid }

// repay puts off the next newcomers if this round was lost because of some, and others were
// before. Those who have proved themselves and those who have not do not pay for each other.
func (m *Machine) repay() {
	if !m.round.lost() {
		return
	}
	if m.round.spoiledByProved {
		m.charge(&m.debt.proved, "newcomers that had shown that they can be reached")
	}
	if m.round.spoiledByOthers {
		m.charge(&m.debt.others, "newcomers of which nobody knows whether they can be reached")
	}
}

// charge has this round paid back by newcomers of a kind, and tells when that keeps the next ones out.
func (m *Machine) charge(a *account, who string) {
	was := a.opens() - m.now
	a.charge(m.now, m.now-m.round.since)
	wait := a.opens() - m.now
	if was > 0 || wait < leastClosed || m.census.accepted < 2 {
		return
	}
	more := ""
	if m.lines.say(m.now, strangerLines, "debt", &more) {
		m.fact(Fact{Kind: "round", Warn: true, Text: fmt.Sprintf(
			"%s have cost the members too many rounds: no more of them are let in for %v%s", who, wait.Round(time.Second), more)})
	}
}

// open reports whether newcomers that have proved themselves, or others, may take
// part in a round now: enough of what those before them have cost is paid back, or there
// are no members who lose time.
func (m *Machine) open(proved bool) bool {
	a := m.debt.others
	if proved {
		a = m.debt.proved
	}
	return m.now >= a.opens() || m.census.accepted < 2
}

// waiting says which newcomers wait for a round that they may take part in.
func (m *Machine) waiting() (proved, others bool) {
	for _, c := range m.clients {
		if c.phase == Accepted || c.closing || !c.trial.proof.done {
			continue
		}
		proved = proved || c.trial.proof.proved
		others = others || !c.trial.proof.proved
	}
	return proved && m.open(true), others && m.open(false)
}

// invite says which newcomers the next round lets in: those who have proved
// themselves are not mixed with others, who may cost it. Where both wait they
// take turns. None take part where it repeats one that some have cost.
func (m *Machine) invite() (proved, others bool) {
	if m.round.lost() && m.census.accepted > 1 {
		return false, false
	}
	proved, others = m.waiting()
	if m.census.accepted < 2 || !proved || !others {
		m.debt.othersNext = false
		return proved, others
	}
	m.debt.othersNext = !m.debt.othersNext
	return m.debt.othersNext, !m.debt.othersNext
}
