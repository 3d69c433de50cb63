package core

import (
	"net/netip"

	"github.com/gopccl/gopccl/internal/master"
)

// MasterStatus is the world as a master sees it at one moment. All of it is the
// caller's. Fields may be added.
type MasterStatus struct {
	// Clients are the registered peers, oldest first.
	Clients []ClientStatus
	// Groups are the peer groups, by ascending number.
	Groups []GroupStatus
	// Unregistered is the number of connections that did not register yet.
	Unregistered int
	// RoundActive says that neighbours are being connected, RoundAccepts that the
	// round lets newcomers in.
	RoundActive, RoundAccepts bool
	// Collectives is how many collectives have commenced so far.
	Collectives uint64
}

// ClientStatus is one registered peer.
type ClientStatus struct {
	UUID   UUID
	Remote netip.AddrPort // of its connection to the master
	Group  uint32
	Native bool // a gopccl peer
	// Accepted says that it was let in.
	Accepted bool
	// State is what the peer does or waits for, in the words of the control spec,
	// section 5, such as "IDLE" or "VOTE_SYNC_SHARED_STATE".
	State string
	// Pending says that it waits for the answer to PeersPending.
	Pending bool
	// Collectives are those without a verdict, in the order of their launch.
	Collectives []CollectiveStatus
}

// CollectiveStatus is one collective of a peer. State is in the words of the
// control spec, section 5, such as "PERFORM_COLLECTIVE_COMMS".
type CollectiveStatus struct {
	Kind  string // such as "all-gather"
	Tag   uint64
	State string
}

// GroupStatus is one peer group.
type GroupStatus struct {
	ID uint32
	// Members are accepted, Waiting wait to be let in.
	Members, Waiting int
	// Ring is the order of the members, empty before the first round.
	Ring []UUID
	// NextRevision is the revision of the shared state that the group expects.
	NextRevision uint64
}

// Status returns peers, rings and votes as they are now, the zero value if Run
// does not run.
func (m *Master) Status() MasterStatus {
	in := m.s.Snapshot()
	st := MasterStatus{
		Unregistered: in.Unregistered, RoundActive: in.RoundActive, RoundAccepts: in.RoundAccepts,
		Collectives: in.Collectives,
	}
	for _, c := range in.Clients {
		out := ClientStatus{
			UUID: UUID(c.UUID), Remote: c.Remote, Group: c.Group, Native: c.Native,
			Accepted: c.Phase == master.Accepted, State: c.State.String(), Pending: c.Pending,
		}
		for _, o := range c.Collectives {
			out.Collectives = append(out.Collectives, CollectiveStatus{Kind: o.Kind.String(), Tag: o.Tag, State: o.State.String()})
		}
		st.Clients = append(st.Clients, out)
	}
	for _, g := range in.Groups {
		st.Groups = append(st.Groups, GroupStatus{
			ID: g.ID, Members: g.Members, Waiting: g.Waiting, Ring: uuids(g.Ring), NextRevision: g.NextRevision,
		})
	}
	return st
}

// Topology is what is known of the links of a group.
type Topology struct {
	Group uint32
	// Peers are the members; Ring and Mbps count in this order.
	Peers []TopologyPeer
	// Ring is the ring in force as positions in Peers, empty before the first round.
	Ring []int
	// Mbps are the measured rates in Mbit/s, len(Peers) squared, row from, column
	// to; 0 where unknown.
	Mbps []float64
}

// TopologyPeer is a member of a group and the address at which the others reach it.
type TopologyPeer struct {
	UUID UUID
	Addr netip.AddrPort
}

// Topology returns what the master knows of the links of every group, nil if Run
// does not run.
func (m *Master) Topology() []Topology {
	var all []Topology
	for _, g := range m.s.Topology() {
		t := Topology{Group: g.Group, Mbps: g.Mbps, Peers: make([]TopologyPeer, len(g.Peers)), Ring: make([]int, len(g.Ring))}
		for i, p := range g.Peers {
			t.Peers[i] = TopologyPeer{UUID(p.UUID), p.Addr}
		}
		for i, at := range g.Ring {
			t.Ring[i] = int(at)
		}
		all = append(all, t)
	}
	return all
}
