package peer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/collective"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/reduce"
	"github.com/gopccl/gopccl/internal/wire"
)

// exchange is the data phase of an all-reduce that uses the connections between all
// members instead of the ring. If its tensors lie on a device, all of the source is
// copied to the host first, and all of the result back: what goes this way is small.
type exchange struct {
	s     *Session
	ring  *reduce.Op     // never started; its memory of a device is used
	stage device.Staging // nil: the tensors are the host's
	start collective.Start
	done  func(error)
	name  string // of the plan
	why   string
	large *plan.Option // nil: the direct exchange of equal parts

	mu      sync.Mutex
	entered bool                  // the source has come, and run follows
	data    *collective.Operation // nil: run has not made it
	started bool                  // data takes calls
	ran     bool                  // data has ended
	err     error                 // the first failure
	seq     uint64                // of a commence that came before started
	called  bool                  // ... came
	begun   bool                  // stage.Begin has returned
	over    bool                  // the copies have ended
	stopped bool                  // stage.Stop was called
	told    bool                  // done was called
}

// startExchange starts the data phase of an all-reduce over the mesh.
func (s *Session) startExchange(op *Operation, ring *reduce.Op, e fsm.StartData) {
	x := &exchange{
		s: s, ring: ring, stage: ring.Stage(), name: "direct", why: reasonOf(s.m.View().Direct), large: e.Large,
		done: func(err error) {
			s.yields(err)
			s.dataEnded(e.Op, err)
		},
	}
	if e.Large != nil {
		spec := ring.Spec()
		x.name, x.why = e.Large.Scheme.Name, s.m.View().Large.Why(e.Large, uint64(spec.Count)*uint64(spec.DType.Size()))
	}
	x.start = collective.Start{
		Seq: e.Seq, Epoch: e.Epoch, Eager: e.Eager, Members: e.Members, Ring: e.Ring, Self: e.Self, Mesh: true, Done: x.ended,
	}
	op.direct.Store(x)
	if x.stage == nil {
		spec := ring.Spec()
		x.run(spec.Src, spec.Dst)
		return
	}
	x.copyIn()
}

// reasonOf says why an all-reduce takes the direct exchange.
func reasonOf(d wire.Direct) string {
	return fmt.Sprintf("at most %d bytes: delays add up to %v, to %v along the ring", d.Most,
		time.Duration(d.ExchangeUS)*time.Microsecond, time.Duration(d.RingUS)*time.Microsecond)
}

// run starts the exchange of what lies in the host's memory.
func (x *exchange) run(src, dst []byte) {
	spec := x.ring.Spec()
	all := collective.Spec{Kind: plan.AllReduce, Tag: spec.Tag, Src: src, Dst: dst, DType: spec.DType, Op: spec.Op}
	if x.large != nil {
		all.Scheme = x.large.Scheme
	}
	data, err := x.s.blocks.New(all)
	x.mu.Lock()
	if x.err == nil {
		x.err = err
	}
	if err = x.err; err != nil {
		x.ran = true
		x.mu.Unlock()
		x.settle(err)
		return
	}
	x.data = data
	x.mu.Unlock()
	data.Start(x.start)
	x.mu.Lock()
	x.started = true
	seq, called, err := x.seq, x.called, x.err
	x.mu.Unlock()
	if called {
		data.Commence(seq)
	}
	if err != nil {
		data.Abort(err)
	}
}

// ended takes the end of the exchange.
func (x *exchange) ended(err error) {
	x.mu.Lock()
	x.ran = true
	if x.err == nil {
		x.err = err
	}
	err = x.err
	x.mu.Unlock()
	x.settle(err)
}

// settle tells the machine of the end, or lets the copies come to theirs.
func (x *exchange) settle(err error) {
	x.mu.Lock()
	over := x.over || x.stage == nil
	x.mu.Unlock()
	switch {
	case over:
		x.tell(err)
	case err != nil:
		x.halt()
	default:
		x.guard(func() { x.stage.Put(0, x.ring.Spec().DeviceDst.Bytes) })
	}
}

// guard calls the platform; a panic fails the operation.
func (x *exchange) guard(f func()) (whole bool) {
	defer errs.Catch(opName, func(err *errs.Error) { x.Abort(x.s.hub.Caught(err, x.start.Self)) })
	f()
	return true
}

// copyIn has the source copied to the host.
func (x *exchange) copyIn() {
	all := []device.Range{{From: 0, To: x.ring.Spec().DeviceSrc.Bytes}}
	whole := x.guard(func() { x.stage.Begin(all, x) })
	x.mu.Lock()
	x.begun = true
	failed := x.err != nil
	x.over = x.over || !whole
	err := x.err
	x.mu.Unlock()
	switch {
	case !whole:
		go x.report(err) // it has begun nothing
	case failed:
		x.halt()
	}
}

// tell calls done, once.
func (x *exchange) tell(err error) {
	x.mu.Lock()
	first := !x.told
	x.told = true
	x.mu.Unlock()
	if first {
		x.done(err)
	}
}

// report is tell on a goroutine that nobody waits for.
func (x *exchange) report(err error) {
	defer errs.Catch(opName, x.s.crash)
	x.tell(err)
}

// halt ends the copies, once they have begun; Ended follows.
func (x *exchange) halt() {
	x.mu.Lock()
	stop := x.begun && !x.stopped && !x.over
	x.stopped = x.stopped || stop
	x.mu.Unlock()
	if stop {
		x.guard(x.stage.Stop)
	}
}

// Arrived implements device.Events: all of the source is there, or less.
func (x *exchange) Arrived(n int) {
	x.mu.Lock()
	enter := n == x.ring.Spec().DeviceSrc.Bytes && x.err == nil && !x.entered
	x.entered = x.entered || enter
	x.mu.Unlock()
	if !enter {
		return
	}
	go func() {
		defer errs.Catch(opName, x.s.crash)
		x.run(x.stage.Memory())
	}()
}

// Ended implements device.Events: the result is on the device, or the copies failed.
func (x *exchange) Ended(err error) {
	x.mu.Lock()
	x.over = true
	if err != nil && x.err == nil {
		x.err = errs.New(errs.CodeOf(err), opName, err).WithPhase("data phase")
	}
	err = x.err
	data, runs, started := x.data, x.entered && !x.ran, x.started
	x.mu.Unlock()
	switch {
	case !runs:
		go x.report(err)
	case started && err != nil:
		data.Abort(err) // its end follows
	}
}

// Commence implements phase.
func (x *exchange) Commence(seq uint64) {
	x.mu.Lock()
	data, started := x.data, x.started
	if !started {
		x.seq, x.called = seq, true
	}
	x.mu.Unlock()
	if started {
		data.Commence(seq)
	}
}

var errStopped = errors.New("aborted")

// Abort implements phase.
func (x *exchange) Abort(err error) {
	if err == nil {
		err = errs.New(errs.Canceled, opName, errStopped)
	}
	x.mu.Lock()
	if x.err == nil {
		x.err = err
	}
	data, started := x.data, x.started
	x.mu.Unlock()
	switch {
	case started:
		data.Abort(err)
	case x.stage != nil:
		x.halt()
	}
}

// Finish implements phase.
func (x *exchange) Finish(restore bool) {
	x.mu.Lock()
	data := x.data
	x.mu.Unlock()
	if data != nil {
		data.Finish(restore)
	}
	x.ring.Finish(restore)
}

// Counters implements phase.
func (x *exchange) Counters() (tx, rx uint64) {
	x.mu.Lock()
	data := x.data
	x.mu.Unlock()
	if data == nil {
		return 0, 0
	}
	return data.Counters()
}

// State implements phase.
func (x *exchange) State() reduce.OpState {
	x.mu.Lock()
	data, err := x.data, x.err
	x.mu.Unlock()
	spec := x.ring.Spec()
	if data == nil {
		return reduce.OpState{
			Tag: spec.Tag, Seq: x.start.Seq, Eager: x.start.Eager, Count: spec.Count, DType: spec.DType, Op: spec.Op, Phase: "running",
			Err: err, Waits: "device: the source has not come",
		}
	}
	st := blocks{data}.State()
	st.Count = spec.Count
	return st
}
