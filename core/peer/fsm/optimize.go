package fsm

import (
	"fmt"
	"math"
	"slices"

	"github.com/gopccl/gopccl/core/wire"
)

// fallbackMbps is what a PCCL master is told about an edge that could not be
// measured: its solver ends the process over a missing edge (quirk Q9).
const fallbackMbps = 0.001

func (m *Machine) startOptimize() {
	m.flow.step = stepRequests
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
	if len(f.asked) == 0 {
		m.measuredAll()
		return
	}
	f.step = stepProbing
	m.emit(Probe{Call: f.call, Requests: slices.Clone(f.asked)})
}

func (m *Machine) measured(ev Measured) {
	f := m.flow
	if m.status != statusLive || f == nil || f.step != stepProbing || f.call != ev.Call {
		return
	}
	i := slices.IndexFunc(f.asked, func(q wire.BandwidthRequest) bool { return q.To == ev.To })
	if i < 0 || f.reported[i] || !(ev.Mbps > 0) || math.IsInf(ev.Mbps, 0) {
		return
	}
	f.reported[i] = true
	m.send(wire.C2MReportPeerBandwidth{To: ev.To, Mbps: ev.Mbps})
}

func (m *Machine) probesDone(ev ProbesDone) {
	f := m.flow
	if f == nil || f.step != stepProbing || f.call != ev.Call {
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

func (m *Machine) measuredAll() {
	m.flow.step = stepOptimized
	m.send(wire.C2MOptimizeTopologyWorkComplete{})
}

// optimized: the ring comes with the round that follows.
func (m *Machine) optimized(p wire.M2COptimizeTopologyComplete) {
	if !p.Success {
		m.log(true, wire.UUID{}, "optimization failed, voting again")
		m.startOptimize()
		return
	}
	m.vote()
}
