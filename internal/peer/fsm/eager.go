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
//
// That is so of small ones, and where the master is far away of all: its round trip is
// then as much of a large one as of a small one. What a large one sends before its commence
// is bounded, and the engine stops there.
const (
	// MaxEager bounds Config.EagerBytes.
	MaxEager = 1 << 20
	// eagerCredit bounds what operations that were not commenced may send; all
	// of it has room at the next peer.
	eagerCredit = 4 << 20
	// leastAhead is what is worth sending of an operation whose rest has to wait.
	leastAhead = 64 << 10
	// eagerHold bounds how long C2M 10 is held back.
	eagerHold = 5 * time.Millisecond
)

// early is what an operation has before its commence.
type early struct {
	far   bool          // from the master
	eager bool          // the data phase began at the launch
	lent  uint64        // ... and may send so much
	held  time.Duration // in state opHeld: until when
}

// mostSent is an upper bound of the bytes that op sends: of an all-reduce twice its own;
// of one over trees it is none. A mesh that it wants is settled.
func (m *Machine) mostSent(op *operation) uint64 {
	switch {
	case op.kind() == plan.AllReduce:
		const most = 1 << 60 // no buffer has so many bytes: the sum does not overflow
		return 2 * min(op.vote.Count, most/16) * uint64(op.vote.DType.Size())
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

// advance returns how many bytes op may send before its commence if it begins now, and
// whether these may be less than all; false: it begins with the commence.
func (m *Machine) advance(op *operation) (bytes uint64, limited, ok bool) {
	limit := uint64(max(0, min(m.cfg.EagerBytes, MaxEager)))
	size := uint64(op.vote.DType.Size())
	allReduce := op.kind() == plan.AllReduce
	cost, left := m.eagerCost(op), eagerCredit-m.lent
	switch {
	case m.epoch == 0 || limit == 0 || op.epoch == 0: // or the last one with its tag was aborted
		return 0, false, false
	case op.wantsMesh() && !m.mesh.state.settled():
		return 0, false, false // the members could take different ways
	case m.prep != nil:
		return 0, false, false // the next commence may be one in another ring
	case m.roundDue:
		// Frames of a failed operation may still be on their way, and the
		// next one with its tag must not take it for its own.
		return 0, false, false
	case slices.ContainsFunc(op.ring, func(u wire.UUID) bool { return slices.Contains(m.dropped, u) }):
		return 0, false, false // it would wait for the dead
	case allReduce && !m.isLarge(op) && op.vote.Count <= limit/size && cost <= left, !allReduce && m.mostSent(op) <= limit && cost <= left:
		return cost, false, true
	}
	// Half of what is left: small ones that follow may begin, too.
	bytes = min(cost, left/2)
	return bytes, true, op.far && (bytes == cost || bytes >= leastAhead)
}

// beginEagerly starts the data phase of a launched operation. Its vote is held back if
// nothing else is under way and it may be through soon.
func (m *Machine) beginEagerly(op *operation, bytes uint64, limited bool) {
	op.eager, op.open, op.lent = true, true, bytes
	m.lent += bytes
	op.to(opHeld)
	op.held = m.now + eagerHold
	e := m.start(op)
	e.Eager = true
	if limited {
		e.Ahead = bytes
	}
	m.emit(e)
	if limited {
		m.sendHeld()
		return
	}
	for _, o := range m.ops {
		if o != op && o.state != opSettled {
			m.sendHeld()
			return
		}
	}
}

// takeBack returns what op was lent.
func (m *Machine) takeBack(op *operation) {
	m.lent -= op.lent
	op.lent = 0
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
