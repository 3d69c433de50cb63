package fsm

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// kind is the kind of a call; it fixes names and codes of its errors.
type kind uint8

const (
	kindConnect kind = iota
	kindUpdate
	kindPending
	kindOptimize
	kindSync
	kindReduce
	kindAwait
	numKinds
)

var kindNames = [numKinds]string{
	"connect", "update topology", "are peers pending", "optimize topology",
	"synchronize shared state", "all-reduce", "await all-reduce",
}

// endCodes are the results of PCCL when the session is lost (control spec,
// section 13.5); the reason is wrapped inside.
var endCodes = [numKinds]errs.Code{
	errs.MasterConnectionFailed, errs.UpdateTopologyFailed, errs.InvalidUsage,
	errs.TopologyOptimizationFailed, errs.InvalidUsage, errs.RankConnectionLost,
	errs.RankConnectionLost,
}

const (
	hintReconnect = "connect again with a new communicator"
	hintFirst     = "connect first"
)

// liveness is what heartbeats need.
type liveness struct {
	interval, timeout time.Duration // granted, 0 none
	next              time.Duration // when to send the next heartbeat
	heard             time.Duration // last sign of life of the master
	grace             time.Duration // no judgement before this time
	registerBy        time.Duration // 0 none
}

// minHeartbeat bounds the rate that a master can make a peer send at.
const minHeartbeat = 10 * time.Millisecond

// observe takes over the time. A process that was stopped has not seen what
// the master sent meanwhile: it gets one more interval to read it.
func (m *Machine) observe(now time.Duration) {
	if now < m.now {
		now = m.now
	}
	if i := m.live.interval; i > 0 && now-m.now > 2*i {
		m.live.grace = now + i
	}
	m.now = now
}

// silentAt returns when the master's silence ends the session.
func (m *Machine) silentAt() time.Duration {
	return max(m.live.heard+m.live.timeout, m.live.grace)
}

// Deadline returns when the next Tick is due, if one is.
func (m *Machine) Deadline() (time.Duration, bool) {
	if !m.alive() {
		return 0, false
	}
	var at time.Duration
	ok := false
	add := func(t time.Duration) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	if by, bound := m.reattachBy(); bound {
		add(by)
	}
	if m.status == statusLive {
		if m.live.registerBy > 0 {
			add(m.live.registerBy)
		}
		if m.live.interval > 0 {
			add(m.live.next)
		}
		if m.live.timeout > 0 {
			add(m.silentAt())
		}
	}
	if t, held := m.heldUntil(); held {
		add(t)
	}
	if m.closeBy > 0 {
		add(m.closeBy)
	}
	return at, ok
}

func (m *Machine) tick() {
	if !m.alive() {
		return
	}
	if t, held := m.heldUntil(); held && m.now >= t {
		m.sendHeld()
	}
	if by, bound := m.reattachBy(); bound && m.now >= by {
		m.end(m.resume.code, fmt.Sprintf("%s; no master has taken this peer back within %v", m.resume.why, m.cfg.ReattachTimeout))
		return
	}
	if m.status == statusDetached {
		return
	}
	if by := m.live.registerBy; by > 0 && m.now >= by {
		m.end(errs.Timeout, fmt.Sprintf("the master did not answer the registration within %v", m.cfg.RegisterTimeout))
		return
	}
	if t := m.live.timeout; t > 0 && m.now >= m.silentAt() {
		m.lose(errs.MasterLost, fmt.Sprintf("no sign of life for %v", t))
		return
	}
	if i := m.live.interval; i > 0 && m.now >= m.live.next {
		m.send(wire.C2MHeartbeat{})
		m.live.next = m.now + i
	}
}

func (m *Machine) masterGone(err error) {
	if m.status == statusOver || m.status == statusDetached {
		return
	}
	if m.dropReason != "" {
		m.end(errs.Kicked, "the master dropped this peer: "+m.dropReason)
		return
	}
	if err == nil || errors.Is(err, io.EOF) {
		if m.view.MasterNative {
			// A gopccl master names its reason before it drops a peer.
			m.lose(errs.MasterLost, "the master closed the connection without a reason: it has stopped")
			return
		}
		m.end(errs.Kicked, "the master closed the connection")
		return
	}
	m.lose(errs.MasterLost, err.Error())
}

// illegal ends the session over a packet that the protocol does not allow here.
func (m *Machine) illegal(p wire.Packet) {
	at := "fresh"
	if m.status == statusLive {
		at = stepNames[stepNone]
		if m.flow != nil {
			at = stepNames[m.flow.step]
		}
	}
	m.end(errs.Protocol, fmt.Sprintf("the master sent %T in state %q", p, at))
}

// end ends the session: data phases are aborted, everything that was begun is
// undone, every pending call is answered. Calls whose memory is still in use
// (data, fetch, probes) are answered when that work reports its end.
func (m *Machine) end(code errs.Code, detail string) {
	if m.status == statusOver {
		return
	}
	if m.resume.granted && m.dropReason == "" {
		m.send(wire.C2MFarewell{})
	}
	m.status = statusOver
	m.ended = fmt.Errorf("%w: %s", code, detail)
	m.view.Connected, m.view.Detached, m.resume.outage = false, false, false
	for _, op := range m.ops {
		m.abortData(op, detail)
	}
	for _, op := range m.ops {
		if !op.open {
			m.finish(op, true)
		}
	}
	f := m.flow
	if f != nil {
		switch f.step {
		case stepFetching:
			m.emit(StopFetch{Call: f.call})
		case stepProbing:
			if f.occupied() {
				m.emit(StopProbe{Call: f.call})
			}
		}
	}
	m.emit(Disconnect{Reason: m.ended.Error()})
	if op := m.unrepaired; op != nil {
		m.leaveUnrepaired(op.err)
	}

	if f != nil && !f.occupied() {
		m.abandon()
	}
	for _, op := range append([]*operation(nil), m.ops...) {
		if !op.open && op.state != opSettled {
			m.settleEnded(op)
		}
	}
	for _, c := range m.pending {
		m.done(c, m.endError(kindPending, ""))
	}
	m.pending, m.asking = nil, false
	for _, c := range m.mesh.calls {
		m.done(c, m.endError(kindReduce, ""))
	}
	if m.leaving != 0 {
		m.done(m.leaving, errs.New(errs.CodeOf(m.ended), leaveName, m.ended))
		m.leaving = 0
	}
	m.mesh.calls = nil
}

// abandon answers the call of the flow that the session's end cut off.
func (m *Machine) abandon() {
	f := m.flow
	m.flow = nil // at whatever step it is
	if f.background {
		return
	}
	err := m.endError(f.kind, stepNames[f.step])
	if f.cause != nil {
		err.Err = errors.Join(f.cause, m.ended)
	}
	m.done(f.call, err)
}

// endError is the error of a call of kind k after the end of the session.
func (m *Machine) endError(k kind, phase string) *errs.Error {
	return errs.New(endCodes[k], kindNames[k], m.ended).WithPhase(phase).WithHint(hintReconnect)
}

// usable returns nil if the session can take a call of kind k.
func (m *Machine) usable(k kind) *errs.Error {
	switch {
	case m.status == statusOver:
		return m.endError(k, "")
	case !m.view.Connected:
		return errs.New(errs.InvalidUsage, kindNames[k], errors.New("not connected")).WithHint(hintFirst)
	case m.leaving != 0:
		return errs.New(errs.Busy, kindNames[k], errors.New("leave is running"))
	}
	return nil
}

// close leaves the run.
func (m *Machine) close(c CallClose) {
	m.closers = append(m.closers, c.Call)
	if m.closeBy == 0 {
		m.closeBy = m.now + closeGrace
	}
}

// answerClosers answers CallClose once nothing of the session is left running.
func (m *Machine) answerClosers() {
	if len(m.closers) == 0 || m.flow != nil || m.closeBy != 0 {
		return
	}
	for _, op := range m.ops {
		if op.open {
			return
		}
	}
	for _, c := range m.closers {
		m.done(c, nil)
	}
	m.closers = nil
}

// cancel carries out that the caller of c.Call gave up.
func (m *Machine) cancel(c CallCancel) {
	if m.cancelDeferred(c) || m.cancelMesh(c.Call) {
		return
	}
	if op := m.unrepaired; op != nil && op.await == c.Call {
		m.leaveUnrepaired(notRepaired(op.err))
		return
	}
	if c.Call == m.leaving && m.leaving != 0 {
		m.end(errs.Canceled, "the caller did not wait for the others to go on without this peer")
		return
	}
	for i, p := range m.pending {
		if p == c.Call {
			// The vote stands; its answer serves later calls.
			m.pending = append(m.pending[:i:i], m.pending[i+1:]...)
			m.done(c.Call, errs.New(errs.Canceled, kindNames[kindPending], nil))
			return
		}
	}
	if f := m.flow; f != nil && !f.background && f.call == c.Call && m.alive() {
		if f.kind == kindAwait {
			// The others wait for this vote: the round goes on without a caller.
			f.background = true
			m.done(f.call, notRepaired(f.cause))
			return
		}
		m.end(errs.Canceled, "the caller gave up while the others counted on its vote")
		return
	}
	if c.Op != 0 {
		m.cancelOperation(c.Op)
	}
}

// inBackground reports whether work goes on that no caller waits for.
func (m *Machine) inBackground() bool {
	if !m.alive() {
		return false
	}
	if m.flow != nil && m.flow.background {
		return true
	}
	for _, op := range m.ops {
		if op.canceled {
			return true
		}
	}
	return false
}

// postpone keeps a call until the background is quiet; calls keep their order.
func (m *Machine) postpone(ev Event) bool {
	if !m.blocked(ev) && (m.draining || len(m.deferred) == 0) {
		return false
	}
	m.deferred = append(m.deferred, ev)
	return true
}

// cancelDeferred drops a postponed call, and the await of a postponed launch.
func (m *Machine) cancelDeferred(c CallCancel) bool {
	hit := false
	var rest []Event
	for _, ev := range m.deferred {
		var call CallID
		var op OpID
		var k kind
		name := ""
		switch ev := ev.(type) {
		case CallUpdate:
			call, k = ev.Call, kindUpdate
		case CallOptimize:
			call, k = ev.Call, kindOptimize
		case CallSync:
			call, k = ev.Call, kindSync
		case CallLeave:
			call, name = ev.Call, leaveName
		case CallCollective:
			call, k, op, name = ev.Call, kindReduce, ev.Op, plan.Kind(ev.Vote.Kind).String()
		case CallAwait:
			call, k, op = ev.Call, kindAwait, ev.Op
		}
		if call != c.Call && (op == 0 || op != c.Op) {
			rest = append(rest, ev)
			continue
		}
		hit = true
		if name == "" {
			name = kindNames[k]
		}
		m.done(call, errs.New(errs.Canceled, name, nil))
	}
	m.deferred = rest
	return hit
}
