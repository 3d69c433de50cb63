package collective

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

type phase uint8

const (
	created phase = iota
	running
	ended
	finished
)

// Operation is one collective of this member: created by New, begun by Start, ended by
// the call of done, released by Finish.
type Operation struct {
	e    *Engine
	spec Spec
	name string // of its kind

	// Set by Start and constant then.
	place
	began time.Time
	done  func(error)
	ins   []*inLane
	outs  []*outLane
	mem   memory
	code  code
	dev   *staged // nil: the data is in the host's memory

	id      identity
	undo    undo
	aborted atomic.Bool // read in the loops; failErr is set

	mu       invariants.Mutex
	state    phase
	attached bool // its connections send for it, and others may join them
	limited  bool // it may send before its commence what the lanes' credit allows
	holds    bool // lanes have pieces that wait for their turn, so that no spare is sent
	failErr  error
	later    []error // why else it would have failed
	// What keeps it from ending.
	pending int               // lanes, and the own copy, that are not done
	refs    int               // frames in batches that refer to its memory
	readers []*link.Receiver  // inside a frame of it, may touch its memory
	alone   [2]*link.Receiver // room for readers, so that a few cost no allocation
	copying bool              // the own block is being copied
	wait    *time.Timer       // for connections from peers
}

// place is where this member stands.
type place struct {
	n, me   int
	members []wire.UUID
	mesh    bool
	both    bool // both members finish all chunks (plan.Plan)
	layout
}

// identity is what frames and people call an operation.
type identity struct {
	stream     atomic.Uint64 // of the frames that are sent
	start      uint64        // the number of Start, for people
	epoch      uint64        // peers may begin eagerly since; 0: they may not
	key        opKey         // guarded by Engine.mu
	deferred   bool          // it sends when it has a number; guarded by Engine.mu
	listens    bool          // frames with its epoch are for it; guarded by Engine.mu
	generation uint32        // which operation with its tag it is, of those that have spares; 0: none; guarded by Engine.mu
	absent     bool          // its source has not come from the device; guarded by Engine.mu
	number     uint64        // sequence number, or the epoch while unnamed; guarded by Operation.mu
	unnamed    bool          // it began eagerly and has no sequence number yet; guarded by Operation.mu
}

// memory is where the chunks of a plan lie.
type memory struct {
	src, dst []byte
	temp     lazy // sums and blocks on their way to others
	wait     lazy // what came before its turn to be added
}

// lazy is memory of the pool that the first goroutine takes that needs it: all of it is
// touched then, which may take long.
type lazy struct {
	size int
	once sync.Once
	b    []byte
}

// New checks spec and returns the operation. Errors are *errs.Error with code
// InvalidArgument. What depends on the members is checked by Spec.Check, and by Start.
func (e *Engine) New(spec Spec) (*Operation, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	op := &Operation{e: e, spec: spec, name: spec.Kind.String()}
	op.mu.Rank(rankOperation, "Operation.mu")
	if spec.Quantizer != nil && spec.WireType == spec.DType {
		op.spec.Quantizer = nil // travels as it is
	}
	op.setForm()
	if err := op.openStage(); err != nil {
		op.e.link.Pool.Put(op.code.wire)
		return nil, err
	}
	return op, nil
}

// Start is what an operation has to know to begin.
type Start struct {
	// Seq is the sequence number, below 2^60. Those of one engine never repeat and
	// never fall. Without a meaning if Eager.
	Seq uint64
	// Epoch is the one in which peers may begin the operation eagerly, below 2^60; 0:
	// they may not.
	Epoch uint64
	// Eager: the operation begins before its sequence number is known, and Commence
	// follows when it is. No operation with this tag has failed in this epoch, and
	// none runs.
	Eager bool
	// Ahead, if it is not 0, is how many bytes of frames an eager operation may send
	// before Commence. Its lanes get equal parts.
	Ahead int64
	// Members is the group in its own order, and Ring in that of the ring.
	Members, Ring []wire.UUID
	Self          wire.UUID // this peer, one of both
	// Mesh: all members are connected with each other, and use it. The same on all.
	Mesh bool
	// Done is called exactly once, on another goroutine or later, when the phase ended
	// and no buffer is touched any more; it must return soon.
	Done func(err error)
}

// Start begins the data phase. An operation that was aborted before ends at once.
func (op *Operation) Start(s Start) {
	op.id.epoch = s.Epoch &^ allBits
	stream := mark | s.Seq&^allBits
	op.id.start = s.Seq
	if s.Eager {
		op.id.start, stream = op.id.epoch, mark|eagerBit|op.id.epoch
		op.limited = s.Ahead > 0
	}
	op.id.stream.Store(stream)
	op.done, op.began = s.Done, time.Now()
	err := op.enter(s)
	e := op.e
	e.link.Stats.Ops.Add(1)
	e.count(op.name, 1)
	if heard := e.hub.Tell(op.name, func(t *trace.Listener) { t.Started(op.spec.Tag, op.id.start) }); err == nil && heard != nil {
		err = heard
	}
	e.mu.Lock()
	if !s.Eager {
		e.pass(s.Seq)
	}
	op.id.key = opKey{op.spec.Tag, stream &^ mark}
	switch {
	case e.closed:
		err = errs.New(errs.Closed, op.name, errClosed)
	case err == nil && e.ops[op.id.key].runs():
		err = errs.New(errs.Internal, op.name, fmt.Errorf("tag %d, sequence %d is running already", op.id.key.tag, op.id.key.seq))
	}
	unlinked, broken := op.connect(s.Ahead)
	failed := op.open(err, s.Eager)
	missing := false
	if !failed {
		e.ops[op.id.key] = op
		if op.id.absent = op.dev != nil; !op.id.absent {
			e.listen(op)
		}
		missing = slices.ContainsFunc(op.ins, func(l *inLane) bool { return l.from == nil && !l.received.Load() })
	}
	deferred := op.id.deferred
	e.started.Broadcast()
	e.mu.Unlock()
	if !failed {
		if broken != nil {
			op.failLink(unlinked, broken())
		}
		if missing {
			op.awaitConnections()
		}
		if op.dev != nil {
			op.dev.begin()
		} else {
			op.move(deferred)
		}
	}
	op.settle(true)
}

// move lets data go, and takes what came before. deferred: it sends when it has a number.
func (op *Operation) move(deferred bool) {
	if !deferred {
		op.attach()
	}
	op.copyOwn()
	op.e.replay(op)
}

// runs reports whether nil or a running operation stands in the way of another one with
// its key.
func (op *Operation) runs() bool {
	if op == nil {
		return false
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.state == running
}

// connect notes the connections that the lanes use, and names a peer to which, or from which, one is missing: broken
// says why, and is called without a lock; nil: none is missing. Engine.mu is held.
func (op *Operation) connect(ahead int64) (peer wire.UUID, broken func() error) {
	for _, l := range op.outs {
		l.credit = ahead / int64(len(op.outs))
		if pool := op.e.hub.InUse(l.peer); l.left > 0 && !l.choose(pool, op.e.cfg.Flows) {
			peer, broken = l.peer, func() error { return link.Missing(noneTo, link.WhyBroken(pool)) }
		}
		waits := op.isEager() && (op.limited || len(l.flows.Conns()) > 1)
		op.id.deferred = op.id.deferred || waits && slices.ContainsFunc(l.flows.Conns(), func(s *link.Sender) bool { return !s.Features().Ahead })
	}
	for _, l := range op.ins {
		if pool := op.e.hub.Receivers(l.peer); len(pool) > 0 && !l.received.Load() {
			var lost bool
			if l.from, lost = link.Expect(pool); lost {
				peer, broken = l.peer, func() error { return link.Missing(endedFrom, link.WhyEnded(pool)) }
			}
		}
	}
	return peer, broken
}

func (op *Operation) isEager() bool { return op.id.stream.Load()&eagerBit != 0 }

// open makes the operation one that runs, and reports whether it has failed, because of
// err or before. Engine.mu is held.
func (op *Operation) open(err error, eager bool) (failed bool) {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.id.number, op.id.unnamed = op.id.start, eager
	op.state = running
	op.readers = op.alone[:0]
	if op.failErr == nil {
		op.failErr = err
	}
	failed = op.failErr != nil
	op.aborted.Store(failed)
	if op.dev != nil {
		op.dev.busy = !failed
	} else {
		op.copying = !failed && op.copies()
	}
	return failed
}

const (
	noneTo    = "there is no connection to the peer, or one of them has ended"
	endedFrom = "a connection from the peer has ended"
)

// failLink fails the operation because of the connections to or from peer. No lock is held.
func (op *Operation) failLink(peer wire.UUID, err error) {
	op.fail(errs.New(errs.RankConnectionLost, op.name, err).WithPhase("start").WithPeer(peer.String()))
}

// awaitConnections bounds the wait for the first connection of each peer.
func (op *Operation) awaitConnections() {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.wait = time.AfterFunc(op.e.cfg.ConnectWait, func() {
		op.e.mu.Lock()
		at := slices.IndexFunc(op.ins, func(l *inLane) bool { return l.from == nil && !l.received.Load() })
		op.e.mu.Unlock()
		if at >= 0 {
			op.failLink(op.ins[at].peer, errors.New("the peer did not connect"))
		}
	})
}

// enter computes what depends on the group; a panic is its error.
func (op *Operation) enter(s Start) (err error) {
	defer errs.Catch(op.name, func(p *errs.Error) { err = op.e.hub.Caught(p, s.Self) })
	op.members, op.mesh = s.Members, s.Mesh
	op.n, op.me = len(s.Members), slices.Index(s.Members, s.Self)
	order := make([]int, len(s.Ring))
	for i, peer := range s.Ring {
		order[i] = slices.Index(s.Members, peer)
	}
	if op.me < 0 || len(order) != op.n || slices.Contains(order, -1) {
		return errs.New(errs.Internal, op.name, fmt.Errorf("peer %v, or a ring of %d, does not belong to %d members", s.Self, len(order), op.n))
	}
	if op.layout, err = op.spec.lay(op.n, op.me, op.mesh); err != nil {
		return err
	}
	op.mem.src, op.mem.dst = op.spec.Src, op.spec.Dst
	op.dev.plan()
	op.makePlaces()
	op.assemble(plan.For(plan.Job{
		Kind: op.spec.Kind, N: op.n, Me: op.me, Root: op.spec.Root, Order: order, Mesh: op.mesh,
		Scheme: op.spec.Scheme, Stripes: op.spec.stripes(),
	}))
	for _, l := range op.ins {
		if !l.received.Load() {
			op.pending++
		}
	}
	for _, l := range op.outs {
		if l.left > 0 {
			op.pending++
		}
	}
	if op.dev == nil {
		op.keepSource(op.mem.src)
	}
	return nil
}

// keepSource copies the source where it may be overwritten before it is sent. Nothing is
// received yet, and no lock is held.
func (op *Operation) keepSource(src []byte) {
	if op.both {
		copy(op.mem.temp.get(op.e), src)
	}
}

// Abort ends the data phase with reason. It may be called at any time from any goroutine,
// any number of times, and never blocks; done follows if Start was or is called.
func (op *Operation) Abort(reason error) {
	if reason == nil {
		reason = errs.New(errs.Canceled, op.name, link.ErrStopped)
	}
	op.fail(reason)
}

// maxLater bounds the causes that are kept beside the first.
const maxLater = 4

// fail records the first cause and makes all connections let go of the memory.
func (op *Operation) fail(err error) {
	op.mu.Lock()
	if op.failErr != nil || op.state == ended || op.state == finished {
		if op.failErr != nil && len(op.later) < maxLater {
			op.later = append(op.later, err)
		}
		op.mu.Unlock()
		return
	}
	op.failErr = err
	op.aborted.Store(true)
	if op.state == created {
		op.mu.Unlock()
		return
	}
	for _, r := range op.readers {
		r.Interrupt()
	}
	stop := op.dev != nil && op.dev.stop()
	op.mu.Unlock()
	for _, l := range op.outs {
		for _, s := range l.flows.All() {
			s.Detach(l)
		}
	}
	if stop {
		op.dev.halt()
	}
	op.settle(true)
}

// settle calls done if the operation is over and nothing touches its memory.
func (op *Operation) settle(async bool) {
	op.mu.Lock()
	over := op.failErr != nil || op.pending == 0
	if op.state != running || !over || len(op.readers) > 0 || op.refs > 0 || op.copying {
		op.mu.Unlock()
		return
	}
	if op.dev != nil && !op.dev.settled() {
		op.mu.Unlock()
		op.dev.give()
		return
	}
	op.state = ended
	err := op.failErr
	if len(op.later) > 0 {
		err = errs.Then(err, op.later...)
	}
	if op.wait != nil {
		op.wait.Stop()
	}
	op.mu.Unlock()
	for _, l := range op.outs {
		for _, s := range l.flows.All() {
			s.Leave(l)
		}
	}
	if async {
		go func() {
			defer errs.Catch(op.name, func(p *errs.Error) { _ = op.e.hub.Caught(p, wire.UUID{}) })
			op.end(err)
		}()
	} else {
		op.end(err)
	}
}

func (op *Operation) end(err error) {
	e := op.e
	if err != nil {
		e.link.Stats.FailedOps.Add(1)
	}
	if heard := e.hub.Tell(op.name, func(t *trace.Listener) { t.Ended(op.spec.Tag, op.id.start, err) }); err == nil && heard != nil {
		err = heard
	}
	defer e.count(op.name, -1)
	// It is out of the books before anybody hears of its end: the next one with its tag may
	// begin because of that.
	e.mu.Lock()
	e.forget(op, err != nil)
	if op.dev != nil {
		e.started.Broadcast() // readers may wait for its source
	}
	e.mu.Unlock()
	op.done(err)
}

// Finish releases what the operation holds: call it once, after done or instead of
// Start. With restore, what was input has the bits again that it had before Start, and
// with Spec.Preserve what is output alone, too.
func (op *Operation) Finish(restore bool) {
	if op.finish(restore) && op.dev != nil {
		op.dev.finish(restore)
	}
}

func (op *Operation) finish(restore bool) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.state == running || op.state == finished {
		return false
	}
	op.state = finished
	if restore {
		op.restore()
	}
	for _, m := range []*lazy{&op.mem.temp, &op.mem.wait, &op.undo.backup} {
		op.e.link.Pool.Put(m.b)
		m.b = nil
	}
	for _, l := range op.ins {
		if l.spares != nil {
			release(op.e, l.spares.groups)
		}
	}
	for _, l := range op.outs {
		if l.spares != nil {
			release(op.e, l.spares.groups)
			op.e.link.Pool.Put(l.spares.kept.b)
		}
	}
	op.e.link.Pool.Put(op.code.wire)
	op.code.wire = nil
	return true
}

// get returns the memory, which it takes from the pool at the first call.
func (m *lazy) get(e *Engine) []byte {
	m.once.Do(func() { m.b = e.link.Pool.Get(m.size) })
	return m.b
}

// Counters returns the bytes of data sent and received: of quantized blocks those of
// the encoded form, without metadata. Call it after done.
func (op *Operation) Counters() (tx, rx uint64) {
	op.mu.Lock()
	defer op.mu.Unlock()
	for _, l := range op.outs {
		tx += l.bytes
	}
	for _, l := range op.ins {
		rx += l.bytes
	}
	return tx, rx
}

// partBytes is how much is copied or combined at a time: a cache of the second level
// holds it, and an abort waits for no more.
const partBytes = 256 << 10

// inlineCopy: an own block up to this size is copied by the goroutine that calls Start.
const inlineCopy = 64 << 10

// copies reports whether the own block has to be copied from Src to Dst.
func (op *Operation) copies() bool {
	if op.own == none || op.adopts() {
		return false
	}
	c := op.chunks[op.own]
	return c.size > 0 && address(op.mem.src)+uintptr(c.src) != address(op.mem.dst)+uintptr(c.dst)
}

// copyOwn copies the block that does not travel. A large one takes time that the caller
// of Start does not have.
func (op *Operation) copyOwn() {
	if !op.copies() {
		return
	}
	c := op.chunks[op.own]
	work := func() {
		op.copyParts(c)
		op.mu.Lock()
		op.copying = false
		op.mu.Unlock()
	}
	if c.size <= inlineCopy {
		work()
		return
	}
	go func() {
		defer errs.Catch(op.name, func(p *errs.Error) { _ = op.e.hub.Caught(p, wire.UUID{}) })
		work()
		op.settle(false)
	}()
}

func (op *Operation) copyParts(c chunk) {
	for at := 0; at < c.size && !op.aborted.Load(); at += partBytes {
		to := min(at+partBytes, c.size)
		dst := op.mem.dst[c.dst+at : c.dst+to]
		if op.spec.Preserve && op.dev == nil {
			copy(op.undo.backup.get(op.e)[c.dst+at:], dst)
			op.undo.copied = to
		}
		copy(dst, op.mem.src[c.src+at:c.src+to])
	}
}
