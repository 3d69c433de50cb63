package collective

import (
	"fmt"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plan"
)

// Data on a device moves through host memory that the device's platform stages for it
// (device.Staging). All of the source is copied there before any of it is sent or
// combined, and the result goes to the device when all of it is there: before this member
// says that it is through, so that a device that fails fails the operation for all.
// Nothing is written there before, and what was written is put back if the operation
// fails for another reason.
//
// The operation is known from its start. Frames for it wait until its source has come, as
// they do for one that has not started.
type staged struct {
	op    *Operation
	stage device.Staging
	lent  bool // the caller's, who restores and releases it
	// Set by Start: whether this member reads all of the source and writes all of the
	// target, or none.
	reads, writes bool

	// Guarded by Operation.mu.
	busy    bool // the platform may touch the memory, or is about to
	begun   bool // Begin was called
	ready   bool // Begin has returned
	entered bool // the source has come
	moved   bool // data was let go then
	given   bool // the result was put
	stopped bool // Stop was, or is being, called
	calls   int  // of Begin, Put and Stop, and of move, that have not returned
}

// checkDevice checks what is said about memory on devices, without asking for it.
func (s *Spec) checkDevice() error {
	a, b := s.DeviceSrc, s.DeviceDst
	switch {
	case a.None() && b.None():
	case !a.None() && len(s.Src) > 0, !b.None() && len(s.Dst) > 0:
		return s.invalid("buffers of host and device are both given")
	case a.None() && len(s.Src) > 0, b.None() && len(s.Dst) > 0:
		return s.invalid("source (%s) and destination (%s) are not both on a device", on(a), on(b))
	case !a.None() && !b.None() && a.Platform != b.Platform:
		return s.invalid("the source lies on %q, the destination on %q", a.Platform, b.Platform)
	case a.Bytes < 0 || b.Bytes < 0:
		return s.invalid("%d and %d bytes", a.Bytes, b.Bytes)
	}
	return nil
}

func on(b device.Buffer) string {
	if b.None() {
		return "host"
	}
	return b.Platform
}

// Trim drops what member me does not use of buffers on a device, so that nothing is
// copied for it.
func (s *Spec) Trim(me int) {
	if s.DeviceSrc.None() && s.DeviceDst.None() {
		return
	}
	root := s.Root == me
	src := s.Kind == plan.Broadcast && !root || s.Kind == plan.Scatter && !root
	dst := s.Kind == plan.Broadcast && root && s.DeviceDst.Ptr == s.DeviceSrc.Ptr || (s.Kind == plan.Reduce || s.Kind == plan.Gather) && !root
	if src {
		s.Src, s.DeviceSrc = nil, device.Buffer{}
	}
	if dst {
		s.Dst, s.DeviceDst = nil, device.Buffer{}
	}
}

// openStage makes the operation's memory on the host, if its data lies on a device.
func (op *Operation) openStage() error {
	s := &op.spec
	task := device.Task{DType: s.DType, Op: s.Op, Call: op.name, Preserve: s.Preserve}
	if s.DeviceSrc.Bytes > 0 {
		task.Source = s.DeviceSrc
	}
	if s.DeviceDst.Bytes > 0 {
		task.Target = s.DeviceDst
	}
	if task.Source.None() && task.Target.None() {
		return nil
	}
	d := &staged{op: op, stage: s.Stage, lent: s.Stage != nil}
	if !d.lent {
		name := task.Source.Platform
		if name == "" {
			name = task.Target.Platform
		}
		p, err := device.Lookup(name)
		if err != nil {
			return err
		}
		if d.stage, err = p.Stage(task); err != nil {
			return err
		}
	}
	op.dev = d
	return nil
}

// plan notes what this member does with its buffers; the group is known.
func (d *staged) plan() {
	if d == nil {
		return
	}
	for _, c := range d.op.chunks {
		d.reads = d.reads || c.size > 0 && c.src != none
		d.writes = d.writes || c.size > 0 && c.dst != none
	}
}

// begin starts the copies, unless the operation has failed. No lock is held while the
// platform is called, and nothing is released before it has returned; Stop comes behind
// Begin, whatever ended the operation.
func (d *staged) begin() {
	op := d.op
	op.mu.Lock()
	if op.failErr != nil {
		d.busy = false
		op.mu.Unlock()
		return // Start settles
	}
	d.begun = true
	d.calls++
	op.mu.Unlock()
	var all []device.Range
	if d.reads {
		all = []device.Range{{From: 0, To: op.spec.src().size}}
	}
	whole := d.call(func() { d.stage.Begin(all, d) })
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
	defer errs.Catch(op.name, func(err *errs.Error) { op.fail(op.e.hub.Caught(err, op.members[op.me])) })
	f()
	return true
}

// Arrived lets the operation move its data when all of the source is there.
func (d *staged) Arrived(n int) {
	op := d.op
	op.mu.Lock()
	enter := (!d.reads || n == op.spec.src().size) && !d.entered && op.failErr == nil
	if enter {
		d.entered = true
		d.calls++
	}
	op.mu.Unlock()
	if enter {
		go func() {
			d.call(d.enter)
			op.settle(false)
		}()
	}
}

// enter lets frames in and out.
func (d *staged) enter() {
	op, e := d.op, d.op.e
	src, dst := d.stage.Memory()
	op.keepSource(src)
	e.mu.Lock()
	op.mem.src, op.mem.dst = src, dst
	op.mu.Lock()
	failed := op.failErr != nil
	op.copying = !failed && op.copies()
	op.mu.Unlock()
	if !failed {
		op.id.absent = false
		e.listen(op)
	}
	deferred := op.id.deferred
	e.started.Broadcast()
	e.mu.Unlock()
	if failed {
		return
	}
	op.move(deferred)
	op.mu.Lock()
	d.moved = true
	op.mu.Unlock()
}

// settled reports whether the copies have ended, and all calls of the platform. op.mu is
// held, the operation has all its data or has failed.
func (d *staged) settled() bool {
	return d.calls == 0 && !d.busy && (d.given || d.op.failErr != nil)
}

// give has the result copied to the device, once. An operation that has failed has none.
func (d *staged) give() {
	op := d.op
	op.mu.Lock()
	if !d.moved || d.given || op.failErr != nil {
		op.mu.Unlock()
		return
	}
	d.given = true
	stop := d.stop()
	if d.writes {
		d.calls++
	}
	op.mu.Unlock()
	if d.writes {
		d.call(func() { d.stage.Put(0, op.spec.dst().size) })
	}
	if stop {
		d.call(d.stage.Stop)
	}
	op.settle(true)
}

// Ended lets the operation end, or ends it because of err.
func (d *staged) Ended(err error) {
	op := d.op
	op.mu.Lock()
	d.busy = false
	op.mu.Unlock()
	if err != nil {
		op.fail(errs.New(errs.CodeOf(err), op.name, err).WithPhase("data phase"))
	}
	op.settle(true)
}

// stop reports whether the copies are to be ended by halt, for which it claims the stage:
// those of an operation that failed, and those of one with a target that it does not
// write. op.mu is held.
func (d *staged) stop() bool {
	if d.op.failErr == nil && (!d.given || d.writes) || !d.ready || !d.busy || d.stopped {
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

// finish gives the memory on the host back, after what was overwritten on the device
// was put back if the operation is to be undone.
func (d *staged) finish(restore bool) {
	if d.lent {
		return
	}
	if restore && d.begun {
		if err := d.stage.Restore(); err != nil {
			d.op.e.link.Logger.Error("device memory of a failed collective could not be restored",
				"collective", d.op.name, "tag", d.op.spec.Tag, "buffer", d.op.spec.DeviceDst.String(), "error", err)
		}
	}
	d.stage.Release()
}

// waitsFor says what the device has to do. op.mu is held.
func (d *staged) waitsFor() string {
	if !d.entered {
		return fmt.Sprintf("device: %d bytes of the source have not come", d.op.spec.src().size)
	}
	if d.given {
		return "device: takes the result"
	}
	return "device: is ready for the result"
}
