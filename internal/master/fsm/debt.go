package fsm

import (
	"fmt"
	"slices"
	"time"
)

// What newcomers cost the members is time, and is paid back before others may cost more.
const (
	// repayFactor is how many times the time that members lost to newcomers goes
	// to their work before newcomers cost them more. Proved newcomers, others and
	// the trials of both have an account each: of what was lost three percent at most, beyond
	// what is lent. A round that repeats a lost one is the members' own, and takes as long again.
	repayFactor = 100
	// unpaid is how much of that members lend to proved newcomers, and to others: as long as they
	// have lost no more, newcomers are not put off. Peers that die while they join, and machines
	// that stand still for a moment, are part of every long run, and would close it to all others
	// for minutes. It is lent again when a master begins or gives way.
	unpaid = 10 * time.Second
	// leastClosed is the shortest time without newcomers that is told, and by how much a longer one is.
	leastClosed = time.Second
)

// costs notes that c goes amid the round, whatever the reason. A newcomer has cost it then, also one that
// was let in by the failed round that this one repeats.
func (m *Machine) costs(c *client) {
	if c.end.quiet {
		return
	}
	if !c.guest() {
		m.round.broken = true
		return
	}
	if !c.round.kept {
		m.keepOut(c, "it left while the members connected to it: "+c.end.why)
	}
	m.round.spoil(c)
}

// spoil notes that newcomer c has cost the round.
func (r *round) spoil(c *client) {
	if c.trial.proof.proved {
		r.spoiledByProved = true
	} else {
		r.spoiledByOthers = true
	}
}

// lost reports whether members would not have lost the round without newcomers.
func (r *round) lost() bool { return r.held && !r.broken && (r.spoiledByProved || r.spoiledByOthers) }

// repeats reports whether the next round repeats one that newcomers have cost. It is the members'
// alone: what is lent is time, and would be many short rounds in a row.
func (m *Machine) repeats() bool {
	return slices.ContainsFunc(m.inhabited(), func(g *group) bool { return g.round.lost })
}

// debt is the time that newcomers have cost the members. Until all but a rest of it is paid back,
// no more of the kind take part in rounds, or are waited for.
type debt struct {
	proved     account // of newcomers that had proved themselves
	others     account
	trials     time.Duration // that of trials is paid back then
	othersNext bool          // proved ones had the last round, and others waited
}

// account is what newcomers of a kind have cost.
type account struct {
	paid time.Duration // when everything would be paid back
	told time.Duration // until when they are put off, as was told
}

// charge adds what was lost.
func (a *account) charge(now, lost time.Duration) {
	a.paid = min(max(a.paid, now)+repayFactor*lost, now+repayFactor*unpaid+longestWait)
}

// opens returns when newcomers may cost more.
func (a *account) opens() time.Duration { return a.paid - repayFactor*unpaid }

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
	a.charge(m.now, m.now-m.round.since)
	wait := a.opens() - m.now
	if a.opens()-max(a.told, m.now) < leastClosed || m.census.accepted < 2 {
		return
	}
	more := ""
	if m.lines.say(m.now, strangerLines, "debt", &more) {
		a.told = a.opens()
		m.fact(Fact{Kind: "round", Warn: true, Text: fmt.Sprintf(
			"%s have cost the members too many rounds: no more of them are let in for %v%s", who, wait.Round(time.Second), more)})
	}
}

// open reports whether newcomers that have proved themselves, or others, may take
// part in a round now: enough of what those before them have cost is paid back, or there
// are no members who lose time.
func (m *Machine) open(proved bool) bool {
	a := &m.debt.others
	if proved {
		a = &m.debt.proved
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
	if m.repeats() && m.census.accepted > 1 {
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
