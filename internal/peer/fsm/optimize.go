package fsm

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// fallbackMbps is what a PCCL master is told about an edge that could not be
// measured: its solver ends the process over a missing edge (quirk Q9).
const fallbackMbps = 0.001

func (m *Machine) startOptimize() {
	m.flow.to(stepRequests)
	m.send(wire.C2MOptimizeTopology{})
}

// probe measures what the master asks this peer for; requests of other peers
// are ignored (control spec, section 13.3).
func (m *Machine) probe(p wire.M2COptimizeTopologyResponse) {
	f := m.flow
	f.asked = nil
	for _, r := range p.Requests {
		known := func(q wire.BandwidthRequest) bool { return q.To == r.To }
		if r.From == m.view.UUID && r.To != m.view.UUID && r.Addr.IsValid() && !slices.ContainsFunc(f.asked, known) {
			f.asked = append(f.asked, r)
		}
	}
	f.reported = make([]bool, len(f.asked))
	if p.Ext.Topology && m.view.MasterTopology {
		f.to(stepProbing)
		f.scheduled = true
		return
	}
	if len(f.asked) == 0 {
		m.measuredAll()
		return
	}
	f.to(stepProbing)
	m.emit(Probe{Call: f.call, Requests: slices.Clone(f.asked)})
}

func (m *Machine) measured(ev Measured) {
	f := m.flow
	if !m.alive() || f == nil || f.step != stepProbing || f.scheduled || f.call != ev.Call {
		return
	}
	i := slices.IndexFunc(f.asked, func(q wire.BandwidthRequest) bool { return q.To == ev.To })
	if i < 0 || f.reported[i] || !(ev.Mbps > 0) || math.IsInf(ev.Mbps, 0) {
		return
	}
	f.reported[i] = true
	m.keepLink(wire.ReportedLink{To: ev.To, Mbps: ev.Mbps})
	m.send(wire.C2MReportPeerBandwidth{To: ev.To, Mbps: ev.Mbps})
}

func (m *Machine) probesDone(ev ProbesDone) {
	f := m.flow
	if f == nil || f.step != stepProbing || f.scheduled || f.call != ev.Call {
		return
	}
	if m.status == statusOver {
		m.abandon()
		return
	}
	for i, q := range f.asked {
		if f.reported[i] {
			continue
		}
		m.log(true, q.To, "bandwidth could not be measured")
		if !m.view.MasterNative {
			m.log(true, q.To, fmt.Sprintf("a PCCL master is told %g Mbit/s instead", fallbackMbps))
			m.send(wire.C2MReportPeerBandwidth{To: q.To, Mbps: fallbackMbps})
		}
	}
	m.measuredAll()
}

// scheduledPacket takes the calls of a master that schedules the probes
// (docs/spec/extensions.md); false if none is due.
func (m *Machine) scheduledPacket(p wire.Packet) bool {
	f := m.flow
	if f == nil || f.step != stepProbing || !f.scheduled || f.through {
		return false
	}
	switch p := p.(type) {
	case wire.M2CProbe:
		if p.Round == 0 || !p.Addr.IsValid() || p.To == m.view.UUID {
			return false
		}
		m.send(wire.C2MProbeState{Round: p.Round, State: wire.ProbeHeard})
		if f.working != 0 {
			// The master gave the running one up.
			f.next = &p
			m.emit(StopProbe{Call: f.call})
			return true
		}
		m.prepareProbe(p)
	case wire.M2CProbeGo:
		if p.Round != f.working || f.sending {
			return true // too late, or it came to nothing
		}
		f.sending = true
		m.emit(SendProbe{Call: f.call, Round: p.Round, Delay: time.Duration(p.Delay) * time.Microsecond})
	case wire.M2CProbesDone:
		f.through, f.next = true, nil
		if f.working != 0 {
			m.emit(StopProbe{Call: f.call})
			return true
		}
		m.measuredAll()
	default:
		return false
	}
	return true
}

func (m *Machine) prepareProbe(p wire.M2CProbe) {
	m.flow.working, m.flow.target, m.flow.sending = p.Round, p.To, false
	m.emit(PrepareProbe{Call: m.flow.call, Round: p.Round, To: p.To, Addr: p.Addr})
}

func (m *Machine) probeReady(ev ProbeReady) {
	f := m.flow
	if f == nil || f.working == 0 || f.working != ev.Round {
		return
	}
	if ev.Err != nil {
		state := wire.ProbeFailed
		if ev.Busy {
			state = wire.ProbeBusy
		}
		m.probeEnded(wire.C2MProbeState{Round: ev.Round, State: state})
		return
	}
	if m.alive() {
		m.send(wire.C2MProbeState{Round: ev.Round, State: wire.ProbeReady})
	}
}

func (m *Machine) probed(ev Probed) {
	f := m.flow
	if f == nil || f.working == 0 || f.working != ev.Round {
		return
	}
	p := wire.C2MProbeState{Round: ev.Round, State: wire.ProbeFailed}
	if ev.Err == nil && ev.Mbps > 0 && !math.IsInf(ev.Mbps, 0) {
		late := min(max(ev.Late, 0).Microseconds(), math.MaxUint32)
		p = wire.C2MProbeState{
			Round: ev.Round, State: wire.ProbeMeasured, Mbps: ev.Mbps, Deviation: ev.Deviation, Late: uint32(late),
		}
		m.keepLink(wire.ReportedLink{To: f.target, Mbps: ev.Mbps, Deviation: ev.Deviation})
	}
	m.probeEnded(p)
}

// probeEnded reports a probe and turns to what came meanwhile.
func (m *Machine) probeEnded(p wire.C2MProbeState) {
	f := m.flow
	f.working, f.sending = 0, false
	if m.status == statusOver {
		m.abandon()
		return
	}
	m.send(p)
	switch next := f.next; {
	case f.through:
		m.measuredAll()
	case next != nil:
		f.next = nil
		m.prepareProbe(*next)
	}
}

func (m *Machine) measuredAll() {
	m.flow.to(stepOptimized)
	m.send(wire.C2MOptimizeTopologyWorkComplete{})
}

// optimized takes the end of the optimization; the ring comes with the round that follows.
func (m *Machine) optimized(p wire.M2COptimizeTopologyComplete) {
	if !p.Success {
		m.log(true, wire.UUID{}, "optimization failed, voting again")
		m.startOptimize()
		return
	}
	m.resume.optimized = p.Decision
	m.vote()
}
