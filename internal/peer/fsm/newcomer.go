package fsm

import (
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
)

// A master that knows nothing of a run takes the first peer that comes for its beginning.
// When members of that run come back after all, the peer has to make room: it gets another
// uuid, and waits to be let in as newcomers do (docs/spec/extensions.md, "Resuming"). Who has
// done nothing with others need not tell its caller: the round that lets it in replaces its
// connections to other newcomers.

// mayStartOver reports whether the session can go on as a newcomer's.
func (m *Machine) mayStartOver() bool {
	f := m.flow
	switch {
	case m.resume.met, m.prep != nil, m.mesh.connected(), len(m.mesh.calls) > 0,
		slices.ContainsFunc(m.ops, func(op *operation) bool { return op.state != opSettled }):
		return false
	case f == nil:
		return true
	case f.step == stepConnecting:
		return len(m.peers) == 0
	}
	return f.step == stepInfo || f.step == stepRing || f.step == stepElection || f.step == stepSynced
}

// startOver makes this peer a newcomer at a master that has given it another uuid.
func (m *Machine) startOver(p wire.M2CSessionRegistrationResponse) {
	if m.leaving != 0 {
		m.left() // it is nobody's member any more
		return
	}
	r := &m.resume
	*r = resumption{newcomer: true, since: r.since}
	m.status, m.view.Detached, m.live.heard = statusLive, false, m.now
	m.granted(p)
	if m.view.Connected {
		m.view.Ring, m.view.Rank = []wire.UUID{p.UUID}, 0
		m.view.GlobalWorldSize, m.view.LocalWorldSize, m.view.NumGroups, m.view.LargestGroupSize = 1, 1, 1, 1
	}
	m.view.Collectives, m.view.Members, m.view.Lacks = false, nil, "this peer waits to be let in"
	m.dropped, m.peers, m.roundDue, m.answered = nil, nil, false, false
	m.emit(Reattached{})
	m.log(true, wire.UUID{}, fmt.Sprintf("members of an earlier run have come to the master: this peer waits to be let in, after %v", m.now-r.since))

	if m.asking {
		m.asking = false
		for _, c := range m.pending {
			m.emit(Done{Call: c, Pending: true})
		}
		m.pending = nil
	}
	if f := m.flow; f != nil {
		switch f.step {
		case stepElection: // voted for in a world that is over
			m.deferred = append([]Event{f.sync}, m.deferred...)
			m.endFlow()
		case stepSynced: // it had the state that was elected, its own
			m.endFlow()
			m.emit(Done{Call: f.call, Sync: f.result, Err: f.cause})
		}
	}
	if m.flow == nil {
		m.flow = &flow{kind: kindUpdate, background: true}
	}
	f := m.flow
	f.accept, f.voted, f.failed, f.unreached, f.decision = true, false, false, nil, 0
	if f.step != stepInfo {
		f.to(stepInfo)
	}
}

// adopts reports whether the round that lets this peer in is what a call asks for, and
// has it answered then.
func (m *Machine) adopts(c CallUpdate) bool {
	f := m.flow
	if !m.resume.newcomer || f == nil || !f.background || len(m.deferred) > 0 {
		return false
	}
	f.background, f.call = false, c.Call
	return true
}

// notKnown ends a session that a master does not take back.
func (m *Machine) notKnown() {
	m.end(errs.MasterLost, m.resume.why+"; the master that was found does not know this session")
}
