package fsm

import (
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// preparation is a ring that the master wants to switch to: its neighbours are
// connected beside whatever runs (docs/spec/extensions.md, "Switching rings").
type preparation struct {
	change    uint64
	peers     []wire.PeerEndpoint   // neighbours
	ways      []wire.PeerEndpoint   // others that plans need
	stands    bool                  // they are connected
	failed    bool                  // ... or could not be
	unreached []wire.UUID           // ... because of these
	answer    *wire.C2MRingPrepared // waits for eager operations to be commenced
	leaver    wire.UUID             // who is not in it and leaves; zero: nobody
	epoch     uint64                // that begins with it, then
}

// prepareRing connects to the neighbours of a ring to come, which begins epoch if it
// is one without a leaver; false if the packet is not allowed now.
func (m *Machine) prepareRing(p wire.M2CPrepareRing, leaver wire.UUID, epoch uint64) bool {
	inRound := m.flow != nil && (m.flow.step == stepConnecting || m.flow.step == stepRing)
	if !m.view.MasterSwitch || !m.view.Connected || inRound || m.prep != nil || len(p.Peers) == 0 {
		return false
	}
	m.prep = &preparation{change: p.Change, leaver: leaver, epoch: epoch}
	m.sendHeld()
	if leaver != (wire.UUID{}) {
		m.withdraw()
	}
	var news, ways []wire.PeerEndpoint
	seen := make(map[wire.UUID]bool, len(p.Peers))
	for i, e := range p.Peers {
		if !slices.Contains(m.view.Ring, e.UUID) || e.UUID == m.view.UUID || e.UUID == leaver || !e.Addr.IsValid() || seen[e.UUID] {
			m.end(errs.Protocol, "the master sent neighbours with this peer, a stranger, a duplicate or an invalid address among them")
			return true
		}
		seen[e.UUID] = true
		if i >= neighbours { // of ways it is looked at whether they still are
			m.prep.ways, ways = append(m.prep.ways, e), append(ways, e)
			continue
		}
		m.prep.peers = append(m.prep.peers, e)
		if !slices.ContainsFunc(m.peers, func(o wire.PeerEndpoint) bool { return o.UUID == e.UUID }) {
			news = append(news, e)
		}
	}
	if len(news)+len(ways) == 0 {
		m.ringPrepared(RingPrepared{Change: p.Change})
		return true
	}
	m.emit(PrepareRing{Change: p.Change, Peers: news, Ways: ways})
	return true
}

// neighbours is how many a member of a ring has, at most. They stand first in M2C 70.
const neighbours = 2

func (m *Machine) ringPrepared(ev RingPrepared) {
	if !m.alive() || m.prep == nil || m.prep.change != ev.Change || m.prep.stands || m.prep.failed {
		return
	}
	m.prep.failed = len(ev.Failed) > 0
	m.prep.stands, m.prep.unreached = !m.prep.failed, slices.Clone(ev.Failed)
	for _, u := range ev.Failed {
		m.log(true, u, "peer of a better ring could not be reached")
	}
	m.prep.answer = &wire.C2MRingPrepared{Change: ev.Change, FailedPeers: slices.Clone(ev.Failed)}
	m.answerPrepared()
}

// answerPrepared tells the master of the ring to come when no operation runs
// that has begun without a commence: the master's order of commences and
// switches says which ring an operation runs in.
func (m *Machine) answerPrepared() {
	if m.prep == nil || m.prep.answer == nil {
		return
	}
	ready := m.lent == 0
	if m.prep.leaver != (wire.UUID{}) { // of what began eagerly nothing is ever commenced in the old ring
		ready = !slices.ContainsFunc(m.ops, func(op *operation) bool { return op.withdrawn })
	}
	if ready {
		m.send(*m.prep.answer)
		m.prep.answer = nil
	}
}

// switchRing lets the operations that are not commenced yet, and those to come,
// use another ring; false if the packet is not allowed now.
func (m *Machine) switchRing(p wire.M2CSwitchRing) bool {
	if m.prep == nil || m.prep.change != p.Change {
		return m.view.MasterSwitch && len(p.Ring) == 0 // given up before it was begun
	}
	prep := m.prep
	if len(p.Ring) == 0 {
		m.prep = nil
		if !prep.stands && !prep.failed {
			m.emit(StopPrepare{Change: p.Change})
		}
		m.unneeded = true
		m.release()
		return true
	}
	rank := slices.Index(p.Ring, m.view.UUID)
	if !prep.stands || prep.answer != nil || rank < 0 || !m.fits(p.Ring, rank) {
		return false
	}
	large, err := plansOf(p.Direct, len(m.view.Members))
	if p.Direct != (wire.Direct{}) && !m.view.MasterPlans || err != nil || !m.connects(p.Direct, large) {
		return false
	}
	m.view.Direct, m.view.Large, m.resume.taken = p.Direct, large, p.Change
	m.prep, m.peers, m.ways = nil, prep.peers, prep.ways
	m.view.Ring, m.view.Rank = slices.Clone(p.Ring), rank
	for _, op := range m.ops {
		switch op.state {
		case opQueued, opVoting:
			op.ring = slices.Clone(p.Ring)
		case opRunning, opReported:
			op.older = true
		}
	}
	e := SwitchRing{Epoch: prep.epoch}
	for _, n := range slices.Concat(m.peers, m.ways) {
		e.Neighbours = append(e.Neighbours, n.UUID)
	}
	m.emit(e)
	m.unneeded = true
	m.release()
	return true
}

// connects reports whether this peer is connected with all whom it needs for plans: over a
// mesh, or because the ring to come was prepared with them.
func (m *Machine) connects(d wire.Direct, o *plan.Options) bool {
	if m.mesh.state == meshDirect || d == (wire.Direct{}) {
		return true
	}
	if d.Most > 0 || !m.view.MasterWays {
		return false
	}
	me := slices.Index(m.view.Members, m.view.UUID)
	with := slices.Concat(m.prep.peers, m.prep.ways)
	for i := range o.List {
		if o.List[i].Scheme == nil {
			continue
		}
		for _, k := range o.List[i].Scheme.Ways(len(m.view.Members))[me] {
			if !slices.ContainsFunc(with, func(e wire.PeerEndpoint) bool { return e.UUID == m.view.Members[k] }) {
				return false
			}
		}
	}
	return true
}

// plansOf reads the plans of large all-reduces in a group of n.
func plansOf(d wire.Direct, n int) (*plan.Options, error) {
	if d.Schemes == "" {
		return nil, nil
	}
	return plan.ParseOptions([]byte(d.Schemes), n)
}

// fits reports whether ring has the members of the one in force, each once, and
// the neighbours that are connected.
func (m *Machine) fits(ring []wire.UUID, rank int) bool {
	n := len(ring)
	if n != len(m.view.Ring) {
		return false
	}
	seen := make(map[wire.UUID]bool, n)
	for _, u := range ring {
		if seen[u] || !slices.Contains(m.view.Ring, u) {
			return false
		}
		seen[u] = true
	}
	for _, u := range []wire.UUID{ring[(rank+1)%n], ring[(rank+n-1)%n]} {
		if !slices.ContainsFunc(m.prep.peers, func(e wire.PeerEndpoint) bool { return e.UUID == u }) {
			return false
		}
	}
	return true
}

// release lets the connections of older rings go when no operation uses them.
func (m *Machine) release() {
	if !m.unneeded || !m.alive() {
		return
	}
	for _, op := range m.ops {
		if op.older && op.state != opSettled {
			return
		}
	}
	m.unneeded = false
	e := Release{}
	for _, n := range slices.Concat(m.peers, m.ways) {
		e.Keep = append(e.Keep, n.UUID)
	}
	if m.prep != nil {
		for _, n := range slices.Concat(m.prep.peers, m.prep.ways) {
			e.Keep = append(e.Keep, n.UUID)
		}
	}
	if m.mesh.connected() {
		e.Keep = append(e.Keep, m.view.Members...)
	}
	m.emit(e)
}
