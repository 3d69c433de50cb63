package fsm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

const leaveName = "leave"

// leave asks the master to let this peer go between two collectives
// (docs/spec/extensions.md, "Leaving"). Of an older master, or PCCL's, it takes leave at once.
func (m *Machine) leave(c CallLeave) {
	switch {
	case m.status == statusOver || !m.view.Connected:
		err := m.usable(kindUpdate)
		err.Op = leaveName
		m.done(c.Call, err)
		return
	case m.leaving != 0:
		m.done(c.Call, errs.New(errs.Busy, leaveName, errors.New("leave is running")))
		return
	case m.postpone(c):
		return
	case m.flow != nil:
		m.done(c.Call, errs.New(errs.Busy, leaveName, fmt.Errorf("%s is running", kindNames[m.flow.kind])))
		return
	case len(m.pending) > 0:
		m.done(c.Call, errs.New(errs.Busy, leaveName, fmt.Errorf("%s is running", kindNames[kindPending])))
		return
	}
	for _, op := range m.ops {
		if op.state != opSettled {
			m.done(c.Call, errs.New(errs.PendingAsyncOps, leaveName, errors.New("an operation is in flight")).WithHint("await every launched operation first"))
			return
		}
	}
	m.leaving = c.Call
	if !m.view.MasterLeave {
		m.left()
		return
	}
	m.send(wire.C2MLeave{})
}

// left ends the session of a peer that has left.
func (m *Machine) left() {
	call := m.leaving
	m.leaving = 0
	m.end(errs.Closed, "the peer has left the run")
	m.done(call, nil)
}

// leaveAnswer takes the master's word on a wish to leave; false if there is none.
func (m *Machine) leaveAnswer(p wire.M2CLeaveAnswer) bool {
	switch {
	case m.leaving == 0:
		return false
	case p.Left:
		m.left()
	default:
		call := m.leaving
		m.leaving = 0
		m.done(call, errs.New(errs.NoSharedStateAvailable, leaveName, errors.New(p.Reason)).
			WithHint("synchronise the shared state once more, then leave; or close to give it up"))
	}
	return true
}

// prepareLeave connects to the neighbours of a ring without a member that leaves, and
// takes back what began before all had launched it, since that member never will. It
// reports whether the packet is allowed now.
func (m *Machine) prepareLeave(p wire.M2CPrepareLeave) bool {
	if !m.view.MasterLeave || p.Leaver == m.view.UUID || !slices.Contains(m.view.Ring, p.Leaver) {
		return false
	}
	m.epoch = 0 // until the ring without it
	if p.Epoch != 0 {
		m.emit(ExpectEpoch{Epoch: p.Epoch})
	}
	return m.prepareRing(wire.M2CPrepareRing{Change: p.Change, Peers: p.Peers}, p.Leaver, p.Epoch)
}

// withdraw ends the data phases that have begun before their commence. Only all-reduces begin
// again.
func (m *Machine) withdraw() {
	for _, op := range m.ops {
		if !op.eager || !op.open || op.canceled || op.state != opVoting {
			continue
		}
		op.withdrawn = true
		if op.kind() == plan.AllReduce {
			m.abortData(op, "it begins again without a member that leaves")
		} else {
			m.abortData(op, "a member leaves that has not launched it")
		}
	}
}

// withdrew reports whether the data phase that has ended was taken back; its
// operation waits for the commence as one that has not begun.
func (m *Machine) withdrew(op *operation) bool {
	if !op.withdrawn {
		return false
	}
	op.withdrawn = false
	if op.canceled || op.quits || op.state != opVoting || op.kind() != plan.AllReduce {
		return false
	}
	m.takeBack(op)
	op.eager, op.aborted, op.dataErr = false, false, nil
	m.emit(RenewData{Op: op.id})
	m.answerPrepared()
	return true
}

// ringWithout lets what is not commenced, and what follows, use a ring without the
// member that leaves; false if the packet is not allowed now.
func (m *Machine) ringWithout(p wire.M2CRingWithout) bool {
	prep := m.prep
	const most = 1<<31 - 1
	if prep == nil || prep.leaver == (wire.UUID{}) || prep.change != p.Change || p.World > most || p.Largest > most {
		return false
	}
	old, gone := m.view.Ring, prep.leaver
	m.view.Ring = slices.DeleteFunc(slices.Clone(old), func(u wire.UUID) bool { return u == gone })
	direct, kept := m.view.Direct, len(m.ways) > 0
	if !m.switchRing(wire.M2CSwitchRing{Change: p.Change, Ring: p.Ring}) {
		m.view.Ring = old
		return false
	}
	v := &m.view
	v.LocalWorldSize, v.GlobalWorldSize, v.LargestGroupSize = len(p.Ring), int(p.World), int(p.Largest)
	v.Members = slices.DeleteFunc(slices.Clone(v.Members), func(u wire.UUID) bool { return u == gone })
	s := &m.resume.stood
	s.World, s.Largest, s.Members = p.World, p.Largest, v.Members
	m.epoch = prep.epoch
	clear(m.failedTags)
	for _, op := range m.ops {
		kept := op.kind() == plan.AllReduce || op.kind() == plan.Barrier
		waits := op.state == opQueued || op.state == opVoting
		switch {
		case kept && waits:
			op.epoch, op.members = m.epoch, v.Members
		case kept:
		case waits: // what its arguments mean depends on who the members are
			op.dataErr = errs.New(errs.RankConnectionLost, op.kind().String(), fmt.Errorf("peer %v has left since it was launched", gone)).
				WithPeer(gone.String())
			m.abortData(op, op.dataErr.Error())
		case op.state == opAhead: // its epoch is over: others cannot have what it sent any more
			op.told.done.WasAborted = true // so has the master, as which it is told to the next one
		}
	}
	m.emit(PeerLeft{Peer: gone})
	m.log(false, gone, "peer has left between two collectives")
	m.stopMesh()
	m.mesh = mesh{kept: m.mesh.connected() || kept, calls: m.mesh.calls, asked: len(m.mesh.calls) > 0}
	if m.view.Mesh = false; m.mesh.asked {
		m.mesh.wanted = true
		m.send(wire.C2MWantMesh{})
	} else if direct != (wire.Direct{}) {
		m.wantMesh()
	}
	return true
}
