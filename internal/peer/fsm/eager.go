package fsm

import (
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// An eager collective begins when it is launched, and not when the master says
// that all have launched it: in a group whose members can all do that, what a
// peer sends too early waits at the next one (docs/spec/extensions.md, "Eager
// start"). The votes are the same, and so is their order; but if nothing else is
// under way C2M 10 is held back, so that it can travel together with C2M 11.
// The master cannot tell that from a peer that launches later.
const (
	// MaxEager bounds Config.EagerBytes.
	MaxEager = 1 << 20
	// eagerCredit bounds what operations that were not commenced may send; all
	// of it has room at the next peer.
	eagerCredit = 4 << 20
	// eagerHold bounds how long C2M 10 is held back.
	eagerHold = 5 * time.Millisecond
)

// mostSent is an upper bound of the bytes that op sends: of an all-reduce twice its own. A
// mesh that it wants is settled.
func (m *Machine) mostSent(op *operation) uint64 {
	switch {
	case op.kind() == plan.AllReduce:
		return 2 * op.vote.Count * uint64(op.vote.DType.Size())
	case op.wantsMesh() && m.mesh.state == meshDirect:
		return op.sends.direct
	}
	return op.sends.ring
}

// eagerCost adds frame headers and metadata in every step. A barrier sends nothing.
func (m *Machine) eagerCost(op *operation) uint64 {
	if op.kind() == plan.Barrier {
		return 0
	}
	return m.mostSent(op) + uint64(len(op.ring))*256
}

// mayBegin reports whether op may begin before its commence.
func (m *Machine) mayBegin(op *operation) bool {
	limit := uint64(max(0, min(m.cfg.EagerBytes, MaxEager)))
	size := uint64(op.vote.DType.Size())
	allReduce := op.kind() == plan.AllReduce
	switch {
	case m.epoch == 0 || limit == 0 || allReduce && op.vote.Count > limit/size || !allReduce && m.mostSent(op) > limit:
		return false
	case op.wantsMesh() && !m.mesh.state.settled():
		return false // the members could take different ways
	case allReduce && m.isLarge(op):
		return false // some send more than the bound of what begins eagerly says
	case m.prep != nil:
		return false // the next commence may be one in another ring
	case m.roundDue:
		// Frames of a failed operation may still be on their way, and the
		// next one with its tag must not take it for its own.
		return false
	case slices.ContainsFunc(op.ring, func(u wire.UUID) bool { return slices.Contains(m.dropped, u) }):
		return false // it would wait for the dead
	}
	return m.lent+m.eagerCost(op) <= eagerCredit
}

// beginEagerly starts the data phase of a launched operation, and holds its vote
// back if nothing else is under way.
func (m *Machine) beginEagerly(op *operation) {
	op.eager, op.open = true, true
	op.sends.lent = m.eagerCost(op)
	m.lent += op.sends.lent
	op.to(opHeld)
	op.held = m.now + eagerHold
	e := m.start(op)
	e.Eager = true
	m.emit(e)
	for _, o := range m.ops {
		if o != op && o.state != opSettled {
			m.sendHeld()
			return
		}
	}
}

// passBarrier says that this peer is through with a barrier that it has launched:
// nothing has to be waited for but the others. Votes that are held back go first.
func (m *Machine) passBarrier(op *operation) {
	op.eager = true
	op.to(opHeld)
	m.sendHeld()
	m.reportOp(op, false)
}

// sendHeld sends the votes that are held back.
func (m *Machine) sendHeld() {
	for _, op := range m.ops {
		if op.state == opHeld {
			op.to(opVoting)
			m.send(op.vote)
		}
	}
}

// heldUntil returns when the first vote that is held back has to go.
func (m *Machine) heldUntil() (at time.Duration, ok bool) {
	for _, op := range m.ops {
		if op.state == opHeld && (!ok || op.held < at) {
			at, ok = op.held, true
		}
	}
	return at, ok
}
