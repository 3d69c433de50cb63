package peer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/reduce"
)

// Operation is one collective from its posting to the end of the last wait for it.
// It is posted, taken or refused by the machine, settled when its verdict is known
// and its buffers are the caller's, and over when Wait has what it returns, which
// after a failure may be a round later. Its exported methods are those of
// core.Handle, and documented there.
type Operation struct {
	// These never change.
	s      *Session
	id     fsm.OpID
	launch fsm.CallID         // the call of event
	event  fsm.CallCollective // tells the machine of it
	data   phase
	posted time.Time

	timing timing // of its data phase; but for the state of who has the machine

	// direct is what an all-reduce has instead of its ring once it has begun so, and
	// renewed what it has instead of data once that was taken back.
	direct  atomic.Pointer[exchange]
	renewed atomic.Pointer[renewal]

	// The book's mu guards what follows.
	world    int        // members of its ring; until it begins, of that at the launch
	running  bool       // between Start and the end of the data phase
	claimed  bool       // somebody settles it
	asked    fsm.CallID // the call that asks for the verdict, 0: none has asked
	decided  gate       // passed when the machine has taken or refused it
	refusal  error      // why it was refused
	settled  gate
	failed   bool
	verdict  error // if it failed and the machine said why
	info     ReduceInfo
	over     gate
	err      error    // what Wait returns
	notified []func() // to be called when it is over
}

// phase is what moves the data of op.
func (op *Operation) phase() phase {
	if x := op.direct.Load(); x != nil {
		return x
	}
	if r := op.renewed.Load(); r != nil {
		return r.data
	}
	return op.data
}

// planned returns how an all-reduce went, and why not along the ring.
func (op *Operation) planned() (name, why string) {
	if op.kind() != plan.AllReduce {
		return "", ""
	}
	if x := op.direct.Load(); x != nil {
		return x.name, x.why
	}
	return "ring", ""
}

// gate is something that happens once. The first to wait for it makes the channel. The
// mu of the session's book guards it.
type gate struct {
	passed bool
	closed chan struct{}
}

// pass lets everybody through.
func (g *gate) pass() {
	if !g.passed && g.closed != nil {
		close(g.closed)
	}
	g.passed = true
}

// opened returns a channel that is closed when g is passed.
func (op *Operation) opened(g *gate) <-chan struct{} {
	op.s.mu.Lock()
	defer op.s.mu.Unlock()
	if g.passed {
		return ended
	}
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
	return g.closed
}

// operation returns one that the machine has, nil if it was settled.
func (s *Session) operation(id fsm.OpID) *Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ops[id]
}

// claim makes the caller the one that settles op, unless somebody else is.
func (op *Operation) claim() bool {
	s := op.s
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := !op.claimed
	op.claimed = true
	delete(s.ops, op.id)
	return mine
}

// settle gives the buffers of an operation back, with the verdict that e has.
func (s *Session) settle(e fsm.Finish) {
	op := s.operation(e.Op)
	if op == nil || !op.claim() {
		return
	}
	data := op.phase()
	tx, rx := data.Counters()
	op.finish(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	op.info = ReduceInfo{WorldSize: op.world, TxBytes: tx, RxBytes: rx}
	op.info.Plan, op.info.Why = op.planned()
	op.info.FinishedForward = e.Keep
	op.failed, op.verdict = e.Restore && e.Result == nil, e.Err
	op.settled.pass()
}

// refuse settles an operation that the machine does not have.
func (op *Operation) refuse(err error) {
	if !op.claim() {
		return
	}
	op.data.Finish(true)
	op.s.mu.Lock()
	defer op.s.mu.Unlock()
	op.failed, op.verdict = true, err
	op.settled.pass()
}

// answered takes the answer to one of the operation's calls, which is the
// machine's, or stands for one that never comes. It returns the calls of Notify's
// functions that are due, for the caller to make when it holds no lock.
func (op *Operation) answered(id fsm.CallID, err error) (due []func()) {
	if id == op.launch {
		if err != nil {
			op.refuse(err)
		}
		op.s.mu.Lock()
		op.refusal = err
		op.decided.pass()
		op.s.mu.Unlock()
		if err == nil {
			return nil
		}
	}
	crash := op.s.crashed.Load()
	if crash == nil || err == nil {
		return op.end(err)
	}
	go func() {
		defer errs.Catch(op.name(), op.s.crash)
		<-op.opened(&op.settled) // the machine did not wait for it
		op.s.notify(op.end(faulty(op.name(), crash)))
	}()
	return nil
}

// end makes err, or what came before the session's end, the result.
func (op *Operation) end(err error) (due []func()) {
	op.s.mu.Lock()
	defer op.s.mu.Unlock()
	if op.over.passed {
		return nil
	}
	if errs.CodeOf(err) == errs.Closed && op.settled.passed && (!op.failed || op.verdict != nil) {
		err = op.verdict // the session is over, but the verdict came before
	}
	op.err = err
	op.over.pass()
	due, op.notified = op.notified, nil
	return due
}

// ask asks the machine for the verdict, once.
func (op *Operation) ask() {
	s := op.s
	s.flushPosts()
	s.mu.Lock()
	if op.asked != 0 || op.over.passed {
		s.mu.Unlock()
		return
	}
	op.asked = fsm.CallID(s.ids.Add(1))
	crash, left := s.crashed.Load(), s.left
	if crash == nil && !left {
		s.opCalls[op.asked] = op
	}
	s.mu.Unlock()
	switch {
	case crash != nil:
		s.notify(op.answered(op.asked, crash))
	case left:
		s.notify(op.answered(op.asked, closed()))
	default:
		s.handle(fsm.CallAwait{Call: op.asked, Op: op.id})
	}
}

// Cancel is core.Handle.Cancel.
func (op *Operation) Cancel() {
	op.s.mu.Lock()
	asked := op.asked
	op.s.mu.Unlock()
	op.giveUp(fsm.CallCancel{Call: asked, Op: op.id})
}

// Withdraw is core.Handle.Withdraw.
func (op *Operation) Withdraw() { op.giveUp(fsm.CallCancel{Call: op.launch}) }

// giveUp leaves c to the machine, behind the launch, which may only have been posted.
func (op *Operation) giveUp(c fsm.CallCancel) {
	op.s.flushPosts()
	op.s.box.post(c)
}

// Taken is core.Handle.Taken.
func (op *Operation) Taken() <-chan struct{} { return op.opened(&op.decided) }

// Done is core.Handle.Done.
func (op *Operation) Done() <-chan struct{} { return op.opened(&op.settled) }

// Refused is core.Handle.Refused.
func (op *Operation) Refused() error {
	<-op.Taken()
	return op.s.explain(context.Background(), op.name(), op.refused())
}

// Wait is core.Handle.Wait.
func (op *Operation) Wait(ctx context.Context) (ReduceInfo, error) {
	op.ask()
	select {
	case <-op.opened(&op.over):
		return op.result()
	case <-ctx.Done():
		return ReduceInfo{}, errs.New(errs.Canceled, op.name(), ctx.Err()).WithPhase("waiting")
	}
}

// launched has the machine look at the operation and waits until it has taken it, or
// refused it. The end of ctx takes a launch back that has to wait.
func (op *Operation) launched(ctx context.Context) error {
	op.s.pickUpNow()
	decided := op.opened(&op.decided)
	select {
	case <-decided:
	case <-ctx.Done():
		op.giveUp(fsm.CallCancel{Call: op.launch, Op: op.id})
		<-decided
	}
	return op.s.explain(ctx, op.name(), op.refused())
}

// refused returns why the machine did not take the operation, once it has decided,
// and when the buffers are the caller's again.
func (op *Operation) refused() error {
	op.s.mu.Lock()
	err := op.refusal
	op.s.mu.Unlock()
	if err != nil && op.s.crashed.Load() != nil {
		<-op.opened(&op.settled) // until then its buffers may be touched
	}
	return err
}

// wait returns what the operation did. The end of ctx aborts it.
func (op *Operation) wait(ctx context.Context) (ReduceInfo, error) {
	op.ask()
	over := op.opened(&op.over)
	select {
	case <-over:
	case <-ctx.Done():
		op.Cancel()
		<-over
	}
	info, err := op.result()
	return info, canceledBy(ctx, op.name(), err)
}

func (op *Operation) result() (ReduceInfo, error) {
	op.s.mu.Lock()
	defer op.s.mu.Unlock()
	if op.err != nil {
		return ReduceInfo{}, op.s.names.named(op.err)
	}
	return op.info, nil
}

// Notify is core.Handle.Notify: it calls f when the operation is over, here if it is.
func (op *Operation) Notify(f func()) {
	op.s.mu.Lock()
	over := op.over.passed
	if !over {
		op.notified = append(op.notified, f)
	}
	op.s.mu.Unlock()
	if over {
		op.s.notify([]func(){f})
		return
	}
	op.ask()
}

// startData starts the data phase of an operation. One that panics before it has
// begun never ends by itself: it counts as one that was not started.
func (s *Session) startData(e fsm.StartData) {
	s.mu.Lock()
	op := s.ops[e.Op]
	starts := op != nil && s.crashed.Load() == nil
	if starts {
		op.running, op.world = true, len(e.Ring)
	}
	s.mu.Unlock()
	if !starts {
		return
	}
	const begins = "start" // the name would be an allocation of each operation
	defer errs.Catch(begins, func(err *errs.Error) {
		if err.Op == begins { // else it is another one's, passed on
			err.Op += " " + op.name()
		}
		if op.phase().State().Phase == "created" {
			s.mu.Lock()
			op.running = false
			s.mu.Unlock()
		}
		s.crash(err)
	})
	data := op.reduction()
	if data == nil {
		s.startBlocks(op, op.data.(blocks), e) // a barrier has no data phase
		return
	}
	if r := op.renewed.Load(); r != nil && r.err != nil {
		s.box.post(fsm.DataEnded{Op: e.Op, Err: r.err})
		return
	}
	if e.Mesh {
		s.startExchange(op, data, e)
		return
	}
	s.time(op, e)
	id := e.Op // else all of e would live as long as Done
	data.Start(reduce.Start{
		Seq: e.Seq, Epoch: e.Epoch, Eager: e.Eager, Ahead: int64(e.Ahead), Ring: e.Ring, Self: e.Self, Native: e.Native,
		Done: func(err error) {
			s.metered(op, err)
			s.yields(err)
			s.dataEnded(id, err)
		},
	})
}

// commence tells an operation that began before it its sequence number.
func (s *Session) commence(e fsm.CommenceData) {
	op := s.operation(e.Op)
	if op == nil { // it was given up
		s.skip(e.Seq)
		return
	}
	s.commenced(op)
	op.phase().Commence(e.Seq)
}

// dataEnded tells the machine that an operation's buffers are no longer touched, or
// settles it if there is no machine that would.
func (s *Session) dataEnded(id fsm.OpID, err error) {
	s.mu.Lock()
	if op := s.ops[id]; op != nil {
		op.running = false
	}
	crashed := s.crashed.Load() != nil
	s.mu.Unlock()
	if crashed {
		s.settle(fsm.Finish{Op: id, Restore: true})
		return
	}
	s.handle(fsm.DataEnded{Op: id, Err: err})
}
