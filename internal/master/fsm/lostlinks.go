package fsm

import (
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// The connection of a member may end and come back. When those to its neighbours have
// ended as well, the process or its network is gone, and nobody waits for it
// (docs/spec/extensions.md, "Resuming").

// linkEnded takes the word of c that its connections with a neighbour have ended.
func (m *Machine) linkEnded(c *client, u wire.UUID) {
	if o := m.uuids[u]; o != nil && o != c && o.group == c.group && slices.Contains(c.beside(), u) {
		o.place.lostAnew = o.place.lostAnew || c.state == Waiting
		m.lose(o)
	}
}

// beside returns the neighbours that c has connected to last.
func (c *client) beside() []wire.UUID {
	near := c.place.neighbours
	switch own := len(near) == 1 && near[0] == c.uuid; {
	case !own:
		return near
	case c.round.in: // one that began with an earlier master: it has not said with whom
		return nil
	}
	return neighbours(c.group.ring, c.uuid) // it has come back
}

// lose notes that a neighbour of c has lost it. That alone means nothing: the connection
// between the two may have broken.
func (m *Machine) lose(c *client) {
	c.place.lostUntil = m.now + m.cfg.Linger
	if c.place.away && !c.closing {
		m.giveUpOn(c, lostWhy)
	}
}

const (
	lostWhy = "its connection has ended, and so have those to its neighbours"
	awayWhy = "its connection has ended, and it has not come back"
)

// lostLately reports whether a neighbour has lost c of late.
func (m *Machine) lostLately(c *client) bool { return m.now < c.place.lostUntil }

// lookAfter is how often those are looked for of whom nobody could say that they have gone.
const lookAfter = 250 * time.Millisecond

// giveUpLone gives up those of them whom somebody who is here waits for, and who have been
// away for a while. When this master had stood still all may have left it, and need another try.
func (m *Machine) giveUpLone() {
	if len(m.away) == 0 || m.now < m.beats.look {
		return
	}
	m.beats.look = m.now + lookAfter
	if m.now < m.beats.dazed || len(m.away) == len(m.clients) {
		return
	}
	for _, c := range slices.Clone(m.away) {
		if m.now >= c.place.awaySince+missedGrace && !c.place.lives && !m.watched(c) && m.holdsUp(c) {
			m.giveUpOn(c, awayWhy)
		}
	}
}

// watched reports whether a neighbour of c is here, which would notice its end.
func (m *Machine) watched(c *client) bool {
	return slices.ContainsFunc(c.beside(), func(u wire.UUID) bool {
		o := m.uuids[u]
		return o != nil && o != c && !o.place.away && !o.closing
	})
}

// holdsUp reports whether others may wait for c.
func (m *Machine) holdsUp(c *client) bool {
	return slices.ContainsFunc(m.clients, func(o *client) bool {
		switch {
		case o == c || o.place.away || o.closing:
			return false
		case o.phase != Accepted || o.pending.open:
			return true
		case o.group == c.group:
			return o.state != Idle
		}
		return o.state != Idle && o.state < VoteSync // of all groups together
	})
}

// hurryAway waits no longer than missedGrace for members of g.
func (m *Machine) hurryAway(g *group) {
	for _, c := range m.away {
		if c.group == g {
			c.place.awayUntil = min(c.place.awayUntil, m.now+missedGrace)
		}
	}
}

// missedGrace is how long members are waited for of which one may be why a collective
// has failed. A peer pauses for up to three eighths of a second between two tries to come back.
const missedGrace = 500 * time.Millisecond

// breaks takes the word of b that its connections with a neighbour have ended, while all say
// what they hold. In a round it may mean that the other one is ahead, and after another master
// that this goes on at that one.
func (m *Machine) breaks(b *comeback, u wire.UUID) {
	near := b.c.place.neighbours // of one that was here before
	if s := b.report; s != nil {
		if b.inRound() {
			return
		}
		near = neighbours(s.Round.Ring, b.c.uuid)
	}
	if !slices.Contains(near, u) {
		return
	}
	for _, o := range m.recovery.back {
		if o.c.uuid == u {
			o.c.place.lostUntil = m.now + m.cfg.Linger
		}
	}
	if m.recovery.again && b.report != nil && !slices.Contains(b.report.Broken, u) {
		b.report.Broken = append(b.report.Broken, u)
		m.recovery.stir()
	}
}

// inRound reports whether b has voted for a round, or takes part in one.
func (b *comeback) inRound() bool {
	switch b.report.Call.Step {
	case wire.StepAccept, wire.StepEstablish, wire.StepConnecting, wire.StepRing:
		return true
	}
	return false
}

// unreached takes the word of b that it has tried to reach members, and could not, since it has
// reported. It reports whether that was all that the packet says.
func (m *Machine) unreached(b *comeback, p wire.Packet) (all bool) {
	var failed []wire.UUID
	switch p := p.(type) {
	case wire.C2MPreflightDone:
		if failed = p.FailedPeers; p.Number != 0 { // an earlier master had asked
			failed = nil
		}
		all = true
	case wire.C2MP2PConnectionsEstablished:
		failed = p.FailedPeers
	}
	for _, g := range m.survey() {
		if g.id != b.group {
			continue
		}
		for _, u := range failed {
			if slices.Contains(g.missing, u) && !slices.Contains(b.report.Broken, u) { // so it grows by members only
				b.report.Broken = append(b.report.Broken, u)
				m.recovery.stir()
			}
		}
	}
	return all
}

// missing counts, in a recovery of those who were here before, who has not reported, and
// says whether all of these look dead to those beside them.
func (r *recovery) missing(gs []*newest, here map[wire.UUID]*comeback) (n int, dead bool) {
	lost := map[wire.UUID]bool{}
	for _, g := range gs {
		for _, u := range g.missing {
			lost[u] = g.hinted
		}
	}
	dead = true
	for _, u := range r.were {
		if here[u] == nil {
			n, dead = n+1, dead && lost[u]
		}
	}
	return n, dead
}
