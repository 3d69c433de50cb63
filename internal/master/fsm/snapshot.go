package fsm

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// Snapshot is the state of the world for people: a copy, owned by the caller.
type Snapshot struct {
	Clients      []ClientInfo // oldest first
	Groups       []GroupInfo  // ascending ids
	Unregistered int          // connections that did not register
	RoundActive  bool
	RoundAccepts bool   // the active round lets newcomers in
	Collectives  uint64 // commenced so far
	Term         uint32
	Recovery     *RecoveryInfo // nil: there is none
}

// ClientInfo is one registered client.
type ClientInfo struct {
	ID          ClientID
	UUID        wire.UUID
	Remote      netip.AddrPort
	Name        string // in its certificate; "": it has none
	PCCL        bool   // Identity.PCCL
	Group       uint32
	Native      bool
	Phase       Phase
	State       State
	Pending     bool // waits for the answer whether peers are pending
	Collectives []OpInfo
}

// OpInfo is one collective of a client.
type OpInfo struct {
	Kind  plan.Kind
	Tag   uint64
	State OpState
}

// GroupInfo is one peer group.
type GroupInfo struct {
	ID           uint32
	Members      int // accepted
	Waiting      int // registered, not accepted
	Ring         []wire.UUID
	NextRevision uint64
}

// Snapshot returns the state of the world.
func (m *Machine) Snapshot() Snapshot {
	s := Snapshot{
		Unregistered: len(m.silent), RoundActive: m.round.active,
		RoundAccepts: m.round.active && m.round.accept, Collectives: ordinal(m.numbers.collectives),
		Term: m.cfg.Term, Recovery: m.recovering(),
	}
	for _, c := range m.clients {
		if c.closing { // it waits for a confirmation
			continue
		}
		i := ClientInfo{
			ID: c.id, UUID: c.uuid, Remote: c.remote, Name: c.listens.as.Name, PCCL: c.listens.as.PCCL, Group: c.group.id, Native: c.native,
			Phase: c.phase, State: c.state, Pending: c.pending.open,
		}
		for _, o := range slices.SortedFunc(maps.Values(c.ops.by), func(a, b *clientOp) int { return cmp.Compare(a.n, b.n) }) {
			i.Collectives = append(i.Collectives, OpInfo{plan.Kind(o.call.Kind), o.t.tag, o.state})
		}
		s.Clients = append(s.Clients, i)
	}
	for _, g := range m.groups {
		n, waiting := 0, 0
		for _, c := range g.clients {
			switch {
			case c.closing:
			case c.phase == Accepted:
				n++
			default:
				waiting++
			}
		}
		s.Groups = append(s.Groups, GroupInfo{
			ID: g.id, Members: n, Waiting: waiting, Ring: slices.Clone(g.ring), NextRevision: g.state.next,
		})
	}
	return s
}

// check states what must hold between two steps.
func (m *Machine) check() {
	invariants.Check(len(m.leaving) == 0, "clients closed but not removed")
	invariants.Check(len(m.census.stirred) == 0 || m.records.drop != 0, "groups were not looked at")
	var seen census
	for _, c := range m.clients {
		invariants.Check((!c.closing || m.records.drop != 0) && c.registered, "client %d is on its way out but in the world", c.id)
		invariants.Check((m.conns[c.id] == c || c.place.away) && m.uuids[c.uuid] == c, "client %d is not indexed", c.id)
		invariants.Check((c.state == Collective) == (len(c.ops.by) > 0), "client %d in %v has %d collectives", c.id, c.state, len(c.ops.by))
		invariants.Check(c.phase == Accepted || c.state <= Waiting, "client %d in %v was never accepted", c.id, c.state)
		invariants.Check((c.state == Connecting || c.state == Waiting) == (c.round.in && c.state != ConnectFailed), "client %d in %v, in round %v", c.id, c.state, c.round.in)
		invariants.Check(!c.round.in || m.round.active, "client %d in a round that is over", c.id)
		for tag, o := range c.ops.by {
			invariants.Check(o.c == c && o.t.tag == tag && c.group.tags.get(tag) == o.t, "collective %d of client %d has no record", tag, c.id)
		}
		seen.all[c.state]++
		if c.phase == Accepted {
			seen.accepted++
		}
		if c.phase == Accepted && c.native {
			seen.natives++
		}
		if c.pending.open {
			seen.asking++
		}
	}
	invariants.Check(seen.all == m.census.all && seen.accepted == m.census.accepted && seen.natives == m.census.natives && seen.asking == m.census.asking,
		"counted %+v, there are %+v", m.census, seen)
	n := 0
	for _, g := range m.groups {
		invariants.Check(len(m.clients) > 0 || m.cfg.PCCLRevisionRule, "group %d outlived its clients", g.id)
		m.checkGroup(g)
		n += len(g.clients)
	}
	invariants.Check(n == len(m.clients), "groups have %d clients, there are %d", n, len(m.clients))
}

// checkGroup states that what a group counts is what its clients are.
func (m *Machine) checkGroup(g *group) {
	var here headcount
	var members []*client
	natives := 0
	for _, c := range g.clients {
		invariants.Check(c.group == g && c.joined && (m.conns[c.id] == c || c.place.away), "client %d is none of group %d", c.id, g.id)
		here[c.state]++
		if c.phase == Accepted {
			members = append(members, c)
		}
		if c.phase == Accepted && c.native {
			natives++
		}
	}
	invariants.Check(here == g.here && natives == g.natives, "group %d counts %v and %d, there are %v and %d", g.id, g.here, g.natives, here, natives)
	invariants.Check(slices.Equal(members, m.members(g)), "group %d has other members", g.id)
	for t := range g.tags.all() {
		var ops [numOpStates]int
		for _, c := range g.clients {
			if o := c.op(t.tag); o != nil {
				ops[o.state]++
			}
		}
		invariants.Check(ops == t.ops && g.tags.get(t.tag) == t, "collective %d of group %d counts %v, there are %v", t.tag, g.id, t.ops, ops)
	}
}
