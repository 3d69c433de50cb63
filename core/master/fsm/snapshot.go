package fsm

import (
	"net/netip"
	"slices"

	"github.com/gopccl/gopccl/core/invariants"
	"github.com/gopccl/gopccl/core/wire"
)

// Snapshot is the state of the world for people: a copy, owned by the caller.
type Snapshot struct {
	Clients      []ClientInfo // oldest first
	Groups       []GroupInfo  // ascending ids
	Unregistered int          // connections that did not register
	RoundActive  bool
	RoundAccepts bool   // the active round lets newcomers in
	Collectives  uint64 // commenced so far
}

// ClientInfo is one registered client.
type ClientInfo struct {
	ID          ClientID
	UUID        wire.UUID
	Remote      netip.AddrPort
	Group       uint32
	Native      bool
	Phase       Phase
	State       State
	Pending     bool // waits for the answer whether peers are pending
	Collectives []OpInfo
}

// OpInfo is one collective of a client.
type OpInfo struct {
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
		RoundAccepts: m.round.active && m.round.accept, Collectives: m.seq,
	}
	for _, c := range m.clients {
		i := ClientInfo{
			ID: c.id, UUID: c.uuid, Remote: c.remote, Group: c.group.id, Native: c.native,
			Phase: c.phase, State: c.state, Pending: c.pending,
		}
		for _, o := range c.ops {
			i.Collectives = append(i.Collectives, OpInfo{o.tag, o.state})
		}
		s.Clients = append(s.Clients, i)
	}
	for _, g := range m.groups {
		i := GroupInfo{ID: g.id, Ring: slices.Clone(g.ring), NextRevision: g.nextRev}
		for _, c := range m.clients {
			switch {
			case c.group != g:
			case c.phase == Accepted:
				i.Members++
			default:
				i.Waiting++
			}
		}
		s.Groups = append(s.Groups, i)
	}
	return s
}

// check states what must hold between two steps.
func (m *Machine) check() {
	type use struct {
		g   *group
		tag uint64
	}
	known := map[use]bool{}
	for _, g := range m.groups {
		for _, t := range g.tags {
			known[use{g, t.tag}] = true
		}
	}
	invariants.Check(len(m.gone) == 0, "clients closed but not removed")
	for _, c := range m.clients {
		invariants.Check(!c.closing && c.registered, "client %d is on its way out but in the world", c.id)
		invariants.Check(m.conns[c.id] == c && m.uuids[c.uuid] == c, "client %d is not indexed", c.id)
		invariants.Check((c.state == Collective) == (len(c.ops) > 0), "client %d in %v has %d collectives", c.id, c.state, len(c.ops))
		invariants.Check(c.phase == Accepted || c.state <= Waiting, "client %d in %v was never accepted", c.id, c.state)
		invariants.Check((c.state == Connecting || c.state == Waiting) == (c.inRound && c.state != ConnectFailed), "client %d in %v, in round %v", c.id, c.state, c.inRound)
		invariants.Check(!c.inRound || m.round.active, "client %d in a round that is over", c.id)
		for _, o := range c.ops {
			invariants.Check(known[use{c.group, o.tag}], "collective %d of client %d has no record", o.tag, c.id)
		}
	}
	for _, g := range m.groups {
		invariants.Check(len(m.clients) > 0 || m.cfg.PCCLRevisionRule, "group %d outlived its clients", g.id)
	}
}
