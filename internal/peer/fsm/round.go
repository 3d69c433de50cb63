package fsm

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// connect registers (control spec, section 13.3).
func (m *Machine) connect(c CallConnect) {
	switch {
	case m.status == statusOver:
		m.done(c.Call, errs.New(errs.InvalidUsage, kindNames[kindConnect], m.ended).WithHint(hintReconnect))
		return
	case m.view.Connected:
		m.done(c.Call, errs.New(errs.InvalidUsage, kindNames[kindConnect], errors.New("already connected")))
		return
	case m.alive():
		m.done(c.Call, errs.New(errs.Busy, kindNames[kindConnect], errors.New("connect is running")))
		return
	}
	m.status = statusLive
	m.flow = &flow{kind: kindConnect, call: c.Call, accept: true}
	m.flow.to(stepRegister)
	if t := m.cfg.RegisterTimeout; t > 0 {
		m.live.registerBy = m.now + t
	}
	m.send(m.hello())
}

func (m *Machine) registered(p wire.M2CSessionRegistrationResponse) {
	m.live.registerBy = 0
	if !p.Accepted {
		reason := p.Ext.Reason
		if reason == "" {
			// PCCL's only reason (control spec, section 6).
			reason = "the master refused the registration: loopback and other addresses cannot mix in one run"
		}
		code := errs.MasterConnectionFailed
		if p.Ext.ReasonCode != 0 {
			code = errs.Code(p.Ext.ReasonCode)
		}
		m.end(code, reason)
		return
	}
	m.granted(p)
	m.flow.to(stepInfo)
}

// changePhase starts one of the calls that exclude each other and collectives.
func (m *Machine) changePhase(ev Event) {
	f := &flow{}
	switch ev := ev.(type) {
	case CallUpdate:
		f.kind, f.call, f.accept = kindUpdate, ev.Call, true
	case CallOptimize:
		f.kind, f.call = kindOptimize, ev.Call
	case CallSync:
		f.kind, f.call, f.sync, f.query = kindSync, ev.Call, ev, m.query
	}
	if err := m.usable(f.kind); err != nil {
		m.done(f.call, err)
		return
	}
	if u, update := ev.(CallUpdate); update && m.adopts(u) || m.postpone(ev) {
		return
	}
	if err := m.mayStart(f); err != nil {
		m.done(f.call, err)
		return
	}
	m.flow = f
	switch f.kind {
	case kindUpdate:
		m.vote()
	case kindOptimize:
		m.startOptimize()
	case kindSync:
		m.startSync()
	}
}

// busy returns why no call of kind k can start now, nil if one can.
func (m *Machine) busy(k kind) error {
	name := kindNames[k]
	if m.flow != nil {
		return errs.New(errs.Busy, name, fmt.Errorf("%s is running", kindNames[m.flow.kind]))
	}
	if n := len(m.ops); n > 0 {
		return errs.New(errs.PendingAsyncOps, name, fmt.Errorf("%d operations were not awaited", n)).
			WithHint("await every launched operation first")
	}
	return nil
}

// mayStart returns why f cannot start now, nil if it can.
func (m *Machine) mayStart(f *flow) error {
	name := kindNames[f.kind]
	if err := m.busy(f.kind); err != nil {
		return err
	}
	switch f.kind {
	case kindOptimize:
		if m.view.GlobalWorldSize < 2 {
			return errs.New(errs.InvalidUsage, name, errors.New("there is no link to measure: the world has one peer"))
		}
	case kindSync:
		return m.checkSync(f.sync)
	}
	return nil
}

// vote asks for a round of the flow's flavour. The decision of the flow stays that of the round
// that has failed.
func (m *Machine) vote() {
	m.flow.to(stepInfo)
	m.flow.voted = true
	m.send(wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: m.flow.accept})
}

// repair runs the round that is due after a failed operation. Without a caller
// it runs in the background.
func (m *Machine) repair(call CallID, background bool, cause error) {
	m.flow = &flow{kind: kindAwait, call: call, background: background, cause: cause}
	m.vote()
}

// rememberPeers keeps the list of a connection info; false ends the session.
func (m *Machine) rememberPeers(p wire.M2CP2PConnectionInfo) bool {
	if p.Unchanged {
		return true
	}
	seen := map[wire.UUID]bool{m.view.UUID: true}
	for _, e := range p.Peers {
		if seen[e.UUID] || !e.Addr.IsValid() {
			m.end(errs.Protocol, "the master sent a peer list with this peer, a duplicate or an invalid address in it")
			return false
		}
		seen[e.UUID] = true
	}
	m.peers = slices.Clone(p.Peers)
	return true
}

func (m *Machine) roundOpened(p wire.M2CP2PConnectionInfo) {
	for _, n := range []uint64{p.GlobalWorldSize, p.LocalWorldSize, p.NumDistinctGroup, p.LargestGroupSize} {
		if n > math.MaxInt32 {
			m.end(errs.Protocol, fmt.Sprintf("the master counts %d peers", n))
			return
		}
	}
	if !m.rememberPeers(p) {
		return
	}
	m.view.GlobalWorldSize = int(p.GlobalWorldSize)
	m.view.LocalWorldSize = int(p.LocalWorldSize)
	m.view.NumGroups = int(p.NumDistinctGroup)
	m.view.LargestGroupSize = int(p.LargestGroupSize)
	m.view.Native = p.Ext.GroupNative && m.view.MasterNative
	m.nextEpoch = 0
	if m.view.Native {
		m.nextEpoch = p.Ext.Epoch
	}
	if !m.countMembers(p) {
		m.end(errs.Protocol, "the master sent members that are not those of the group")
		return
	}
	m.round++
	m.stopMesh()
	m.answerMesh(m.mesh.calls, errs.New(errs.RankConnectionLost, "send", errors.New("a round has begun")).WithHint("repeat it after the round"))
	m.prep, m.unneeded, m.mesh, m.view.Mesh, m.view.Direct = nil, false, mesh{kept: m.mesh.connected() || len(m.ways) > 0}, false, wire.Direct{}
	m.view.Large, m.ways = nil, nil
	m.flow.to(stepConnecting)
	m.resume.told = nil
	m.resume.missed = slices.DeleteFunc(m.resume.missed, func(u wire.UUID) bool { // it is tried again
		return slices.ContainsFunc(m.peers, func(e wire.PeerEndpoint) bool { return e.UUID == u })
	})
	m.flow.decision = p.Ext.Resuming.Decision
	// Unchanged lists are established again, too: a connection between living
	// peers may have broken (quirk Q17).
	e := Establish{Round: m.round, Epoch: m.nextEpoch, Peers: slices.Clone(m.peers)}
	if m.mesh.kept {
		e.Keep = slices.Clone(m.view.Members)
	}
	m.emit(e)
}

// countMembers takes over what a connection info says of collectives other than
// all-reduce; false if it cannot be.
func (m *Machine) countMembers(p wire.M2CP2PConnectionInfo) bool {
	v := &m.view
	v.Collectives, v.Lacks, v.Members = false, "", nil
	switch {
	case !v.MasterNative:
		v.Lacks = "the master is PCCL's"
	case !v.MasterCollectives:
		v.Lacks = "the master is an older gopccl"
	case !p.Ext.GroupCollectives && p.Ext.Reason != "":
		v.Lacks = p.Ext.Reason
	case !p.Ext.GroupCollectives:
		v.Lacks = "a member of the group does not know it"
	default:
		seen := make(map[wire.UUID]bool, len(p.Ext.Members))
		for _, u := range p.Ext.Members {
			seen[u] = true
		}
		if n := len(p.Ext.Members); n != v.LocalWorldSize || len(seen) != n || !seen[v.UUID] {
			return false
		}
		v.Collectives, v.Members = v.Native, slices.Clone(p.Ext.Members)
	}
	return true
}

func (m *Machine) established(ev Established) {
	if !m.alive() || m.flow == nil || m.flow.step != stepConnecting || ev.Round != m.round {
		return
	}
	var failed []wire.UUID
	for _, u := range ev.Failed {
		if !slices.Contains(failed, u) {
			failed = append(failed, u)
			m.log(true, u, "peer could not be reached")
		}
	}
	m.flow.failed, m.flow.unreached, m.flow.far = len(failed) > 0, failed, ev.Far
	m.misses(failed)
	m.flow.to(stepRing)
	m.send(wire.C2MP2PConnectionsEstablished{Success: !m.flow.failed, FailedPeers: slices.Clone(failed)})
}

func (m *Machine) roundEnded(p wire.M2CP2PConnectionsEstablished) {
	f := m.flow
	if !p.Success {
		m.log(true, wire.UUID{}, "establishment round failed, voting again")
		m.vote()
		return
	}
	if f.failed {
		m.end(errs.Protocol, "the master declared a round successful in which this peer reported a failure")
		return
	}
	rank := -1
	seen := make(map[wire.UUID]bool, len(p.Ring))
	for i, u := range p.Ring {
		if seen[u] {
			m.end(errs.Protocol, "the master sent a ring with a duplicate in it")
			return
		}
		seen[u] = true
		if u == m.view.UUID {
			rank = i
		}
	}
	if rank < 0 {
		m.end(errs.Protocol, "the master sent a ring without this peer")
		return
	}
	m.view.Ring, m.view.Rank = slices.Clone(p.Ring), rank
	m.view.Connected = true
	m.stoodRound(p)
	m.dropped = nil
	m.roundDue = false
	m.answered = false
	m.epoch, m.view.Epoch = m.nextEpoch, m.nextEpoch
	m.emit(RoundOver{Epoch: m.epoch})
	clear(m.failedTags)
	if f.far {
		m.wantMesh()
	}
	m.endFlow()
	if !f.background {
		m.done(f.call, f.cause)
	}
}

// maxPreflights bounds what a master can have a peer try at once, and the peers
// of one try.
const maxPreflights = 64

// preflight tries whether peers can be reached; false if the packet is not allowed.
// Beyond maxPreflights it leaves them unanswered, which says nothing about those
// peers: the master gives up waiting earlier than a slow machine does trying, and a flood of
// newcomers must not cost this peer its place.
func (m *Machine) preflight(p wire.M2CPreflight) bool {
	if !m.view.MasterNative || len(p.Peers) > maxPreflights {
		return false
	}
	if m.preflights == maxPreflights {
		return true
	}
	m.preflights++
	m.emit(Preflight{Number: p.Number, Peers: slices.Clone(p.Peers)})
	return true
}

func (m *Machine) preflighted(ev Preflighted) {
	m.preflights--
	switch {
	case !m.alive():
		return
	case ev.Number >= ownTrial:
		m.lookedFor(ev)
		return
	}
	for _, u := range ev.Failed {
		m.log(true, u, "a peer that is to be let in, or a member, could not be reached")
	}
	m.send(wire.C2MPreflightDone{Number: ev.Number, FailedPeers: slices.Clone(ev.Failed)})
}

// askPending joins the query that is out, takes the answer of one that was
// given up, or asks one.
func (m *Machine) askPending(c CallPending) {
	if err := m.usable(kindPending); err != nil {
		m.done(c.Call, err)
		return
	}
	if m.resume.newcomer { // its members would not wait for this peer's question
		m.emit(Done{Call: c.Call, Pending: true})
		return
	}
	if m.answered {
		m.answered = false
		m.emit(Done{Call: c.Call, Pending: m.answer})
		return
	}
	m.pending = append(m.pending, c.Call)
	if !m.asking {
		m.asking = true
		m.query++
		m.send(wire.C2MCheckPeersPending{})
	}
}

func (m *Machine) pendingAnswer(p wire.M2CPeersPendingResponse) {
	if !m.asking {
		m.illegal(p)
		return
	}
	m.asking = false
	m.resume.query = wire.ReportedQuery{Decision: p.Decision, Pending: p.PeersPending}
	// The others have their answers and go on. If the caller gave up, the vote was
	// cast all the same, and no other peer would join a second question.
	m.answered, m.answer = len(m.pending) == 0, p.PeersPending
	for _, c := range m.pending {
		m.emit(Done{Call: c, Pending: p.PeersPending})
	}
	m.pending = nil
}
