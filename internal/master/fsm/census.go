package fsm

import (
	"iter"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/invariants"
)

// headcount is how many clients are in which state.
type headcount [numStates]int

// voting is how many wait for the votes of others.
func (h *headcount) voting() int {
	return h[VoteAccept] + h[VoteEstablish] + h[VoteOptimize] + h[VoteSync]
}

// census counts the clients of all groups, so that an event costs what the
// group that it concerns has members, and not what the world has clients.
type census struct {
	all      headcount // registered clients
	accepted int
	natives  int // accepted gopccl peers
	asking   int // accepted clients that wait to hear whether peers are pending

	stirred   []*group // something happened in them that may lead to a deadlock
	inhabited []*group // have accepted members, ascending ids
	moved     bool     // inhabited has to be made anew
	changing  bool     // some group may have a change, or a ring that waits for one
}

// stir has the deadlocks of g looked at when the event is through.
func (g *group) stir() {
	if !g.stirred {
		g.stirred = true
		g.census.stirred = append(g.census.stirred, g)
	}
}

// count adds a client in its state to the counts, or takes it from them.
func (g *group) count(c *client, by int) {
	g.here[c.state] += by
	g.census.all[c.state] += by
	g.stir()
}

// join adds a client that has registered.
func (g *group) join(c *client) {
	g.clients = append(g.clients, c)
	c.joined = true
	if c.ways.slot = slices.Index(g.slots, nil); c.ways.slot < 0 {
		c.ways.slot = len(g.slots)
		g.slots = append(g.slots, nil)
	}
	g.slots[c.ways.slot] = c
	g.count(c, 1)
}

// leave takes a client out that has left the world.
func (g *group) leave(c *client) {
	g.count(c, -1)
	c.joined = false
	g.clients = without(g.clients, c)
	g.slots[c.ways.slot] = nil
	for _, o := range g.clients {
		if c.ways.slot < len(o.ways.links) {
			o.ways.links[c.ways.slot] = link{}
		}
	}
	g.setPending(c, false)
	for _, o := range c.ops.by {
		o.tally(-1)
	}
	c.ops.by = nil
	if c.phase == Accepted {
		g.countMember(c, -1)
	}
}

// countMember counts a client that is let in, or that leaves after it was.
func (g *group) countMember(c *client, by int) {
	g.stale, g.census.moved = true, true
	g.census.accepted += by
	if c.native {
		g.natives += by
		g.census.natives += by
	}
	g.stir()
}

// setPending notes whether c waits to hear whether peers are pending.
func (g *group) setPending(c *client, asks bool) {
	if c.pending.open == asks {
		return
	}
	c.pending.open = asks
	if asks {
		g.census.asking++
	} else {
		g.census.asking--
	}
	g.stir()
}

// admit lets a client in.
func (m *Machine) admit(c *client) {
	if c.phase == Accepted {
		return
	}
	c.phase = Accepted
	c.group.countMember(c, 1)
	m.out = append(m.out, Admit{Client: c.id})
}

// members returns the accepted clients of g, oldest first. The slice is shared:
// it may be kept, and must not be written to.
func (m *Machine) members(g *group) []*client {
	if g.stale {
		g.stale, g.members = false, nil
		for _, c := range g.clients {
			if c.phase == Accepted {
				g.members = append(g.members, c)
			}
		}
	}
	return g.members
}

// inhabited returns the groups that have accepted members, by ascending id. The
// slice is shared as that of members is.
func (m *Machine) inhabited() []*group {
	if m.census.moved {
		m.census.moved, m.census.inhabited = false, nil
		for _, g := range m.groups {
			if len(m.members(g)) > 0 {
				m.census.inhabited = append(m.census.inhabited, g)
			}
		}
	}
	return m.census.inhabited
}

// all reports whether there are accepted clients and every one is in state s,
// which must be one of those that only accepted clients are in.
func (m *Machine) all(s State) bool {
	return m.census.accepted > 0 && m.census.all[s] == m.census.accepted
}

// to moves the collective of one client on.
func (o *clientOp) to(s OpState, now time.Duration) {
	if s == VoteComplete && o.t.ops[s] == 0 {
		o.t.ending = wait{since: now}
	}
	if invariants.Enabled {
		again := o.state == VoteComplete && s == Perform && o.t.rescued
		invariants.Check(s == o.state+1 || again, "collective %d of client %d goes from %v to %v", o.t.tag, o.c.id, o.state, s)
	}
	o.tally(-1)
	o.state = s
	o.tally(1)
}

// addOp gives c a part in t.
func (g *group) addOp(c *client, t *tagState, o clientOp) {
	if c.ops.by == nil {
		c.ops.by = map[uint64]*clientOp{}
	}
	o.c, o.t, o.state = c, t, VoteInit
	c.ops.by[t.tag] = &o
	o.tally(1)
	g.stir()
}

// dropOp takes the part away that c has in t.
func (g *group) dropOp(c *client, t *tagState) {
	c.op(t.tag).tally(-1)
	delete(c.ops.by, t.tag)
	g.stir()
}

// tally adds the part to the counts of its client and its collective.
func (o *clientOp) tally(by int) {
	o.t.ops[o.state] += by
	o.c.ops.in[o.state] += by
}

// link returns what is known of the link from c to o, of its group.
func (c *client) link(o *client) link {
	if o.ways.slot < len(c.ways.links) {
		return c.ways.links[o.ways.slot]
	}
	return link{}
}

// setLink notes what is known of the link from c to o, of its group.
func (c *client) setLink(o *client, l link) {
	if n := len(c.group.slots); len(c.ways.links) < n {
		c.ways.links = append(c.ways.links, make([]link, n-len(c.ways.links))...)
	}
	l.known = true
	c.ways.links[o.ways.slot] = l
}

// voters is how many have voted to start t.
func (t *tagState) voters() int { return t.ops[VoteInit] }

// runs is how many take part in t.
func (t *tagState) runs() int { return t.ops[Perform] + t.ops[VoteComplete] }

// tagList holds the collectives of a group in the order in which they came up.
type tagList struct {
	by   map[uint64]*tagState
	list []*tagState // those that were dropped are nil until there are many of them
}

func (l *tagList) get(tag uint64) *tagState { return l.by[tag] }

func (l *tagList) add(tag uint64, now time.Duration) *tagState {
	if l.by == nil {
		l.by = map[uint64]*tagState{}
	}
	t := &tagState{tag: tag, wait: wait{since: now}, at: len(l.list)}
	l.by[tag] = t
	l.list = append(l.list, t)
	return t
}

func (l *tagList) drop(t *tagState) {
	if t.dropped {
		return
	}
	t.dropped = true
	delete(l.by, t.tag)
	l.list[t.at] = nil
	switch {
	case len(l.by) == 0:
		l.list = nil
	case len(l.list) > 2*len(l.by)+8:
		l.list = slices.DeleteFunc(slices.Clone(l.list), func(t *tagState) bool { return t == nil })
		for i, t := range l.list {
			t.at = i
		}
	}
}

// all goes through the list as it was when it began, without what is dropped
// meanwhile.
func (l *tagList) all() iter.Seq[*tagState] {
	list := l.list
	return func(yield func(*tagState) bool) {
		for _, t := range list {
			if t != nil && !t.dropped && !yield(t) {
				return
			}
		}
	}
}
