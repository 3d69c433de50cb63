package fsm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// A newcomer proves itself before the members wait for it: a member that can
// tries to reach it, and it tries to reach two members, beside whatever runs
// (docs/spec/extensions.md, "Preflight"). A PCCL peer cannot be asked, so that half of
// the proof is missing; newcomers are not tried where no member can. The cost of
// those is bounded by the rules of debt.go.
const (
	// preflightTime bounds the wait for an answer.
	preflightTime = 12 * time.Second
	// atOnce is how many a member works on at a time, or are tried of one host.
	atOnce = 4
	// atMost is how many a member works on if some of them are second attempts.
	atMost = 4 * atOnce
	// targets is how many members a newcomer tries, and how many members may find
	// that it cannot be reached before it has to go.
	targets = 2
	// failedPause is how long a newcomer that failed takes up the place of the next
	// one from its host.
	failedPause = time.Second
	// trialPause is how long a vote to accept newcomers, complete but for them,
	// waits for those that are being tried.
	trialPause = 2 * time.Second
)

// preflight is one question that has not been answered.
type preflight struct {
	number uint64
	by     *client // who tries
	of     *client // the newcomer, nil: two members that cannot connect
	to     []*client
	asked  time.Duration
	due    time.Duration
	judged bool // the answer is known, and judged when it is known who of them lives
}

// proof is how far a newcomer has come.
type proof struct {
	done             bool // it may take part in rounds
	proved           bool // a member reaches it, and it has said that it reaches members
	reached, reaches bool // the first and the second half of it
	begun            bool
	in, out          bool        // reached, reaches others
	asked            []wire.UUID // members that were asked to try it
	missedBy         []string    // those that could not reach it
}

// trials are the newcomers that are tried, and those that wait for it.
type trials struct {
	open    []*preflight  // unanswered, oldest first
	untried []*client     // newcomers that wait for a trial
	at      time.Duration // they are looked at then; 0: no need
	voteBy  time.Duration // a complete vote waits for those that are tried until then; 0: none does
}

// queueTrial lets newcomer c wait for its trial, if there is to be one.
func (m *Machine) queueTrial(c *client) {
	if len(able(m.testers(), c)) == 0 {
		c.trial.proof.done = true
		return
	}
	m.trials.untried = append(m.trials.untried, c)
	m.tryNewcomers()
}

// testers returns the members that can try newcomers.
func (m *Machine) testers() (cs []*client) {
	for _, c := range m.clients {
		if c.phase == Accepted && c.can.preflight && !c.closing {
			cs = append(cs, c)
		}
	}
	return cs
}

// able returns those of testers that can try c.
func able(testers []*client, c *client) (cs []*client) {
	for _, t := range testers {
		if t.tries(c) {
			cs = append(cs, t)
		}
	}
	return cs
}

// tries reports whether c knows how to connect with o, and o takes it: a member in TLS has
// been told only of those of its own group who has no certificate, and a newcomer of none; and
// in other groups there may be those who take nothing in plaintext.
func (c *client) tries(o *client) bool {
	switch from, to := c.listens.as.Name != "", o.listens.as.Name != ""; {
	case from == to:
		return true
	case to:
		return o.can.plain
	}
	return c.group == o.group && c.phase == Accepted && o.phase == Accepted
}

// tryNewcomers begins to try those who wait, as far as members have time. Those
// of a host that has many on trial, or of which many have just failed, wait.
func (m *Machine) tryNewcomers() {
	if len(m.trials.untried) == 0 {
		m.trials.at = 0
		return
	}
	testers := m.testers()
	hosts := map[netip.Addr]int{} // newcomers on trial
	for _, f := range m.trials.open {
		if f.of != nil && f.by != f.of {
			hosts[f.of.remote.Addr()]++
		}
	}
	free := time.Duration(0) // when the next place of a host is
	for _, a := range m.outside {
		if at := a.since + failedPause; m.now < at {
			hosts[a.from]++
			if free == 0 || at < free {
				free = at
			}
		}
	}
	defer func() {
		if m.trials.at = 0; len(m.trials.untried) > 0 {
			m.trials.at = free
		}
	}()
	m.trials.untried = slices.DeleteFunc(m.trials.untried, func(c *client) bool {
		host := c.remote.Addr()
		switch {
		case c.closing || c.phase == Accepted || c.round.in:
			return true
		case len(testers) > 0 && hosts[host] >= atOnce:
			return false
		}
		fit := able(testers, c)
		if len(fit) == 0 {
			c.trial.proof.done = true
			return true
		}
		by := freeTester(c, fit, atOnce)
		if by == nil {
			return false
		}
		hosts[host]++
		c.trial.proof.begun = true
		m.try(c, by)
		m.trySelf(c)
		return true
	})
}

// freeTester returns the member whose turn it is to try c, one of its group if
// there are any; nil if all that were not asked yet have limit to do.
func freeTester(c *client, testers []*client, limit int) *client {
	own := slices.ContainsFunc(testers, func(t *client) bool { return t.group == c.group })
	var out *client
	for _, t := range testers {
		if t.trial.trying >= limit || own && t.group != c.group || slices.Contains(c.trial.proof.asked, t.uuid) {
			continue
		}
		if out == nil || t.trial.asked < out.trial.asked {
			out = t
		}
	}
	return out
}

// try asks member by whether it reaches c.
func (m *Machine) try(c, by *client) {
	by.trial.asked++
	c.trial.proof.asked = append(c.trial.proof.asked, by.uuid)
	m.preflight(by, c, []*client{c})
}

// trySelf asks newcomer c whether it reaches members.
func (m *Machine) trySelf(c *client) {
	ms := slices.DeleteFunc(slices.Clone(m.members(c.group)), func(o *client) bool { return !o.can.preflight || !c.tries(o) })
	if !c.can.preflight || len(ms) == 0 {
		c.trial.proof.out = true
		return
	}
	var to []*client
	for i := range min(targets, len(ms)) {
		to = append(to, ms[(int(m.numbers.preflights%uint64(len(ms)))+i)%len(ms)])
	}
	m.preflight(c, c, to)
}

func (m *Machine) preflight(by, of *client, to []*client) {
	m.numbers.preflights++
	m.trials.open = append(m.trials.open, &preflight{number: m.numbers.preflights, by: by, of: of, to: to, asked: m.now, due: m.now + preflightTime})
	if by != of {
		by.trial.trying++
	}
	p := wire.M2CPreflight{Number: m.numbers.preflights}
	for _, o := range to {
		p.Peers = append(p.Peers, wire.PeerEndpoint{Addr: o.at(o.listens.p2p), UUID: o.uuid})
	}
	m.send(by, p)
}

// preflightDone takes an answer. Late ones mean nothing.
func (m *Machine) preflightDone(c *client, p wire.C2MPreflightDone) {
	i := slices.IndexFunc(m.trials.open, func(f *preflight) bool { return f.number == p.Number && f.by == c && !f.judged })
	if i < 0 {
		return
	}
	f := m.trials.open[i]
	m.trials.open = slices.Delete(m.trials.open, i, i+1)
	f.answered()
	var failed []*client
	for _, o := range f.to {
		if slices.Contains(p.FailedPeers, o.uuid) && !o.closing {
			failed = append(failed, o)
			if o.group == c.group {
				c.mark(o.uuid, m.round.n) // they are not made neighbours, if that can be helped
			}
		}
	}
	switch f.of {
	case nil:
		for _, o := range failed {
			o.record.missed++
		}
		return
	case f.by:
		m.triedOut(f, failed)
	default:
		m.triedIn(f, len(failed) > 0)
	}
	m.afterTrial(f.of)
}

// arbitrate asks a third member whether it reaches the two that could not connect.
func (m *Machine) arbitrate(a, b *client) {
	for _, f := range m.trials.open {
		if f.of == nil && slices.Contains(f.to, a) {
			return
		}
	}
	testers := slices.DeleteFunc(m.testers(), func(t *client) bool {
		return t == a || t == b || t.trial.trying >= atOnce || !t.tries(a) || !t.tries(b)
	})
	if len(testers) > 0 {
		m.preflight(testers[int(m.numbers.preflights%uint64(len(testers)))], nil, []*client{a, b})
	}
}

// answered frees the member that was asked.
func (f *preflight) answered() {
	if f.by != f.of {
		f.by.trial.trying--
	}
}

// triedOut judges what a newcomer has said of the members that it tried.
func (m *Machine) triedOut(f *preflight, failed []*client) {
	if len(failed) < len(f.to) || len(f.to) == 0 {
		f.of.trial.proof.out, f.of.trial.proof.reaches = true, len(f.to) > 0
		return
	}
	var at []string
	alive := true
	for _, o := range failed {
		at = append(at, o.at(o.listens.p2p).String())
		alive = alive && (!o.can.heartbeat || f.judged && o.seen > f.asked)
	}
	o, t := failed[0], &f.of.trial.proof
	alone := len(m.members(f.of.group)) == 1 && o.record.stood == 0
	if !alive || alone && !t.in && len(t.missedBy) == 0 {
		// Others are not to blame for a member that died, and whose end is not known yet.
		if !f.judged {
			f.asked = m.now
		}
		f.judged, f.to, f.due = true, failed, m.now+time.Second
		m.trials.open = append(m.trials.open, f)
		return
	}
	if alone && t.in {
		// A member that never had a neighbour may itself be the one to blame. One
		// newcomer after another says so, and the second is believed.
		if o.record.missed++; o.record.missed > 1 {
			m.expel(o, "kick", fmt.Sprintf("newcomers cannot reach it at %v: %s", at[0], fix))
			t.out = true
			return
		}
	}
	m.expel(f.of, "kick", fmt.Sprintf("cannot reach the members at %s: let it open connections to them", strings.Join(at, " and ")))
}

// triedIn judges what a member has said of a newcomer. One member alone does not
// turn it away: the fault may be the member's.
func (m *Machine) triedIn(f *preflight, failed bool) {
	t := &f.of.trial.proof
	if !failed {
		t.in, t.reached = true, true
		return
	}
	t.missedBy = append(t.missedBy, f.by.name())
	only := f.by.group == f.of.group && len(m.members(f.of.group)) == 1 // whom it has to connect with
	if len(t.missedBy) < targets && !only {
		m.tryAgain(f.of)
		return
	}
	m.expel(f.of, "kick", fmt.Sprintf("peers %s cannot reach it at %v: %s", strings.Join(t.missedBy, " and "), f.of.at(f.of.listens.p2p), fix))
}

// tryAgain asks another member; if none has time, rounds will show.
func (m *Machine) tryAgain(c *client) {
	if by := freeTester(c, able(m.testers(), c), atMost); by != nil {
		m.try(c, by)
		return
	}
	c.trial.proof.in = true
}

// afterTrial lets c take part in rounds if it has passed, and begins with others.
func (m *Machine) afterTrial(c *client) {
	if t := &c.trial.proof; t.in && t.out && !c.closing && !t.done {
		t.done, t.proved = true, t.reached && t.reaches
	}
	m.tryNewcomers()
	m.checkRoundVotes()
}

// dropPreflights forgets what c was asked, and what was asked for its sake.
func (m *Machine) dropPreflights(c *client) {
	var again []*client
	m.trials.open = slices.DeleteFunc(m.trials.open, func(f *preflight) bool {
		f.to = without(f.to, c)
		if f.by == c && f.of != c && f.of != nil {
			again = append(again, f.of)
		}
		drop := f.by == c || f.of == c
		if drop {
			f.answered()
		}
		return drop
	})
	m.trials.untried = without(m.trials.untried, c)
	for _, o := range again {
		if !o.closing {
			m.tryAgain(o)
			o.trial.proof.done = o.trial.proof.in && o.trial.proof.out
			o.trial.proof.proved = o.trial.proof.done && o.trial.proof.reached && o.trial.proof.reaches
		}
	}
}

// triesDue begins to try newcomers whose host has a place again.
func (m *Machine) triesDue() {
	if m.trials.at > 0 && m.now >= m.trials.at {
		m.tryNewcomers()
	}
}

// preflightsDue acts on the bound of preflights: a member that does not answer
// says nothing about the newcomer, a newcomer that does not has failed.
func (m *Machine) preflightsDue() {
	var due []*preflight
	m.trials.open = slices.DeleteFunc(m.trials.open, func(f *preflight) bool {
		if m.now >= f.due {
			due = append(due, f)
		}
		return m.now >= f.due
	})
	for _, f := range due {
		f.answered()
		switch {
		case f.of == nil:
			continue
		case f.judged:
			m.triedOut(f, f.to)
		case f.by == f.of:
			m.expel(f.of, "dropped", fmt.Sprintf("it was asked to try whether it reaches members, and did not answer within %v", preflightTime))
		default:
			m.tryAgain(f.of)
		}
		m.afterTrial(f.of)
	}
	if m.trials.voteBy > 0 && m.now >= m.trials.voteBy {
		m.checkRoundVotes()
		m.trials.voteBy = 0
	}
}

// awaitTrials reports whether a vote that is complete waits for newcomers that
// are being tried. It does not if some are ready, whom the vote is for; and what
// it has waited, in vain or not, is time that newcomers cost.
func (m *Machine) awaitTrials() bool {
	proved, others := m.waiting()
	wait := m.now >= m.debt.trials && m.open(true) && !m.repeats() && !proved && !others &&
		slices.ContainsFunc(m.clients, func(c *client) bool {
			return c.phase != Accepted && c.trial.proof.begun && !c.trial.proof.done && !c.closing
		})
	if wait && m.trials.voteBy == 0 {
		m.trials.voteBy = m.now + trialPause
	}
	if wait && m.now < m.trials.voteBy {
		return true
	}
	if m.trials.voteBy > 0 {
		m.debt.trials = m.now + repayFactor*(m.now-(m.trials.voteBy-trialPause))
		m.trials.voteBy = 0
	}
	return false
}
