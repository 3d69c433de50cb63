package fsm

import (
	"slices"

	"github.com/gopccl/gopccl/core/wire"
)

// Topology returns what is known of the links of every group with accepted
// members, and the ring in force: a copy, owned by the caller.
func (m *Machine) Topology() (out []wire.GroupTopology) {
	for _, g := range m.groups {
		ms, x := m.matrix(g)
		if len(ms) == 0 {
			continue
		}
		t := wire.GroupTopology{Group: g.id, Mbps: x.Mbps}
		for _, c := range ms {
			t.Peers = append(t.Peers, wire.PeerEndpoint{Addr: c.at(c.p2pPort), UUID: c.uuid})
		}
		for _, i := range indices(ms, g.ring) {
			if i < 0 { // a round with newcomers is under way
				t.Ring = nil
				break
			}
			t.Ring = append(t.Ring, uint32(i))
		}
		out = append(out, t)
	}
	return out
}

// showTopology answers whoever asks; a stranger may ask once.
func (m *Machine) showTopology(c *client) {
	if !c.registered {
		if c.asked {
			m.kick(c, "asked for the topology twice")
			return
		}
		c.asked = true
	}
	m.send(c, wire.M2CTopology{Groups: slices.Clip(m.Topology())})
}
