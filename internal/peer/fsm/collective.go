package fsm

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// maxCanceled bounds what is kept of canceled operations that are never awaited.
const maxCanceled = 1024

// operation is a collective that was launched and not dropped yet.
type operation struct {
	id   OpID
	vote wire.C2MCollectiveCommsInitiate
	// Captured at launch (control spec, section 13.3).
	ring    []wire.UUID
	self    wire.UUID
	native  bool
	members []wire.UUID
	sends   volume
	older   bool // it runs in a ring that is no longer the one in force
	epoch   uint64

	state opState
	early
	open      bool // StartData was emitted, DataEnded did not come yet
	withdrawn bool // ... and is to begin again, in another ring
	aborted   bool // AbortData was emitted
	finished  bool
	dataErr   error

	heard    bool // M2C 11 came
	abort    bool // it said aborted, or could not be right
	reason   string
	code     errs.Code
	lost     []lostPeer // peers that were named as gone since the launch
	canceled bool       // the caller gave up; the votes still have to be cast
	hurried  bool       // ... too late: the verdict does not depend on this peer any more
	query    uint64     // questions after waiting peers that were asked before the launch

	awaited bool
	await   CallID
	err     error

	told opTold
	forward
}

// volume is the bytes that an operation sends at most.
type volume struct {
	ring, direct uint64 // over a ring and over a mesh; not of an all-reduce
}

// lostPeer is a peer that the master has named as gone.
type lostPeer struct {
	uuid wire.UUID
	addr netip.AddrPort // where it was, not valid: unknown
}

// String returns its name in errors.
func (p lostPeer) String() string {
	if !p.addr.IsValid() {
		return p.uuid.String()
	}
	return p.uuid.String() + " (" + p.addr.String() + ")"
}

func (op *operation) kind() plan.Kind { return plan.Kind(op.vote.Call.Kind) }

func (op *operation) wantsMesh() bool { return op.vote.Call.Flags&wire.CallMesh != 0 }

// awaiting is what errors call the wait for op's verdict.
func (op *operation) awaiting() string { return "await " + op.kind().String() }

// supports returns why the group cannot have the collective c, nil if it can.
func (m *Machine) supports(c CallCollective) error {
	k := plan.Kind(c.Vote.Kind)
	switch {
	case k == plan.AllReduce:
		return nil
	case !k.Valid():
		return errs.New(errs.InvalidArgument, k.String(), errors.New("its kind is unknown"))
	case !m.view.Collectives:
		return errs.New(errs.Unsupported, k.String(), errors.New(m.view.Lacks)).
			WithHint("call an all-reduce, or let all members and the master be of this version of gopccl")
	case k.Rooted() && uint64(c.Vote.Root) >= uint64(len(m.view.Members)):
		return errs.New(errs.InvalidArgument, k.String(), fmt.Errorf("root %d is none of %d members", c.Vote.Root, len(m.view.Members)))
	}
	return nil
}

// launch starts a collective (control spec, section 13.3).
func (m *Machine) launch(c CallCollective) {
	name := plan.Kind(c.Vote.Kind).String()
	if err := m.usable(kindReduce); err != nil {
		err.Op = name
		m.done(c.Call, err)
		return
	}
	if m.postpone(c) {
		return
	}
	if m.flow != nil {
		m.done(c.Call, errs.New(errs.Busy, name, fmt.Errorf("%s is running", kindNames[m.flow.kind])))
		return
	}
	combines := plan.Kind(c.Vote.Kind).Combines()
	if !c.DType.Valid() || combines && !c.RedOp.Valid() {
		m.done(c.Call, errs.New(errs.InvalidArgument, name, fmt.Errorf("%v of %v", c.RedOp, c.DType)))
		return
	}
	if err := m.supports(c); err != nil {
		m.done(c.Call, err)
		return
	}
	if m.view.LocalWorldSize < 2 || len(m.view.Ring) < 2 {
		m.done(c.Call, errs.New(errs.TooFewPeers, name, nil).WithHint("wait for peers and update the topology"))
		return
	}
	if plan.Kind(c.Vote.Kind) == plan.Barrier && m.byTag(c.Tag) != nil {
		m.done(c.Call, errs.New(errs.Busy, name, errors.New("another one is running")))
		return
	}
	if m.byTag(c.Tag) != nil {
		m.done(c.Call, errs.New(errs.InvalidArgument, name, fmt.Errorf("tag %d is in flight", c.Tag)))
		return
	}
	m.ops = append(m.ops, &operation{
		id:      c.Op,
		vote:    wire.C2MCollectiveCommsInitiate{Tag: c.Tag, Count: c.Count, DType: c.DType, Op: c.RedOp, Call: c.Vote},
		ring:    m.view.Ring,
		self:    m.view.UUID,
		native:  m.native(),
		members: m.view.Members,
		sends:   volume{ring: c.Sends, direct: c.Direct},
		early:   early{far: c.Far},
		epoch:   m.epoch,
		query:   m.query,
	})
	op := m.ops[len(m.ops)-1]
	op.vote.Forward = m.wantsForward(c)
	op.told.after = m.resume.verdicts.after(c.Tag)
	if m.view.MasterNative {
		op.vote.Form = c.Form
	}
	if m.failedTags[c.Tag] {
		op.epoch = 0
	}
	switch bytes, limited, ok := m.advance(op); {
	case !ok:
		m.sendHeld()
	case op.kind() == plan.Barrier:
		m.passBarrier(op)
	default:
		m.beginEagerly(op, bytes, limited)
	}
	m.initiate()
	m.done(c.Call, nil)
}

// initiate votes for queued operations. PCCL peers run at most sixteen at once
// and different sets of more would wait for each other (quirk Q19).
func (m *Machine) initiate() {
	flying := 0
	for _, op := range m.ops {
		if op.state != opQueued && op.state != opSettled {
			flying++
		}
	}
	for _, op := range m.ops {
		if op.state != opQueued {
			continue
		}
		if !m.native() && flying >= m.cfg.MaxWithPCCL {
			return
		}
		op.to(opVoting)
		flying++
		m.send(op.vote)
	}
}

func (m *Machine) byTag(tag uint64) *operation {
	for _, op := range m.ops {
		if op.vote.Tag == tag && op.state != opSettled {
			return op
		}
	}
	return nil
}

func (m *Machine) byID(id OpID) *operation {
	for _, op := range m.ops {
		if op.id == id {
			return op
		}
	}
	return nil
}

func (m *Machine) remove(op *operation) {
	m.ops = slices.DeleteFunc(m.ops, func(o *operation) bool { return o == op })
}

// start returns the effect that begins the data phase of op as it would begin now.
func (m *Machine) start(op *operation) StartData {
	e := StartData{
		Op: op.id, Tag: op.vote.Tag, Epoch: op.epoch,
		Ring: op.ring, Self: op.self, Native: op.native, Vote: op.vote.Call,
	}
	if op.kind() != plan.AllReduce {
		e.Members, e.Mesh = slices.Clone(op.members), op.wantsMesh() && m.mesh.state == meshDirect
	} else if mesh, large := m.exchanges(op); mesh {
		e.Members, e.Mesh, e.Large = slices.Clone(op.members), true, large
	}
	return e
}

// commence takes the M2C 9 of an operation: everybody has voted.
func (m *Machine) commence(p wire.M2CCollectiveCommsCommence) {
	op := m.byTag(p.Tag)
	if op == nil || op.state != opVoting && op.state != opAhead {
		m.illegal(p)
		return
	}
	if op.query == m.query {
		m.answered = false // those who voted for this have gone on behind the question
	}
	op.told.seq, op.granted = p.SeqNr, p.Forward
	switch {
	case op.eager:
		m.takeBack(op)
		if op.kind() != plan.Barrier {
			m.emit(CommenceData{Op: op.id, Seq: p.SeqNr})
		}
		m.answerPrepared()
		if op.state == opAhead {
			op.to(opReported)
			m.land(op)
			return
		}
		op.to(opRunning)
	case op.canceled, op.dataErr != nil: // given up, or the members are no longer those of its launch
		m.emit(SkipData{Seq: p.SeqNr})
		m.reportOp(op, true)
		return
	case op.kind() == plan.Barrier:
		op.to(opRunning)
		if i := slices.IndexFunc(op.ring, func(u wire.UUID) bool { return slices.Contains(m.dropped, u) }); i >= 0 {
			op.dataErr = fmt.Errorf("peer %v of the ring has left", op.ring[i])
		}
		m.reportOp(op, op.dataErr != nil)
		return
	default:
		op.to(opRunning)
		op.open = true
		e := m.start(op)
		e.Seq = p.SeqNr
		m.emit(e)
	}
	// The master commences for those that are left. A member of the ring that
	// vanished without closing its connections would be waited for in vain.
	for _, u := range op.ring {
		if slices.Contains(m.dropped, u) {
			if !slices.ContainsFunc(op.lost, func(p lostPeer) bool { return p.uuid == u }) {
				op.lost = append(op.lost, lostPeer{uuid: u})
			}
			m.abortData(op, "peer "+u.String()+" of the ring has left")
		}
	}
}

// abortData ends a running data phase, once.
func (m *Machine) abortData(op *operation, reason string) {
	if op.open && !op.aborted {
		op.aborted = true
		m.emit(AbortData{Op: op.id, Reason: reason})
	}
}

func (m *Machine) finish(op *operation, restore bool) {
	if op.finished {
		return
	}
	op.finished = true
	e := Finish{Op: op.id, Restore: restore, Err: op.err}
	if !restore && len(op.result) > 0 {
		e.Restore, e.Result = true, op.result
	}
	m.emit(e)
}

func (m *Machine) reportOp(op *operation, aborted bool) {
	if op.state == opHeld {
		m.send(op.vote)
	}
	if op.state < opRunning && op.eager {
		op.to(opAhead)
	} else {
		op.to(opReported)
	}
	p := wire.C2MCollectiveCommsComplete{Tag: op.vote.Tag, WasAborted: aborted, Holds: !aborted && m.holds(op)}
	if aborted && m.view.Collectives {
		// The others are told, who have lost nothing, and where two ends of a lane do not agree do not retry.
		p.Reason, p.ReasonCode = reasonOf(op.dataErr)
	}
	op.told.done = p
	m.send(p)
}

// reasonOf says for the others why data ended, and with which code. Without a cause it says nothing.
func reasonOf(err error) (why string, code uint16) {
	var e *errs.Error
	if !errors.As(err, &e) || e.Err == nil {
		return "", 0
	}
	why = e.Err.Error()
	if e.Peer != "" {
		why = "with " + e.Peer + ": " + why
	}
	return why, uint16(e.Code)
}

// verdict takes the M2C 11 of an operation.
func (m *Machine) verdict(p wire.M2CCollectiveCommsAbort) {
	op := m.byTag(p.Tag)
	if op == nil || op.heard || op.state < opRunning {
		m.illegal(p)
		return
	}
	op.heard = true
	op.abort = p.Aborted
	op.reason = p.Reason
	op.code = errs.Code(p.ReasonCode)
	if op.state != opRunning {
		return
	}
	// Whatever its flag, it ends the data phase as aborted (control spec,
	// section 13.3); a success before this peer reported its own cannot be.
	reason := "aborted by the master"
	if !p.Aborted {
		op.abort = true
		reason = "the master declared an operation complete that still runs"
		m.log(true, wire.UUID{}, reason)
	} else if p.Reason != "" {
		reason = p.Reason
	}
	m.abortData(op, reason)
}

// dataEnded notes that the buffers of the operation are no longer touched.
func (m *Machine) dataEnded(ev DataEnded) {
	op := m.byID(ev.Op)
	if op == nil || !op.open {
		return
	}
	op.open = false
	op.dataErr = ev.Err
	if op.aborted && op.dataErr == nil {
		op.dataErr = errors.New("aborted")
	}
	if m.status == statusOver {
		m.settleEnded(op)
		return
	}
	if m.withdrew(op) {
		return
	}
	m.reportOp(op, op.dataErr != nil)
	m.land(op)
	if op.canceled {
		m.giveUp(op)
	}
	m.answerPrepared() // which may have waited for this
}

// complete takes the M2C 10 of an operation: the verdict is final.
func (m *Machine) complete(p wire.M2CCollectiveCommsComplete) {
	op := m.byTag(p.Tag)
	if op == nil || op.state != opReported {
		m.illegal(p)
		return
	}
	if !op.heard {
		// A PCCL master whose abort flag survived an older operation sends no
		// M2C 11 (quirk Q15): by its own books the operation is aborted.
		op.abort = true
		m.log(true, wire.UUID{}, "operation released without a verdict, taken as aborted")
	}
	if p.Held && !m.stands(op) {
		m.illegal(p)
		return
	}
	failed := op.abort || op.dataErr != nil
	if failed {
		op.err = op.failure()
		m.roundDue = true
		m.spoil(op)
	}
	m.settled(op)
	op.to(opSettled)
	m.finish(op, failed)
	m.release()
	m.initiate()
	if op.canceled {
		m.remove(op)
		if m.roundNow(failed) {
			m.repair(0, true, nil)
		} else {
			m.owe()
		}
		return
	}
	if op.landed {
		m.settleLanded(op, failed)
		return
	}
	if op.awaited {
		m.answerAwait(op)
	}
}

// roundNow reports whether the round that repairs the ring is to be run. In
// groups with PCCL peers only the last awaited operation decides, as there.
func (m *Machine) roundNow(lastFailed bool) bool {
	return m.alive() && m.roundDue && len(m.ops) == 0 && m.flow == nil && (lastFailed || m.native())
}

// failure is the error of a failed operation.
func (op *operation) failure() error {
	var cause error
	switch {
	case op.reason != "":
		cause = errors.New(op.reason)
	case op.dataErr != nil:
		cause = op.dataErr
	default:
		cause = errors.New("aborted by another peer")
	}
	if op.code == errs.Mismatch {
		return errs.New(errs.Mismatch, op.kind().String(), cause).
			WithHint("pass the same count, type, operation and quantization on every peer")
	}
	var names []string
	for _, p := range op.lost {
		names = append(names, p.String())
	}
	peer := strings.Join(names, ", ")
	var e *errs.Error
	if errors.As(op.dataErr, &e) && peer == "" {
		peer = e.Peer
	}
	if e != nil && (e.Code == errs.Internal || e.Code == errs.DeviceFailed || e.Code == errs.InvalidArgument) {
		return e // a fault of our own, or of the caller's: nothing that a retry repairs
	}
	const hint = "check the world size and retry"
	if e != nil && e.Code == errs.RankConnectionLost && !op.aborted && len(op.lost) == 0 {
		return e.WithHint(hint) // it failed here, and the master only says so
	}
	return errs.New(errs.RankConnectionLost, op.kind().String(), cause).WithPeer(peer).WithHint(hint)
}

// await answers with the verdict of an operation.
func (m *Machine) await(c CallAwait) {
	op := m.byID(c.Op)
	if op == nil && len(m.deferred) > 0 {
		if m.postpone(c) {
			return
		}
	}
	if i := slices.Index(m.canceled, c.Op); i >= 0 {
		m.canceled = slices.Delete(m.canceled, i, i+1)
		m.done(c.Call, errs.New(errs.Canceled, kindNames[kindAwait], nil))
		return
	}
	if op == nil || op.awaited || op.canceled && op.finished {
		if err := m.usable(kindAwait); err != nil {
			m.done(c.Call, err)
			return
		}
		m.done(c.Call, errs.New(errs.InvalidUsage, kindNames[kindAwait],
			errors.New("the operation is unknown or was awaited before")))
		return
	}
	op.awaited, op.await = true, c.Call // of a canceled one, whose buffers are still touched, giveUp answers
	switch {
	case op.state == opSettled:
		m.answerAwait(op)
	case op.landed:
		m.answerLanded(op)
	}
}

// answerAwait answers the await of a settled operation, after the round that
// repairs the ring if it is this call that has to run it.
func (m *Machine) answerAwait(op *operation) {
	m.remove(op)
	if m.repairLater(op) {
		return
	}
	if m.roundNow(op.err != nil) {
		m.repair(op.await, op.hurried, op.err)
		if op.hurried {
			m.done(op.await, notRepaired(op.err))
		}
		return
	}
	m.done(op.await, op.err)
}

// notRepaired answers an await whose caller does not wait for the round behind
// it. A success is one, round or not: the others have the result, too.
func notRepaired(verdict error) error {
	if verdict == nil {
		return nil
	}
	return errs.New(errs.Canceled, kindNames[kindAwait], verdict).WithPhase("re-establish")
}

// settleEnded settles an operation that the end of the session cut off.
func (m *Machine) settleEnded(op *operation) {
	m.finish(op, true)
	op.to(opSettled)
	if op.landed {
		m.emit(DropResult{Op: op.id})
		if op.forward.answered {
			m.remove(op)
		} else if op.awaited {
			m.answerAwait(op)
		}
		return
	}
	ended := m.endError(kindAwait, "")
	ended.Op = op.awaiting()
	op.err = ended
	if op.canceled {
		if op.awaited {
			m.giveUp(op)
		}
		m.remove(op)
	} else if op.awaited {
		m.answerAwait(op)
	}
}

// cancelOperation aborts an operation for all peers. The caller gets its
// buffers back as soon as nothing touches them; the votes that the others
// count on are still cast. If this peer has reported that it is through, the
// others may have the result already: the call waits for the verdict, which takes
// the slowest of the others or the end of one of them, and returns it. In groups
// with PCCL peers the peer leaves instead.
func (m *Machine) cancelOperation(id OpID) {
	op := m.byID(id)
	if op == nil || op.canceled || op.landed || op.state == opSettled || !m.alive() {
		return
	}
	through := (op.state == opReported || op.state == opAhead) && op.dataErr == nil
	if op.native && through && op.met() {
		op.hurried = true
		return
	}
	if m.quit(op) {
		return
	}
	op.canceled = true
	if through && !op.met() {
		// That this peer is through says nothing about the others, who may never come.
		op.told.done.WasAborted = true
		m.send(wire.C2MCollectiveCommsComplete{Tag: op.vote.Tag, WasAborted: true})
	}
	if !op.native {
		// PCCL peers judge by the order of their awaits whether a round follows
		// (quirk Q18), and one that waits for a first frame ignores aborts until
		// its connection closes (quirk Q23): they only understand a peer that leaves.
		m.end(errs.Canceled, "the caller gave up an operation in a group with PCCL peers")
		return
	}
	if op.open {
		m.abortData(op, "canceled by the caller")
		return
	}
	m.giveUp(op)
}

// met reports whether all members are known to have come to an operation with which this
// peer is through: they have all voted, or it has received something of each.
func (op *operation) met() bool {
	switch kind := op.kind(); {
	case kind == plan.Barrier:
		return false
	case op.state != opAhead || kind == plan.AllReduce:
		return true
	default:
		return !kind.Rooted() && op.vote.Count > 0 && op.vote.Call.Flags&wire.CallCounts == 0
	}
}

// giveUp hands the buffers of a canceled operation back.
func (m *Machine) giveUp(op *operation) {
	m.finish(op, true)
	if op.awaited {
		m.done(op.await, errs.New(errs.Canceled, op.awaiting(), nil))
		op.awaited = false
		return
	}
	if len(m.canceled) == maxCanceled {
		m.canceled = m.canceled[1:]
	}
	m.canceled = append(m.canceled, op.id)
}
