package reduce

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/link"
)

// An all-reduce of device memory runs in host memory that the device's platform
// stages for it (device.Staging): Spec.Src and Spec.Dst are that memory, from when
// the first of the source has arrived: until then the platform may have none. The
// source arrives chunk by chunk in the order in which the ring needs it, first
// the own chunk and that of step 0, a piece of each in turns, then those that are
// reduced in steps 1 to n-2. Two things wait
// for it: what is sent in step 0, and the kernel that reads the local
// contribution. So a reader may wait for this machine's own device, never for
// another peer; the abort of its operation wakes it. Whatever is final goes to
// the device while the all-gather goes on. Nothing is written there before, and
// what was written in place is put back from the staged source.
type staged struct {
	op    *Op
	stage device.Staging
	size  int64 // bytes of the operation
	// reduces: the platform combines with what was received. Its own memory has
	// the local contribution, so that only what is sent first has to arrive, and
	// in place all as what is put back.
	reduces bool
	// described: the platform has the parameters of the own chunk when its first
	// bytes arrive, so that they can be encoded and sent.
	described bool
	encoded   []byte // the own chunk in wire form, if the platform encodes it
	// decodes: the platform decodes what is final, and takes it in wire form.
	decodes bool
	total   int64 // bytes that arrive
	// Where the chunk that step reduces into begins in the order of arrival, but
	// for that of step 0, which turns says. Set by Start.
	starts  []int64
	order   []device.Range
	turns   turns
	arrived atomic.Int64
	more    *sync.Cond // on Op.mu: more arrived, or the operation was aborted
	// Guarded by Op.mu.
	busy    bool // the platform may touch the memory, or is about to
	begun   bool // Begin was called
	ready   bool // Begin has returned
	stopped bool // Stop was, or is being, called
	calls   int  // of Begin and Stop that have not returned
}

// checkDevice checks what is said about device memory, without asking for it.
func (s *Spec) checkDevice(size int) error {
	a, b := s.DeviceSrc, s.DeviceDst
	n := uint64(max(a.Bytes, 0))
	switch {
	case a.None() || b.None() || len(s.Src)+len(s.Dst) > 0:
		return fmt.Errorf("source and destination are not both on a device")
	case a.Platform != b.Platform:
		return fmt.Errorf("the source lies on %q, the destination on %q", a.Platform, b.Platform)
	case a.Bytes/size != s.Count || a.Bytes%size != 0:
		return fmt.Errorf("source has %d bytes, %d elements of %v need %d", a.Bytes, s.Count, s.DType, s.Count*size)
	case a.Bytes != b.Bytes:
		return fmt.Errorf("destination has %d bytes, source %d", b.Bytes, a.Bytes)
	case a.Ptr != b.Ptr && a.Ptr < b.Ptr+n && b.Ptr < a.Ptr+n:
		return errPartly
	}
	return nil
}

// openStage makes the operation's memory on the host.
func (op *Op) openStage() error {
	s := &op.spec
	if s.Count == 0 {
		return nil
	}
	p, err := device.Lookup(s.DeviceSrc.Platform)
	if err != nil {
		return err
	}
	stage, err := p.Stage(device.Task{
		Source: s.DeviceSrc, Target: s.DeviceDst, DType: s.DType, Op: s.Op, Quantizer: s.Quantizer, Wire: s.WireType,
	})
	if err != nil {
		return err
	}
	op.dev = &staged{op: op, stage: stage, size: int64(s.DeviceSrc.Bytes), more: sync.NewCond(&op.mu)}
	return nil
}

// turnBytes is how much of the own chunk and of that of step 0 comes at a time: the
// size of a copy.
const turnBytes = 1 << 20

// turns is the order in which the own chunk and that of step 0 arrive. The network
// takes no more of the own chunk in a time than it brings for step 0, so that
// readers would wait for nothing else while the own chunk came as a whole.
type turns struct {
	own   int64 // bytes of the own chunk
	piece int64 // bytes of a turn
	pairs int64 // full pieces of both; the rest of the own chunk follows, then that of the other
}

// ownAt returns the bytes of the own chunk among the first n that arrive.
func (t *turns) ownAt(n int64) int64 {
	if both := 2 * t.piece * t.pairs; n >= both {
		return min(n-both/2, t.own)
	}
	pair := 2 * t.piece
	return n/pair*t.piece + min(n%pair, t.piece)
}

// until returns how many bytes arrive until the first n of step 0's chunk have.
func (t *turns) until(n int64) int64 {
	if n <= 0 || n > t.pairs*t.piece {
		return t.own + n
	}
	return ((n-1)/t.piece+1)*t.piece + n
}

// plan puts the copies in their order; the ring is known.
func (d *staged) plan() {
	op := d.op
	d.reduces = d.stage.Reduces() && !op.quantized()
	inPlace := op.spec.DeviceSrc.Ptr == op.spec.DeviceDst.Ptr
	defer func() {
		for _, r := range d.order {
			d.total += int64(r.To - r.From)
		}
	}()
	if op.n == 1 {
		if !inPlace {
			d.add(d.rangeOf(0, op.spec.Count))
		}
		return
	}
	first, count := op.chunk(0, true)
	if count == 0 {
		d.reduces = false // there is no first range to wait for
	}
	own := d.rangeOf(first, count)
	d.turns.own = int64(own.To - own.From)
	d.described = op.quantized() && count > 0 && d.stage.Describe(own.From, own.To)
	d.decodes = op.quantized() && d.stage.Decodes()
	at := d.turns.own
	for step, s := range op.comes {
		if !s.Do.Reduces() {
			break
		}
		d.starts = append(d.starts, at)
		first, count = op.chunk(step, false)
		r := d.rangeOf(first, count)
		all := inPlace || !d.reduces
		switch {
		case step > 0:
		case all && (!op.quantized() || d.described) && (!op.isEager() || op.out.limited): // others that are eager are small
			d.takeTurns(&own, &r)
			fallthrough
		default:
			d.add(own)
		}
		if all {
			d.add(r)
		}
		at += int64(count * op.elem)
	}
}

// takeTurns orders the full pieces of both ranges, and leaves the rests.
func (d *staged) takeTurns(own, other *device.Range) {
	piece := d.op.e.cfg.turnBytes
	d.turns.piece = int64(piece)
	for min(own.To-own.From, other.To-other.From) >= piece {
		for _, r := range []*device.Range{own, other} {
			d.add(device.Range{From: r.From, To: r.From + piece})
			r.From += piece
		}
		d.turns.pairs++
	}
}

func (d *staged) rangeOf(first, count int) device.Range {
	return device.Range{From: first * d.op.elem, To: (first + count) * d.op.elem}
}

func (d *staged) add(r device.Range) {
	if r.From < r.To {
		d.order = append(d.order, r)
	}
}

// claim says that begin follows: nothing may be released before. op.mu is held.
func (d *staged) claim() { d.busy = len(d.order) > 0 }

// begin starts the copies, unless the operation has failed since claim. No lock
// is held while the platform is called, and nothing is released before it has
// returned; Stop comes behind Begin, whatever ended the operation.
func (d *staged) begin() {
	op := d.op
	op.mu.Lock()
	if !d.busy {
		op.mu.Unlock()
		return
	}
	if op.failErr != nil {
		d.busy = false
		op.mu.Unlock()
		return // start settles
	}
	d.begun = true
	d.calls++
	op.mu.Unlock()
	whole := d.call(func() { d.stage.Begin(d.order, d) })
	op.mu.Lock()
	if d.ready = whole; !whole {
		d.busy, d.begun = false, false // it has begun nothing
	}
	stop := d.stop()
	op.mu.Unlock()
	if stop {
		d.halt()
	}
}

// call calls the platform, which calls counts; a panic fails the operation.
func (d *staged) call(f func()) (whole bool) {
	op := d.op
	defer func() {
		op.mu.Lock()
		d.calls--
		op.mu.Unlock()
	}()
	defer errs.Catch(opName, func(err *errs.Error) { op.fail(op.e.hub.Caught(err, op.next)) })
	f()
	return true
}

// Arrived wakes the senders and readers that can use more of the source.
func (d *staged) Arrived(n int) {
	op := d.op
	if op.n == 1 {
		if int64(n) == d.size {
			d.stage.Put(0, n)
		}
		return
	}
	var src, dst, encoded []byte
	first := d.arrived.Load() == 0
	if first {
		src, dst = d.stage.Memory()
		if d.described {
			encoded = d.stage.Encoded()
		}
	}
	op.mu.Lock()
	if first {
		op.spec.Src, op.spec.Dst, d.encoded = src, dst, encoded
	}
	before := d.turns.ownAt(d.arrived.Load())
	d.arrived.Store(int64(n))
	d.more.Broadcast()
	more := 0
	striped := op.out.striped.Load() != nil
	if striped && before < d.turns.own {
		ready := op.sendable()
		if op.in.striped != nil {
			ready = min(ready, op.out.first) // the others are ready when they are processed
		}
		more = op.readyUpTo(ready)
	}
	op.mu.Unlock()
	switch {
	case before >= d.turns.own:
	case striped:
		op.out.flows.Wake(more)
	default:
		op.out.sender.Kick(true, true)
	}
}

// Ended lets the operation end, or ends it because of err.
func (d *staged) Ended(err error) {
	op := d.op
	op.mu.Lock()
	d.busy = false
	op.mu.Unlock()
	if err != nil {
		op.fail(errs.New(errs.CodeOf(err), opName, err).WithPhase("data phase"))
	}
	op.settle(true)
}

// comesEncoded reports whether what is sent in step is encoded by the device.
func (op *Op) comesEncoded(step int) bool {
	return op.dev != nil && op.dev.encoded != nil && op.source(step)
}

// sendable returns the end of what may be sent, in wire bytes of all steps.
func (op *Op) sendable() int64 {
	if d := op.dev; d != nil {
		if n := d.turns.ownAt(d.arrived.Load()); n < d.turns.own {
			switch whole := int(n) / op.elem; {
			case !op.quantized():
				return int64(whole * op.elem)
			case d.described:
				return int64(whole / op.group * op.unit)
			}
			return 0 // its parameters are those of the whole chunk
		}
	}
	return op.out.first + op.in.pos.Load()
}

// await waits until the local contribution to the first elements of the chunk
// of step is on the host. After the reduce-scatter the whole source is: memory
// is written that it may still go to.
func (d *staged) await(step, elements int) error {
	need := d.size
	switch n := int64(elements * d.op.elem); {
	case step < len(d.starts) && d.total < d.size:
		need = 1 // the platform's own memory has what is combined, and may be read
	case step == 0:
		need = d.turns.until(n)
	case step < len(d.starts):
		need = d.starts[step] + n
	}
	need = min(need, d.total)
	if d.arrived.Load() >= need {
		return nil
	}
	d.op.mu.Lock()
	defer d.op.mu.Unlock()
	for d.arrived.Load() < need {
		if d.op.failErr != nil {
			return link.ErrStopped
		}
		d.more.Wait()
	}
	return nil
}

// stop wakes who waits for more of an operation that failed, and reports whether
// the copies are to be ended by halt, for which it claims the stage. op.mu is held.
func (d *staged) stop() bool {
	if d.op.failErr == nil {
		return false
	}
	d.more.Broadcast()
	if !d.ready || !d.busy || d.stopped {
		return false
	}
	d.stopped = true
	d.calls++
	return true
}

// halt ends the copies.
func (d *staged) halt() {
	d.call(d.stage.Stop)
	d.op.settle(true)
}

// finish gives the staged memory back, after it was put back if the operation
// was in place and is to be undone.
func (d *staged) finish(restore bool) {
	if restore && d.begun {
		if err := d.stage.Restore(); err != nil {
			d.op.e.cfg.Link.Logger.Error("a device tensor of a failed all-reduce could not be restored",
				"tag", d.op.spec.Tag, "buffer", d.op.spec.DeviceDst.String(), "error", err)
		}
	}
	d.stage.Release()
}

// combine makes the bytes from..to of the destination the local contribution
// op in, divided by the size of the ring if divide says so.
func (op *Op) combine(from, to int, in []byte, divide bool) error {
	s := &op.spec
	if d := op.dev; d != nil && d.reduces {
		world := 0
		if divide {
			world = op.n
		}
		if err := d.stage.Reduce(from, to, in, world); err != nil {
			op.fail(errs.New(errs.CodeOf(err), opName, err).WithPhase("data phase"))
			return link.ErrStopped // the connection is not to blame
		}
		return nil
	}
	dst := s.Dst[from:to]
	op.e.cfg.Backend.Reduce(s.DType, s.Op, dst, s.Src[from:to], in)
	if divide {
		op.e.cfg.Backend.Finalize(s.DType, dst, op.n)
	}
	return nil
}

// final hands bytes of the destination that will not change any more to the device.
func (op *Op) final(from, to int) {
	if op.dev != nil && from < to {
		op.dev.stage.Put(from, to)
	}
}

// decodesResults reports whether the device decodes what is final.
func (op *Op) decodesResults() bool { return op.dev != nil && op.dev.decodes }

// finalEncoded is final for bytes that the device has to decode: q under m.
func (op *Op) finalEncoded(from, to int, q []byte, m *quant.Meta) {
	world := 0
	if op.spec.Op == dtype.Avg {
		world = op.n
	}
	op.dev.stage.PutEncoded(from, to, q, m, world)
}

// divided reports whether the bytes that step brings need no division any more
// when they were reduced or read.
func (op *Op) divided() bool { return op.spec.Op != dtype.Avg || !op.dividesLate() }

// waitsFor says what the device has to do. op.mu is held.
func (d *staged) waitsFor() string {
	if n := d.arrived.Load(); n < d.total {
		return fmt.Sprintf("device: %d of %d bytes of the source have come", n, d.total)
	}
	return "device: takes the result"
}
