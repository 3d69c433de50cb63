package reduce

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/trace"
	"github.com/gopccl/gopccl/internal/invariants"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/plan"
	"github.com/gopccl/gopccl/internal/wire"
)

// Spec describes one all-reduce.
type Spec struct {
	Tag   uint64
	Count int // elements
	DType dtype.Type
	Op    dtype.Op
	// Src and Dst have Count elements each, little-endian. They start at the
	// same address (in place) or do not overlap. They belong to the operation
	// until done was called.
	Src, Dst []byte
	// DeviceSrc and DeviceDst take their place if the tensors lie on a device.
	DeviceSrc, DeviceDst device.Buffer
	// Quantizer encodes what is sent as WireType; nil sends elements as they are.
	Quantizer quant.Quantizer
	WireType  dtype.Type
}

// Spec returns what the operation was made of.
func (op *Op) Spec() Spec { return op.spec }

// Stage hands the copies between the device and the host's memory over to a caller that
// never starts the operation, because its data travels in another way, nil if there are
// none to make. Finish gives the memory back, and restores what Put has overwritten.
func (op *Op) Stage() device.Staging {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.dev == nil {
		return nil
	}
	op.dev.begun = true
	return op.dev.stage
}

type opState uint8

const (
	opCreated opState = iota
	opRunning
	opEnded
	opFinished
)

// Op is one all-reduce of this peer: created by NewOp, begun by Start, ended by
// the call of done, released by Finish.
type Op struct {
	e       *Engine
	spec    Spec
	elem    int // bytes of an element in memory
	unit    int // bytes of a group of elements on the wire
	group   int // elements of a group: 1 but for quantizers with groups
	inPlace bool
	dev     *staged // nil: its tensors are the host's

	// Set by Start and constant then.
	position
	began time.Time
	piece int // wire bytes that are sent or processed at a time, a multiple of 64
	done  func(error)

	id    identity
	out   outStream
	in    inStream
	undo  undo
	code  code
	eager eagerState

	aborted atomic.Bool // read in the loops; failErr is set

	mu      invariants.Mutex
	state   opState
	failErr error
	later   []error     // why else it would have failed
	wait    *time.Timer // for the previous peer's connection
}

// position is where this peer stands in the ring of an operation.
type position struct {
	n, rank    int
	next, prev wire.UUID
	native     bool // every member is a gopccl peer
	// The steps: what goes out and what comes in, by step. Shared and constant.
	sends, comes []plan.Segment
}

// identity is what frames and people call an operation.
type identity struct {
	stream  atomic.Uint64 // of the frames that are sent
	start   uint64        // that of Start, for people
	epoch   uint64        // neighbours may begin eagerly since; 0: they may not
	key     opKey         // guarded by Engine.mu
	number  uint64        // sequence number, or the epoch while unnamed; guarded by Op.mu
	unnamed bool          // it began eagerly and has no sequence number yet; guarded by Op.mu
}

// outStream is what an operation sends to the next peer. Guarded by Op.mu, but
// for what says otherwise.
type outStream struct {
	op     *Op
	sender *link.Sender // set by Start and constant then
	first  int64        // wire bytes of the own chunk, sendable from the start; constant
	total  int64        // constant
	done   atomic.Bool
	refs   int  // frames in batches that refer to its buffers
	begun  bool // at least one byte was sent
	opened bool // an opener was sent instead
	short  bool // something that was taken was not sent: the loss of its connection fails it
	// Of one that began eagerly and is larger than what may be on its way so: only credit
	// bytes of frames may be taken before Commence.
	limited  bool
	credit   int64
	attached bool  // its connections send for it, and others may join them
	pos      int64 // wire bytes taken into batches
	bytes    uint64

	// In order.
	at       cursor
	metaSent bool // metadata of the current step was taken

	// Striped over flows, of which sender is one, as striped says, which is set when
	// both are known: by Start or, with Op.mu held, by Commence. Readers may run
	// meanwhile: they store in.pos before they load striped, and stripe stores
	// striped before it loads in.pos, so that one of them tells the senders of every
	// byte. Nil: not striped.
	flows   link.Flows
	striped atomic.Pointer[outGrid]

	metas []stepMeta // quantized: by step
}

// inStream is what an operation receives from the previous peer.
type inStream struct {
	op    *Op
	total int64 // wire bytes; constant

	// Guarded by Engine.mu.
	receiver *link.Receiver   // nil: the previous peer has not connected yet
	bound    bool             // a frame came from receiver: no other connection may go on
	from     []*link.Receiver // those that pieces come on; nil: none came

	// Guarded by Op.mu.
	readers []*link.Receiver  // inside a frame of this operation, may touch its buffers
	alone   [1]*link.Receiver // room for readers, so that one costs no allocation
	striped *inGrid           // set by the first piece that comes

	// Published by the reader: wire bytes that are processed, over all steps;
	// and of how many steps metadata came.
	pos       atomic.Int64
	described atomic.Int64
	done      atomic.Bool

	// In order owned by the reader, otherwise guarded by Op.mu.
	metas []heldMeta // quantized: by step
	bytes uint64

	// In order, owned by the reader.
	at      cursor
	carry   [8]byte // the element in which the last frame ended
	carried int
}

// code is the encoded form of a quantized operation.
type code struct {
	wire []byte // every chunk, encoded, at its place
	// What the reader knows of the chunks that it received, by step.
	gathered []quant.Gathered
}

// stepMeta is the metadata of a step that is sent; stepMeta, the method, computes it.
type stepMeta struct {
	once sync.Once
	m    quant.Meta
}

// heldMeta is the metadata of a step that is received.
type heldMeta struct {
	known bool
	m     quant.Meta
}

// cursor walks over the non-empty chunks of the steps of one direction.
type cursor struct {
	step  int
	first int   // first element of the chunk
	size  int   // wire bytes of the chunk
	off   int   // wire bytes done in this step
	pos   int64 // wire bytes of all steps before this one
}

// chunk returns the elements that move in step.
func (op *Op) chunk(step int, sending bool) (first, count int) {
	list := op.comes
	if sending {
		list = op.sends
	}
	return plan.Chunk(op.spec.Count, op.n, list[step].Chunk)
}

// source reports whether what is sent in step is the source's own data.
func (p *position) source(step int) bool { return p.sends[step].After.None() }

// origin returns what comes in before it goes out in step, which is not the
// source's, and what is done with it.
func (p *position) origin(step int) (int, plan.Action) {
	at := p.sends[step].After.Segment
	return at, p.comes[at].Do
}

// forwards reports whether what is sent in step goes on as it came.
func (p *position) forwards(step int) bool {
	if p.source(step) {
		return false
	}
	_, do := p.origin(step)
	return do == plan.Set
}

// owns reports whether what is sent in step was finished by this peer.
func (p *position) owns(step int) bool {
	if p.source(step) {
		return false
	}
	_, do := p.origin(step)
	return do == plan.Finish
}

// enter puts the cursor on step, or on the next one that moves anything.
func (op *Op) enter(c *cursor, step int, sending bool) {
	c.pos += int64(c.size)
	c.off, c.size = 0, 0
	for ; step < len(op.sends); step++ {
		first, count := op.chunk(step, sending)
		if count > 0 {
			c.step, c.first, c.size = step, first, op.encoded(count)
			return
		}
	}
	c.step = step
}

// NewOp checks spec and returns the operation. Errors are *errs.Error with code
// InvalidArgument, or what device.Platform.Stage returns.
func (e *Engine) NewOp(spec Spec) (*Op, error) {
	bad := func(format string, args ...any) (*Op, error) {
		return nil, errs.New(errs.InvalidArgument, opName, fmt.Errorf(format, args...))
	}
	size := spec.DType.Size()
	onDevice := !spec.DeviceSrc.None() || !spec.DeviceDst.None()
	switch {
	case !spec.DType.Valid():
		return bad("unknown element type %d", uint8(spec.DType))
	case !spec.Op.Valid():
		return bad("unknown reduce operation %d", uint8(spec.Op))
	case spec.Count < 0:
		return bad("negative count %d", spec.Count)
	case onDevice:
		if err := spec.checkDevice(size); err != nil {
			return nil, errs.New(errs.InvalidArgument, opName, err)
		}
	case len(spec.Src)/size != spec.Count || len(spec.Src)%size != 0:
		return bad("source has %d bytes, %d elements of %v need %d", len(spec.Src), spec.Count, spec.DType, spec.Count*size)
	case len(spec.Dst) != len(spec.Src):
		return bad("destination has %d bytes, source %d", len(spec.Dst), len(spec.Src))
	}
	op := &Op{e: e, spec: spec, elem: size}
	op.out.op, op.in.op = op, op
	op.mu.Rank(rankOp, "Op.mu")
	if spec.Count > 0 && !onDevice {
		s, d := uintptr(unsafe.Pointer(&spec.Src[0])), uintptr(unsafe.Pointer(&spec.Dst[0]))
		n := uintptr(len(spec.Src))
		switch {
		case s == d:
			op.inPlace = true
		case s < d+n && d < s+n:
			return nil, errs.New(errs.InvalidArgument, opName, errPartly)
		}
	}
	if spec.Quantizer != nil {
		if err := quant.Check(spec.Quantizer, spec.DType, spec.WireType, spec.Op, spec.Count, true); err != nil {
			return nil, errs.New(errs.InvalidArgument, opName, err)
		}
		if spec.WireType == spec.DType {
			op.spec.Quantizer = nil // travels as it is (data spec, section 4.1)
		}
	}
	if onDevice {
		if err := op.openStage(); err != nil {
			return nil, err
		}
	}
	op.setForm()
	return op, nil
}

var errPartly = errors.New("source and destination overlap only in part (use the same buffer, or separate ones)")

// Start is what an operation has to know to begin.
type Start struct {
	// Seq is the sequence number. Those of one engine never repeat and never
	// fall. Without a meaning if Eager.
	Seq uint64
	// Epoch is the one in which neighbours may begin the operation eagerly, not
	// above 2^61; 0: they may not.
	Epoch uint64
	// Eager: the operation begins before its sequence number is known, and
	// Commence follows when it is. No operation with this tag has failed in this
	// epoch, none runs, and all members of the ring are gopccl peers.
	Eager bool
	// Ahead, if it is not 0, is how many bytes of frames an eager operation may send
	// before Commence.
	Ahead int64
	Ring  []wire.UUID
	Self  wire.UUID // this peer, one of Ring
	// Native: all members are gopccl peers. The same on all of them.
	Native bool
	// Done is called exactly once, on another goroutine or later, when the phase
	// ended and no buffer is touched any more; it must return soon.
	Done func(err error)
}

// Start begins the data phase. An operation that was aborted before ends at once.
func (op *Op) Start(s Start) {
	op.id.epoch = named(s.Epoch)
	stream := s.Seq
	if s.Eager {
		stream = eagerBit | op.id.epoch
		op.out.limited, op.out.credit = s.Ahead > 0, s.Ahead
	}
	op.id.stream.Store(stream)
	op.id.start = stream &^ eagerBit
	op.done, op.native, op.began = s.Done, s.Native || s.Eager, time.Now()
	err := op.enterRing(s.Ring, s.Self)
	e := op.e
	e.cfg.Link.Stats.Ops.Add(1)
	e.count(1)
	if heard := e.hub.Tell(opName, func(t *trace.Listener) { t.Started(op.spec.Tag, op.id.start) }); err == nil && heard != nil {
		err = heard
	}
	e.mu.Lock()
	if !s.Eager {
		e.pass(s.Seq)
	}
	op.id.key = opKey{op.spec.Tag, stream}
	switch {
	case e.closed:
		err = errs.New(errs.Closed, opName, errClosed)
	case err == nil && e.ops[op.id.key].runs():
		err = errs.New(errs.Internal, opName, fmt.Errorf("tag %d, sequence %d is running already", op.id.key.tag, op.id.key.seq))
	}
	failed := op.open(err)
	gone, missing, deferred := false, true, false
	var came []*link.Early
	if !failed {
		came, gone = op.register()
		gone = gone || op.in.receiver != nil && op.in.receiver.Closed() && e.hub.Spared(op.in.receiver) == nil
		missing, deferred = op.in.receiver == nil, op.eager.deferred
	}
	e.started.Broadcast()
	e.mu.Unlock()
	if op.dev != nil {
		op.dev.begin()
	}
	switch {
	case failed:
		op.detach()
	case op.n == 1:
	case op.outBroken():
		op.failTo()
	case gone && !op.in.done.Load():
		op.failFrom()
	default:
		if missing {
			op.awaitConnection()
		}
		if !op.out.done.Load() && !deferred {
			op.attach()
		}
	}
	if len(came) > 0 {
		e.replay(op, came)
	}
	op.settle(true)
}

// turnOf says which connections of a pool an operation takes.
func (op *Op) turnOf(pool int) uint64 {
	turn := op.id.stream.Load()
	if op.isEager() {
		turn = op.spec.Tag
	}
	return turn % uint64(pool)
}

// open makes the operation one that runs, over the connections to the next peer,
// and reports whether it has failed, because of err or before. e.mu is held.
func (op *Op) open(err error) (failed bool) {
	e := op.e
	pool := e.hub.InUse(op.next)
	op.mu.Lock()
	defer op.mu.Unlock()
	op.id.number, op.id.unnamed = op.id.start, op.isEager()
	op.state = opRunning
	if op.failErr == nil {
		op.failErr = err
	}
	if op.n > 1 && len(pool) > 0 {
		op.out.sender = pool[op.turnOf(len(pool))]
		waits := op.isEager() && !op.out.sender.Features().Ahead // for its number
		switch flows := e.flowsFor(op, pool); {
		case op.failErr != nil:
		case flows == nil:
			op.eager.deferred = waits && op.out.limited
		default:
			op.out.sender = flows[0]
			if op.eager.deferred = waits; !waits {
				op.stripe(flows)
			}
		}
	}
	if op.n > 1 && op.out.sender == nil && op.failErr == nil {
		op.failErr = op.unlinked(op.next, errors.New(noConnection))
	}
	failed = op.failErr != nil
	op.aborted.Store(failed)
	if op.dev != nil && !failed {
		op.dev.claim()
	}
	return failed
}

// register lets frames find the operation, and returns what came early. gone: one of the
// connections that brought it has ended. e.mu is held.
func (op *Op) register() (came []*link.Early, gone bool) {
	e := op.e
	e.ops[op.id.key] = op
	pool := e.hub.Receivers(op.prev)
	if from, _ := link.Expect(pool); len(from) > 0 {
		pool = from
	}
	if len(pool) > 0 {
		op.in.receiver = pool[op.turnOf(len(pool))]
	}
	return e.listen(op)
}

const noConnection = "there is no connection to the next peer of the ring, or one of them has ended"

func (op *Op) unlinked(peer wire.UUID, why error) error {
	return errs.New(errs.RankConnectionLost, opName, why).WithPhase("start").WithPeer(peer.String())
}

// awaitConnection bounds the wait for the previous peer's first connection.
func (op *Op) awaitConnection() {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.wait = time.AfterFunc(op.e.cfg.ConnectWait, func() {
		op.e.mu.Lock()
		absent := op.in.receiver == nil
		op.e.mu.Unlock()
		if absent {
			op.fail(op.unlinked(op.prev, errors.New("the previous peer of the ring did not connect")))
		}
	})
}

// enterRing computes what depends on the ring; a panic of a quantizer is its error.
func (op *Op) enterRing(ring []wire.UUID, self wire.UUID) (err error) {
	defer errs.Catch(opName, func(p *errs.Error) { err = op.e.hub.Caught(p, self) })
	op.n, op.rank = len(ring), slices.Index(ring, self)
	if op.rank < 0 {
		return errs.New(errs.Internal, opName, fmt.Errorf("peer %v is not in the ring of %d", self, op.n))
	}
	op.next, op.prev = ring[(op.rank+1)%op.n], ring[(op.rank+op.n-1)%op.n]
	if op.n > 1 {
		ring := op.e.ringOf(op.n, op.rank)
		op.sends, op.comes = ring.Out[0].Segments, ring.In[0].Segments
	}
	if op.dev != nil {
		op.dev.plan()
	}
	if op.n == 1 {
		if op.dev == nil {
			copy(op.spec.Dst, op.spec.Src)
		}
		op.in.done.Store(true)
		op.out.done.Store(true)
		return nil
	}
	if op.quantized() {
		if err := op.checkForm(); err != nil {
			return err
		}
		op.out.metas = make([]stepMeta, len(op.sends))
		op.in.metas = make([]heldMeta, len(op.comes))
		op.code.gathered = make([]quant.Gathered, op.n)
	}
	for step := range op.sends {
		_, sent := op.chunk(step, true)
		_, received := op.chunk(step, false)
		op.out.total += int64(op.encoded(sent))
		op.in.total += int64(op.encoded(received))
	}
	_, own := op.chunk(0, true)
	op.out.first = int64(op.encoded(own))
	op.piece = op.whole(min(max(op.encoded(own)/piecesPerChunk&^63, pieceBytes), op.e.cfg.Link.FrameBytes))
	if op.inPlace {
		op.cutUndo(op.piece)
	}
	op.enter(&op.out.at, 0, true)
	op.enter(&op.in.at, 0, false)
	op.out.done.Store(op.out.total == 0)
	op.in.done.Store(op.in.total == 0)
	return nil
}

// ringOf returns the plan of the ring. Operations in the same place share it.
func (e *Engine) ringOf(n, rank int) *plan.Plan {
	p := e.ring.Load()
	if p == nil || p.N != n || p.Rank != rank {
		p = plan.Ring(n, rank)
		e.ring.Store(p)
	}
	return p
}

// Abort ends the data phase with reason. It may be called at any time from any
// goroutine, any number of times, and never blocks; done follows if Start was
// or is called.
func (op *Op) Abort(reason error) {
	if reason == nil {
		reason = errs.New(errs.Canceled, opName, link.ErrStopped)
	}
	op.fail(reason)
}

// maxLater bounds the causes that are kept beside the first.
const maxLater = 4

// fail records the first cause and makes all connections let go of the buffers.
func (op *Op) fail(err error) {
	op.mu.Lock()
	if op.failErr != nil || op.state == opEnded || op.state == opFinished {
		if op.failErr != nil && len(op.later) < maxLater {
			op.later = append(op.later, err)
		}
		op.mu.Unlock()
		return
	}
	op.failErr = err
	op.aborted.Store(true)
	if op.state == opCreated {
		op.mu.Unlock()
		return
	}
	for _, r := range op.in.readers {
		r.Interrupt()
	}
	stop := op.dev != nil && op.dev.stop()
	op.mu.Unlock()
	op.detach()
	if stop {
		op.dev.halt()
	}
	op.settle(true)
}

// settle calls done if the operation is over and nothing touches its buffers.
func (op *Op) settle(async bool) {
	op.mu.Lock()
	over := op.failErr != nil || op.in.done.Load() && op.out.done.Load()
	if op.state != opRunning || !over || len(op.in.readers) > 0 || op.out.refs > 0 || op.dev != nil && (op.dev.busy || op.dev.calls > 0) {
		op.mu.Unlock()
		return
	}
	op.state = opEnded
	err := op.failErr
	if len(op.later) > 0 {
		err = errs.Then(err, op.later...)
	}
	if op.wait != nil {
		op.wait.Stop()
	}
	op.mu.Unlock()
	op.leave()
	if async {
		go func() {
			defer errs.Catch(opName, func(p *errs.Error) { _ = op.e.hub.Caught(p, op.prev) })
			op.end(err)
		}()
	} else {
		op.end(err)
	}
}

func (op *Op) end(err error) {
	e := op.e
	if err != nil {
		e.cfg.Link.Stats.FailedOps.Add(1)
	}
	if heard := e.hub.Tell(opName, func(t *trace.Listener) { t.Ended(op.spec.Tag, op.id.start, err) }); err == nil && heard != nil {
		err = heard
	}
	defer e.count(-1)
	// It is out of the books before anybody hears of its end: the next one with its tag may
	// begin because of that.
	e.mu.Lock()
	e.forget(op, err != nil)
	e.mu.Unlock()
	op.done(err)
}

// count adds d to the active operations. A listener hears of the changes before Close
// returns.
func (e *Engine) count(d int) {
	e.hub.Count(opName, d)
	e.mu.Lock()
	e.active += d
	if e.active == 0 {
		e.started.Broadcast()
	}
	e.mu.Unlock()
}

// Finish releases what the operation holds: call it once, after done or instead
// of Start. With restore an in-place buffer gets back, bit by bit, what it held
// before Start; an out-of-place destination is left as it is.
func (op *Op) Finish(restore bool) {
	if op.finished(restore) && op.dev != nil {
		op.dev.finish(restore)
	}
}

func (op *Op) finished(restore bool) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.state == opRunning || op.state == opFinished {
		return false
	}
	op.state = opFinished
	if restore {
		op.restore()
	}
	backup, encoded := op.undo.backup, op.code.wire
	op.undo.backup, op.code.wire = nil, nil
	op.e.cfg.Link.Pool.Put(backup)
	op.e.cfg.Link.Pool.Put(encoded)
	return true
}

// Counters returns the bytes sent and received as PCCL counts them (data spec,
// section 5, quirk Q43). Call it after done.
func (op *Op) Counters() (tx, rx uint64) {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.out.bytes, op.in.bytes
}

// openerDue reports whether the end of this operation must be announced by an
// opener frame, and notes that it is. op.mu is held.
func (op *Op) openerDue() bool {
	if op.failErr == nil || op.state == opCreated || op.out.opened || op.out.begun || op.out.refs > 0 || op.spec.Count == 0 || op.out.sender.Features().Native {
		return false
	}
	op.out.opened = true
	return true
}
