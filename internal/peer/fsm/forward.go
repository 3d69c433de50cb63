package fsm

import (
	"slices"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// An all-reduce that is finished forward returns when this peer has its result and has told the master,
// without the verdict (docs/spec/extensions.md, "Finishing forward"). A copy of the result is kept until
// the verdict: those who could not complete it get it from the master, which asks for it.
const (
	// mostKept bounds the results that are kept at a time, in bytes; with more, operations wait
	// for their verdict.
	mostKept = 16 << 20
	// closeGrace bounds how long CallClose waits for verdicts of operations that have returned:
	// until then the others may need this peer.
	closeGrace = 2 * time.Second
)

// forward is what finishing forward makes of an operation.
type forward struct {
	granted  bool // the master lets it return before all have it
	landed   bool // it has returned, or does when it is awaited
	answered bool // its await was
	rescued  bool // its result came from the master
	stood    bool // M2C 11 aborted it, and all have the result all the same
	nobody   bool // nobody returns its result
	quits    bool // the caller gave up, and hears whether others have returned
	result   []byte
}

// wantsForward reports whether an operation that its caller wants finished forward may be.
func (m *Machine) wantsForward(c CallCollective) bool {
	size := uint64(c.DType.Size())
	return c.Forward && m.view.MasterForward && m.native() && plan.Kind(c.Vote.Kind) == plan.AllReduce && c.Count <= wire.MaxForward/size
}

// holds reports whether this peer can keep the result of op for others.
func (m *Machine) holds(op *operation) bool {
	if !op.vote.Forward {
		return false
	}
	kept := op.size()
	for _, o := range m.ops {
		if o.state != opSettled && o.told.done.Holds {
			kept += o.size()
		}
	}
	return kept <= mostKept
}

// size is how many bytes the result of op has.
func (op *operation) size() uint64 { return op.vote.Count * uint64(op.vote.DType.Size()) }

// land returns op to its caller if that need not wait for the verdict.
func (m *Machine) land(op *operation) {
	f := &op.forward
	if !f.granted || f.landed || !op.told.done.Holds || op.state != opReported || op.heard || op.canceled || m.status != statusLive {
		return
	}
	f.landed, op.finished = true, true
	m.emit(Finish{Op: op.id, Keep: true})
	if op.awaited {
		m.answerLanded(op)
	}
}

// askResult hands the result of an operation out for others; false if it is not here.
func (m *Machine) askResult(p wire.M2CAskResult) bool {
	op := m.byTag(p.Tag)
	if op == nil || op.state != opReported || op.told.seq != p.Seq || !op.told.done.Holds {
		return false
	}
	if op.forward.rescued {
		m.send(wire.C2MResult{Tag: p.Tag, Seq: p.Seq, Data: op.forward.result})
		return true
	}
	m.emit(GiveResult{Op: op.id, Tag: p.Tag, Seq: p.Seq})
	return true
}

// takeResult takes the result of an operation that could not be completed here; false if the packet
// is not allowed. It counts when all have it.
func (m *Machine) takeResult(p wire.M2CResult) bool {
	op := m.byTag(p.Tag)
	if op == nil || op.state != opReported || op.told.seq != p.Seq || op.dataErr == nil && !op.canceled ||
		!op.vote.Forward || uint64(len(p.Data)) != op.size() {
		return false
	}
	op.forward.rescued, op.forward.result = true, p.Data
	op.told.done = wire.C2MCollectiveCommsComplete{Tag: p.Tag, Holds: true}
	m.send(op.told.done)
	return true
}

// stands makes what M2C 10 has said of all members the verdict on op; false if this peer does not have
// the result that all have. What has kept some from it strikes the next operation, which fails for all:
// a round now would part those who wait for this one from those who have returned and gone on.
func (m *Machine) stands(op *operation) bool {
	if op.dataErr != nil && !op.forward.rescued && !op.canceled {
		return false
	}
	if op.abort {
		op.stood = true
		m.spoil(op)
	}
	op.heard, op.abort, op.reason, op.code, op.dataErr = true, false, "", 0, nil
	return true
}

// spoil notes that what is left of op may still come.
func (m *Machine) spoil(op *operation) {
	if op.epoch != 0 {
		m.failedTags[op.vote.Tag] = true
		m.emit(SpoilData{Tag: op.vote.Tag, Epoch: op.epoch})
	}
}

// quit aborts an operation that its caller has given up, and others may have returned meanwhile: then it
// has its result here, too. It reports whether it may be so.
func (m *Machine) quit(op *operation) bool {
	begun := op.open || op.state == opReported || op.state == opAhead && !op.forward.nobody
	if !op.vote.Forward || !begun {
		return false // what did not begin here ends nowhere
	}
	op.hurried, op.quits = true, true
	m.abortData(op, "canceled by the caller")
	return true
}

// givenUp takes the word that nobody returns the result of an operation that was aborted here before its
// commence; false if it is not allowed.
func (m *Machine) givenUp(p wire.M2CGivenUp) bool {
	op := m.byTag(p.Tag)
	if op == nil || !op.vote.Forward || op.state != opAhead {
		return false
	}
	op.forward.nobody, op.told.done.GivenUp = true, true
	if op.quits && !op.canceled {
		op.canceled = true
		m.giveUp(op)
	}
	return true
}

// settleLanded takes the verdict on an operation that has returned.
func (m *Machine) settleLanded(op *operation, failed bool) {
	m.emit(DropResult{Op: op.id})
	switch {
	case failed:
		// No member that the master knew held the result, or it asked one that could not give it.
		answered := op.forward.answered
		if answered {
			m.remove(op)
		}
		m.end(errs.MasterLost, "the others repeat an operation that this peer has returned: it has to join them again")
		if op.awaited && !answered {
			m.answerAwait(op)
		}
	case op.forward.answered:
		m.remove(op)
		m.repairNow()
	case op.awaited:
		m.answerAwait(op)
	}
}

// What follows keeps the rule that the round which repairs the ring is run by the last await of those
// that are launched. It is the order of the calls that decides, which is the same on all peers, and not
// when verdicts come.

// onlyReturned reports whether what the machine has are operations that have returned, but for op.
func (m *Machine) onlyReturned(op *operation) bool {
	for _, o := range m.ops {
		if o != op && !(o.landed && o.forward.answered) {
			return false
		}
	}
	return true
}

// allReturned reports whether no operation is to be awaited any more, but for op: one whose launch waits
// is, too.
func (m *Machine) allReturned(op *operation) bool {
	return m.onlyReturned(op) && !slices.ContainsFunc(m.deferred, func(ev Event) bool { _, launch := ev.(CallCollective); return launch })
}

// answerLanded answers the await of an operation that has returned, unless that has to run the round.
func (m *Machine) answerLanded(op *operation) {
	if m.roundDue && m.allReturned(op) {
		return
	}
	op.forward.answered = true
	m.done(op.await, nil)
}

// repairLater keeps the answer to the await of an operation that has to run the round until those that
// have returned have their verdicts.
func (m *Machine) repairLater(op *operation) bool {
	if !m.roundDue || !m.alive() || len(m.ops) == 0 || !m.allReturned(nil) {
		return false
	}
	m.unrepaired = op
	return true
}

// owe notes that the round has to be run without a caller when those that have returned have their
// verdicts. No call begins before.
func (m *Machine) owe() {
	m.owed = m.roundDue && m.alive() && len(m.ops) > 0 && m.onlyReturned(nil)
}

// repairNow runs the round that has waited for verdicts, if these are all there.
func (m *Machine) repairNow() {
	op := m.unrepaired
	switch {
	case m.returned(func(*operation) bool { return true }):
	case op != nil:
		m.unrepaired = nil
		m.answerAwait(op)
	case m.owed:
		if m.owed = false; m.closeBy == 0 && m.roundNow(true) {
			m.repair(0, true, nil)
		}
	}
}

// leaveUnrepaired answers the await that waits for a round, without one.
func (m *Machine) leaveUnrepaired(err error) {
	if op := m.unrepaired; op != nil {
		m.unrepaired, m.owed = nil, true
		m.done(op.await, err)
	}
}

// blocked reports whether a call has to wait for what goes on in the background. An operation that has
// returned has its tag until its verdict, and what changes the phase waits for it.
func (m *Machine) blocked(ev Event) bool {
	if m.inBackground() || (m.owed || m.unrepaired != nil) && m.alive() {
		return true
	}
	c, launches := ev.(CallCollective)
	_, awaits := ev.(CallAwait)
	return m.alive() && !awaits && m.returned(func(op *operation) bool { return !launches || op.vote.Tag == c.Tag })
}

// returned reports whether there is an operation that has returned without a verdict, and that is so.
func (m *Machine) returned(so func(*operation) bool) bool {
	for _, op := range m.ops {
		if op.forward.landed && op.state != opSettled && so(op) {
			return true
		}
	}
	return false
}

// mayClose reports whether nobody can need this peer any more for an operation that has returned.
func (m *Machine) mayClose() bool {
	return !m.alive() || m.now >= m.closeBy || !m.returned(func(*operation) bool { return true })
}

// closeNow ends the session of a peer that wants to close, when it may.
func (m *Machine) closeNow() {
	if m.closeBy != 0 && m.mayClose() {
		m.closeBy = 0
		m.end(errs.Closed, "the communicator was closed")
	}
}
