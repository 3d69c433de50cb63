package fsm

import (
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
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
			t.Peers = append(t.Peers, wire.PeerEndpoint{Addr: c.at(c.listens.p2p), UUID: c.uuid})
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

// Bounds on questions for the topology: how often one connection may ask, and how
// many numbers of matrices are written for all together, per topologyTick.
var (
	topologyAsks  = rate{4, time.Second}
	topologyTick  = 100 * time.Millisecond
	topologyCells = 1 << 18
)

// shows are the answers to questions for the topology.
type shows struct {
	owed []*client     // in the order in which they asked
	at   time.Duration // none is given before
	used int           // numbers that were written and not paid for yet
}

// showTopology answers any client; a stranger may ask once. The answer is a matrix,
// and the question has ten bytes: a client that asks too often, or with too many
// others, is answered later, and once for all that it has asked meanwhile.
func (m *Machine) showTopology(c *client) {
	if !c.registered {
		if c.questions.once {
			m.kick(c, "asked for the topology twice")
			return
		}
		c.questions.once = true
	}
	if c.questions.owed {
		return
	}
	c.questions.owed = true
	m.shows.owed = append(m.shows.owed, c)
	m.payTopology()
}

// payTopology answers those who have asked and whose time has come. The answer
// is made once for all.
func (m *Machine) payTopology() {
	if len(m.shows.owed) == 0 || m.now < m.shows.at {
		return
	}
	var answer wire.Packet
	cells := 0
	rest := m.shows.owed[:0:0]
	for i, c := range m.shows.owed {
		if c.closing {
			c.questions.owed = false
			continue
		}
		if m.now < m.shows.at || !c.questions.pace.ready(m.now, topologyAsks) {
			rest = append(rest, m.shows.owed[i])
			continue
		}
		if answer == nil {
			gs := slices.Clip(m.Topology())
			answer = wire.M2CTopology{Groups: gs}
			for _, g := range gs {
				cells += len(g.Mbps) + len(g.Peers)
			}
		}
		c.questions.pace.take(m.now, topologyAsks)
		c.questions.owed = false
		m.send(c, answer)
		// The next one has to wait until what this one cost is paid for.
		m.shows.used += cells
		if m.shows.used >= topologyCells {
			m.shows.at = m.now + time.Duration(m.shows.used/topologyCells)*topologyTick
			m.shows.used %= topologyCells
		}
	}
	m.shows.owed = rest
}

// topologyDue returns when a client that has asked is to be answered.
func (m *Machine) topologyDue() (time.Duration, bool) {
	if len(m.shows.owed) == 0 {
		return 0, false
	}
	due := time.Duration(0)
	for i, c := range m.shows.owed {
		at := m.now
		if !c.questions.pace.ready(m.now, topologyAsks) {
			at = c.questions.pace.at
		}
		if i == 0 || at < due {
			due = at
		}
	}
	return max(due, m.shows.at), true
}
