package fsm

import (
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/internal/wire"
)

// returnedLate takes a packet of a client that has come back when the others had gone on
// without it. A newcomer has missed nothing but a round that has failed; a member has.
func (m *Machine) returnedLate(b *comeback, e PacketIn) {
	switch p := e.Packet.(type) {
	case wire.C2MHeartbeat:
		m.beat(b.c, p)
	case wire.C2MReport:
		if b.report != nil {
			return
		}
		b.report = &p
		m.judgeLate(b)
	case wire.C2MP2PConnectionsEstablished:
		m.send(b.c, wire.M2CP2PConnectionsEstablished{})
	case wire.C2MRequestEstablishP2PConnections:
		m.comeLate(b)
	case wire.C2MAskTopology:
		b.c.questions.once = false // it has a session, if not here
		m.showTopology(b.c)
	case wire.C2MLinkEnded, wire.C2MFarewell, wire.C2MPreflightDone: // of what nobody waits for any more
	default:
		m.turnBack(b, fmt.Sprintf("packet %T of a newcomer", e.Packet))
	}
}

// judgeLate lets in one that has come back late, or turns it back. A round in which others connect to
// it fails, because it has left: it waits for that, and hears whose connections it has to take.
func (m *Machine) judgeLate(b *comeback) {
	p, counted := b.report, m.countedOn(b)
	missed := p.Round.Decision != 0 || p.Call.Step > wire.StepRing
	switch {
	case m.another(b):
		m.recovery.lost(b.c)
		m.giveWay()
		b.late, b.report = false, nil
		m.recovery.add(b)
		m.returned(b, PacketIn{Client: b.c.id, Packet: *p})
	case !b.hasMet() && p.Round.Decision != 0 && !counted: // it has been alone
		m.recovery.lost(b.c)
		m.sendBack(b.c)
	case !missed && counted && m.round.active:
		if b.waits = true; b.c.listens.as.Name != "" {
			m.send(b.c, m.roll(m.present(b.group)))
		}
	case missed || counted:
		m.turnBack(b, "this master went on without the session: its peer was away for too long")
	default:
		m.send(b.c, wire.M2CResumed{})
		m.takeLate(b)
	}
}

// judgeWaiting judges those who wait for the end of a round.
func (m *Machine) judgeWaiting() {
	for _, b := range slices.Clone(m.recovery.back) {
		if b.waits {
			b.waits = false
			m.judgeLate(b)
		}
	}
}

// present returns the clients of a group.
func (m *Machine) present(id uint32) (us []wire.UUID) {
	for _, c := range m.clients {
		if c.group.id == id {
			us = append(us, c.uuid)
		}
	}
	return us
}

// countedOn reports whether the others have a ring with b, which was gone before it heard of
// that: it would never take part in what they do over the connections to it.
func (m *Machine) countedOn(b *comeback) bool {
	return slices.ContainsFunc(m.groups, func(g *group) bool { return g.id == b.group && slices.Contains(g.ring, b.c.uuid) })
}

// takeLate goes on with a newcomer that has reported, when the others have gone on.
func (m *Machine) takeLate(b *comeback) {
	b.late = true
	switch b.report.Call.Step {
	case wire.StepConnecting: // C2M 3 follows
	case wire.StepRing:
		m.send(b.c, wire.M2CP2PConnectionsEstablished{})
	default:
		m.comeLate(b)
	}
}

// comeLate makes b a newcomer that waits to be let in.
func (m *Machine) comeLate(b *comeback) {
	m.recovery.lost(b.c)
	m.enter(b.c, b.group)
	b.c.place.neighbours = []wire.UUID{b.c.uuid}
	m.arrived(b.c)
}
