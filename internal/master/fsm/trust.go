package fsm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// The rules on peers that cost the others a round, and on how long they are kept
// out.
//
// A member is proven once it has stood in a ring with others. The word of an
// unproven one against a proven one says more about itself, so it does not count.
const (
	// manyPeers is how many different peers, in at least two rounds, must have
	// failed to connect with a member before it has to go though rings without
	// these pairs exist.
	manyPeers = 3
	// newcomerTime is the least that a round waits for newcomers after the last
	// of the members has reported; patienceFactor times what they needed otherwise.
	newcomerTime   = 3 * time.Second
	patienceFactor = 3
	// firstWait is how long an address stays outside after it cost a round, which
	// doubles up to longestWait.
	firstWait   = 2 * time.Second
	longestWait = 10 * time.Minute
	// maxOutside is how many addresses are remembered.
	maxOutside = 256
)

// fix is what an operator can do about a peer that others do not reach.
const fix = "forward this port to the peer, or set announce_host and announce_ports to where others reach it"

// witness says that a connection between a client and peer could not be made.
type witness struct {
	peer  wire.UUID
	round uint64
}

// testify notes that c and o, neighbours of this round, could not connect.
func (m *Machine) testify(c, o *client) {
	against := func(c, o *client) {
		if !c.mayBeAccusedBy(o) {
			return
		}
		w := witness{o.uuid, m.round.n}
		if !slices.Contains(c.record.against, w) {
			c.record.against = append(c.record.against, w)
		}
	}
	against(c, o)
	against(o, c)
}

// forgive drops what speaks against others because of u, which has left.
func (m *Machine) forgive(u wire.UUID) {
	for _, o := range m.clients {
		o.record.against = slices.DeleteFunc(o.record.against, func(w witness) bool { return w.peer == u })
	}
}

// evidence counts the peers and the rounds that speak against c.
func (c *client) evidence() (peers, rounds int) {
	var ps []wire.UUID
	var rs []uint64
	for _, w := range c.record.against {
		if !slices.Contains(ps, w.peer) {
			ps = append(ps, w.peer)
		}
		if !slices.Contains(rs, w.round) {
			rs = append(rs, w.round)
		}
	}
	return len(ps), len(rs)
}

// marked reports whether c could not reach u in round n.
func (c *client) marked(u wire.UUID, n uint64) bool {
	return slices.Contains(c.ways.unreachable, mark{u, n})
}

// severed reports whether a and b could not connect in this round, in either direction.
func (m *Machine) severed(a, b *client) bool {
	return a.marked(b.uuid, m.round.n) || b.marked(a.uuid, m.round.n)
}

// near returns the neighbours of c in this round that are still there.
func (m *Machine) near(c *client) (cs []*client) {
	for _, u := range c.place.neighbours {
		if o := m.uuids[u]; o != nil && o.round.in && !o.closing {
			cs = append(cs, o)
		}
	}
	return cs
}

// isolated reports whether c has no connection with any of its neighbours.
func (m *Machine) isolated(c *client) bool {
	near := m.near(c)
	for _, o := range near {
		if !m.severed(c, o) {
			return false
		}
	}
	return len(near) > 0
}

// turnAway closes the unproven peers of g that this round has shown to be out of
// reach: those without a connection with any of their neighbours, if these have
// connections with others, so that the fault is not theirs.
func (m *Machine) turnAway(g *group) {
	type verdict struct {
		c   *client
		why string
	}
	var out []verdict
	for _, c := range m.ringMembers(g) {
		if c.record.stood > 0 || !m.isolated(c) {
			continue
		}
		var by, to []string
		witnesses, clear := 0, false
		near := m.near(c)
		for _, o := range near {
			named, names := o.marked(c.uuid, m.round.n), c.marked(o.uuid, m.round.n)
			if named {
				by = append(by, o.name())
			}
			if names {
				to = append(to, o.at(o.listens.p2p).String())
			}
			switch {
			case !c.mayBeAccusedBy(o):
			case o.record.stood > 0 || !m.isolated(o):
				witnesses++
				clear = clear || named && !names
			case len(c.place.neighbours) == 1:
				// A pair: the one that was let in before, if it was not missed.
				clear = clear || c.round.newcomer && !o.round.newcomer && named && !names
			}
		}
		if witnesses < 2 && !clear {
			continue
		}
		why := fmt.Sprintf("cannot reach its neighbours at %s: let it open connections to them", strings.Join(to, " and "))
		if len(by) > 0 {
			why = fmt.Sprintf("peers %s cannot reach it at %v: %s", strings.Join(by, " and "), c.at(c.listens.p2p), fix)
		}
		out = append(out, verdict{c, why})
	}
	for _, v := range out {
		m.expel(v.c, "kick", v.why)
	}
}

// convict closes the members of g that many different peers could not connect
// with since they last stood in a ring, the worst first: for the others, what
// they had with it no longer counts.
func (m *Machine) convict(g *group) {
	for {
		var out *client
		most := 0
		for _, c := range m.ringMembers(g) {
			peers, rounds := c.evidence()
			if peers >= manyPeers && rounds > 1 && (peers > most || peers == most && worse(c, out)) {
				out, most = c, peers
			}
		}
		if out == nil {
			return
		}
		m.expel(out, "kick", fmt.Sprintf("%d peers cannot connect with it at %v: %s", most, out.at(out.listens.p2p), fix))
		m.forgive(out.uuid)
	}
}

// vague strikes those of g that report failures and name none of their
// neighbours: no ring can be found that spares them.
func (m *Machine) vague(g *group) {
	for _, c := range m.ringMembers(g) {
		if !c.round.vague {
			continue
		}
		if c.record.strikes++; c.record.strikes >= maxStrikes || c.round.newcomer && len(g.ring) > 1 {
			m.expel(c, "kick", "cannot connect, and names none of its neighbours")
		}
	}
}

// expel closes c because of its part in a round, and keeps its address outside.
func (m *Machine) expel(c *client, kind, why string) {
	if c.closing {
		return
	}
	m.keepOut(c, why)
	c.round.kept = true
	if c.round.in {
		m.costs(c)
	}
	m.close(c, kind, why)
}

// absence is an address that is not let in for a while.
type absence struct {
	addr  string     // host and P2P port as others are told
	from  netip.Addr // it came from there
	since time.Duration
	until time.Duration
	wait  time.Duration
	why   string
}

// keepOut lets the address of c wait, twice as long as the last time.
func (m *Machine) keepOut(c *client, why string) {
	addr := c.at(c.listens.p2p).String()
	a := absence{addr: addr, from: c.remote.Addr(), since: m.now, wait: firstWait, why: why}
	if i := m.absent(addr); i >= 0 {
		a.wait = min(2*m.outside[i].wait, longestWait)
		m.outside = slices.Delete(m.outside, i, i+1)
	}
	if len(m.outside) == maxOutside {
		m.outside = slices.Delete(m.outside, 0, 1) // the one that cost a round longest ago
	}
	a.until = m.now + a.wait
	m.outside = append(m.outside, a)
}

// absent returns where addr is in the list, -1 if it is not, or is forgotten: it
// has not cost a round since for much longer than it was told to stay away.
func (m *Machine) absent(addr string) int {
	return slices.IndexFunc(m.outside, func(a absence) bool {
		return a.addr == addr && m.now < a.until+2*a.wait+time.Minute
	})
}

// comeLater returns why c is not let in now, "" if it is.
func (m *Machine) comeLater(c *client) string {
	i := m.absent(c.at(c.listens.p2p).String())
	if i < 0 || m.now >= m.outside[i].until {
		return ""
	}
	a := m.outside[i]
	return fmt.Sprintf("try again in %v: the peer at %s has cost the run a round before (%s)",
		(a.until - m.now + 99*time.Millisecond).Truncate(100*time.Millisecond), a.addr, a.why)
}

// rehabilitate notes that c stands in a ring with others.
func (m *Machine) rehabilitate(c *client) {
	c.record = record{stood: c.record.stood}
	if len(c.group.ring) < 2 {
		return
	}
	if c.record.stood == 0 {
		if i := m.absent(c.at(c.listens.p2p).String()); i >= 0 {
			m.outside = slices.Delete(m.outside, i, i+1)
		}
	}
	c.record.stood = m.round.n
}

// boundNewcomers notes when the members of a round are through: from then on
// newcomers are not waited for as long as members are.
func (m *Machine) boundNewcomers() {
	r := &m.round
	if !r.active || !r.held || r.through {
		return
	}
	for _, c := range m.clients {
		if c.round.in && !c.guest() && c.state == Connecting {
			return
		}
	}
	r.through, r.membersAt = true, m.now
}

// newcomerDue returns when newcomer c has to have reported. Little is
// to come of one that all its neighbours say they cannot reach.
func (m *Machine) newcomerDue(c *client) time.Duration {
	wait := newcomerTime
	if !m.missed(c) {
		wait = max(wait, patienceFactor*(m.round.membersAt-m.round.since))
	}
	return min(m.round.membersAt+wait, m.round.since+m.cfg.RoundTimeout)
}

// missed reports whether the members beside c all say that they cannot reach it.
func (m *Machine) missed(c *client) bool {
	members := 0
	for _, o := range m.near(c) {
		if o.guest() {
			continue
		}
		if !o.marked(c.uuid, m.round.n) {
			return false
		}
		members++
	}
	return members > 0
}

// roundDue returns when the round that runs has to be looked at.
func (m *Machine) roundDue() (time.Duration, bool) {
	if !m.round.active || m.records.round != 0 || m.cfg.RoundTimeout <= 0 {
		return 0, false
	}
	at := m.round.since + m.cfg.RoundTimeout
	if m.round.extended {
		at += m.cfg.RoundTimeout
	}
	if m.round.through {
		for _, c := range m.clients {
			if c.round.in && c.guest() && c.state == Connecting {
				at = min(at, m.newcomerDue(c))
			}
		}
	}
	return at, true
}

// hurryRound ends the wait for those who do not report.
func (m *Machine) hurryRound() {
	at, due := m.roundDue()
	if !due || m.now < at {
		return
	}
	if m.now >= m.round.since+m.cfg.RoundTimeout {
		m.dropLate()
		return
	}
	for _, c := range m.clients {
		if !c.round.in || !c.guest() || c.state != Connecting || m.now < m.newcomerDue(c) {
			continue
		}
		why := fmt.Sprintf("connections not established within %v, long after the members had theirs", (m.now - m.round.since).Round(time.Millisecond))
		if m.missed(c) {
			why = fmt.Sprintf("its neighbours cannot reach it at %v, and it has not connected either: %s", c.at(c.listens.p2p), fix)
		}
		m.expel(c, "dropped", why)
	}
}

// dropLate drops the peers that hold up the round: of two neighbours the one that
// more peers wait for, which need not be the one that has not reported. Peers that
// waited for one that goes get the same time once more.
func (m *Machine) dropLate() {
	late := map[*client]bool{} // is only asked for members
	for _, c := range m.clients {
		if c.round.in && !c.closing && c.state == Connecting {
			late[c] = true
		}
	}
	near := map[*client][]*client{}
	var suspects []*client
	for _, c := range m.clients {
		if !c.round.in || c.closing {
			continue
		}
		near[c] = m.near(c)
		if late[c] || slices.ContainsFunc(near[c], func(o *client) bool { return late[o] }) {
			suspects = append(suspects, c)
		}
	}
	last, excused := m.round.extended, 0
	for len(late) > 0 {
		var out *client
		most := 0
		for _, c := range suspects {
			n := waitFor(c, near[c], late, last)
			if n > most || n == most && n > 0 && laterOut(c, out) {
				out, most = c, n
			}
		}
		if out == nil {
			break
		}
		why := fmt.Sprintf("connections not established within %v", m.now-m.round.since)
		if out.state != Connecting {
			why = fmt.Sprintf("its neighbours could not connect to it within %v", m.now-m.round.since)
		}
		m.expel(out, "dropped", why)
		delete(late, out)
		suspects = without(suspects, out)
		for _, o := range near[out] {
			near[o] = without(near[o], out)
			if late[o] && !last {
				delete(late, o)
				excused++
			}
		}
	}
	if excused > 0 {
		m.round.extended = true
	}
}

// waitFor counts who waits for c: itself, and its neighbours among late. One
// neighbour alone says little against a peer that has reported, unless it is
// the unproven one of the two.
func waitFor(c *client, near []*client, late map[*client]bool, last bool) int {
	n, unlike := 0, false
	for _, o := range near {
		if late[o] {
			n++
			unlike = unlike || c.standing() < o.standing()
		}
	}
	switch {
	case late[c] || unlike && !last:
		return n + 1
	case n < 2 || last:
		return 0
	}
	return n
}

// credit orders clients by what is known of them: 2 for one that has stood in a
// ring with others, 1 for a newcomer that has proved itself, 0 for others.
func (c *client) credit() int {
	switch {
	case c.record.stood > 0:
		return 2
	case c.trial.proof.proved:
		return 1
	}
	return 0
}

// mayBeAccusedBy reports whether a failed connection between c and o says
// anything against c. The word of an unknown peer speaks against itself, as long as
// there is a known one that can be asked.
func (c *client) mayBeAccusedBy(o *client) bool {
	switch {
	case o.record.stood > 0:
		return true
	case c.group.round.known:
		return o.credit() > c.credit()
	}
	return o.credit() >= c.credit()
}

// guest reports whether c is not waited for as long as members are: a newcomer,
// or one that was let in by a round that failed.
func (c *client) guest() bool {
	return c.round.newcomer || c.record.stood == 0 && c.group.round.known
}

// standing is 0 for a newcomer, 1 for a member, 2 for a proven one.
func (c *client) standing() int {
	switch {
	case c.guest():
		return 0
	case c.record.stood == 0:
		return 1
	}
	return 2
}

// laterOut orders two that equally many wait for.
func laterOut(a, b *client) bool {
	if a.standing() != b.standing() {
		return a.standing() < b.standing()
	}
	if (a.state == Connecting) != (b.state == Connecting) {
		return a.state == Connecting
	}
	return a.id > b.id
}
