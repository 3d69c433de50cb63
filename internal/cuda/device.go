package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/kernels"
)

// dev is one device: its primary context, and what is kept for later use.
type dev struct {
	p       *Platform
	ordinal int
	ctx     driver.Context
	lost    atomic.Pointer[lostError] // it failed for good

	loading sync.Mutex
	sets    map[string]*kernels.Set // by file
	asked   map[string]bool         // files that were to be compiled on a goroutine

	mu      sync.Mutex
	streams []driver.Stream
	events  []driver.Event
	scratch []driver.Ptr // of scratchBytes each
	benches []*workbench

	compiling sync.Once
	trial     sync.Once
	faster    atomic.Bool // than the host, as the trial found
}

// lostError is why a device can be used no more in this process.
type lostError struct{ cause *driver.Error }

func (l *lostError) Error() string {
	return fmt.Sprintf("device %d has failed permanently: %v", l.cause.Device, l.cause)
}

func (l *lostError) Unwrap() error { return l.cause }

// gone returns why the device is lost, nil if it is not.
func (d *dev) gone() error {
	if l := d.lost.Load(); l != nil {
		return l
	}
	return nil
}

func (d *dev) works() bool { return d.gone() == nil }

// note marks the device lost if err says so.
func (d *dev) note(err error) {
	var e *driver.Error
	if !errors.As(err, &e) || !e.Result.Sticky() {
		return
	}
	cause := *e
	cause.Device = d.ordinal
	if d.lost.CompareAndSwap(nil, &lostError{&cause}) {
		d.p.log.Load().Error("a device has failed permanently: its tensors can no longer be reduced or synchronised, those of the host can",
			"device", d.ordinal, "error", err)
	}
}

// do calls f on a locked thread with the device's context current and captures
// left alone, and leaves the thread's own context and mode as they were.
func (d *dev) do(f func() error) (err error) {
	if err := d.gone(); err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.p.driver.Push(d.ctx); err != nil {
		d.note(err)
		return err
	}
	defer func() {
		if _, perr := d.p.driver.Pop(); perr != nil && err == nil {
			err = perr
		}
		d.note(err)
	}()
	return relaxed(d.p.driver, f)
}

// relaxed calls f on this thread, which is locked, in the relaxed mode. While a
// trainer captures a graph, in any thread of the process, most calls of the
// driver would otherwise fail, and the capture with them.
func relaxed(d driver.Driver, f func() error) (err error) {
	before, err := d.ExchangeCaptureMode(driver.CaptureRelaxed)
	switch {
	case is(err, driver.InvalidContext): // a thread without any context
		return f()
	case err != nil:
		return err
	}
	defer func() {
		if _, merr := d.ExchangeCaptureMode(before); merr != nil && err == nil {
			err = merr
		}
	}()
	return f()
}

// bare is relaxed for calls that need no context.
func bare(d driver.Driver, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return relaxed(d, f)
}

// kernels returns the kernels of a file, compiled for the device at the first
// call. The device's context is current.
func (d *dev) kernels(file string) (*kernels.Set, error) {
	d.loading.Lock()
	defer d.loading.Unlock()
	if set := d.sets[file]; set != nil {
		return set, nil
	}
	set, err := kernels.Load(d.p.driver, d.ordinal, file)
	if err == nil {
		d.sets[file] = set
	}
	return set, err
}

// Streams and events are kept, because making them is slow. The device's
// context is current.

// kept takes one of what the device keeps in list; false: there is none.
func kept[T any](d *dev, list *[]T) (v T, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(*list)
	if n == 0 {
		return v, false
	}
	v, *list = (*list)[n-1], (*list)[:n-1]
	return v, true
}

func (d *dev) stream() (driver.Stream, error) {
	if s, ok := kept(d, &d.streams); ok {
		return s, nil
	}
	return d.p.driver.StreamCreate()
}

func (d *dev) event() (driver.Event, error) {
	if e, ok := kept(d, &d.events); ok {
		return e, nil
	}
	return d.p.driver.EventCreate(false)
}

func (d *dev) keep(streams []driver.Stream, events []driver.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range streams {
		if s != 0 {
			d.streams = append(d.streams, s)
		}
	}
	for _, e := range events {
		if e != 0 {
			d.events = append(d.events, e)
		}
	}
}

// workspace returns scratchBytes on the device; keepWorkspace takes it back.
func (d *dev) workspace() (driver.Ptr, error) {
	if s, ok := kept(d, &d.scratch); ok {
		return s, nil
	}
	return d.p.driver.Alloc(scratchBytes)
}

func (d *dev) keepWorkspace(p driver.Ptr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.scratch = append(d.scratch, p)
}

// usable refuses a stream that work of ours cannot be ordered behind. The
// device's context is current.
func (d *dev) usable(stream uint64) error {
	capturing, err := d.p.driver.StreamCapturing(driver.Stream(stream))
	what := "a CUDA graph is being captured on the buffer's stream"
	if is(err, driver.CaptureImplicit) { // the legacy default stream, which would be drawn into it
		capturing, what = true, "a CUDA graph is being captured on a stream that the default stream waits for"
	}
	if capturing {
		return errs.New(errs.InvalidArgument, "look at the stream", errors.New(what)).
			WithHint("call this before the capture begins or after it has ended: a graph cannot contain it")
	}
	return d.ofStream(err)
}

// ofStream makes the driver's word for a stream that is not one of the
// device's an error of the caller.
func (d *dev) ofStream(err error) error {
	if is(err, driver.InvalidHandle) {
		err = errs.New(errs.InvalidArgument, "look at the stream", fmt.Errorf("the stream is not one of device %d, or was destroyed: %w", d.ordinal, err)).
			WithHint("pass the stream of the tensor's own device that its content is computed on")
	}
	return err
}

// is reports whether err is a driver's with that result.
func is(err error, r driver.Result) bool {
	return errors.Is(err, &driver.Error{Result: r})
}

// mark notes how far the caller's stream is. The device's context is current.
func (d *dev) mark(stream uint64) (driver.Event, error) {
	if err := d.usable(stream); err != nil {
		return 0, err
	}
	e, err := d.event()
	if err != nil {
		return 0, err
	}
	if err := d.p.driver.EventRecord(e, driver.Stream(stream)); err != nil {
		d.keep(nil, []driver.Event{e})
		return 0, d.ofStream(err)
	}
	return e, nil
}

// maxNap bounds how late the end of the caller's work is noticed.
const maxNap = 200 * time.Microsecond

// passed waits until the caller's stream has come to the mark, or stop is
// closed. Nothing is queued behind the mark, so that an operation can end
// while the caller's stream is busy for long.
func (d *dev) passed(mark driver.Event, stop <-chan struct{}) (bool, error) {
	nap := 5 * time.Microsecond
	for {
		var done bool
		err := d.do(func() (err error) {
			done, err = d.p.driver.EventDone(mark)
			return err
		})
		if err != nil || done {
			return done, err
		}
		t := time.NewTimer(nap)
		select {
		case <-stop:
			t.Stop()
			return false, nil
		case <-t.C:
		}
		nap = min(nap*5/4+time.Microsecond, maxNap)
	}
}

// behind waits until the caller's stream has come to where it is now, or ctx
// ends. What is queued afterwards waits for nothing but work of our own.
func (d *dev) behind(ctx context.Context, op string, stream uint64) error {
	var m driver.Event
	err := d.do(func() (err error) {
		m, err = d.mark(stream)
		return err
	})
	if err != nil {
		return err
	}
	defer d.keep(nil, []driver.Event{m})
	ok, err := d.passed(m, ctx.Done())
	if err == nil && !ok {
		err = errs.New(errs.Canceled, op, fmt.Errorf("the work that was queued on the buffer's stream before is not done: %w", context.Cause(ctx)))
	}
	return err
}

// await waits until a stream of ours is done. It waits for an event, because
// the driver spins while it waits for a stream. The device's context is current.
func (d *dev) await(s driver.Stream) error {
	e, err := d.event()
	if err == nil {
		err = d.p.driver.EventRecord(e, s)
		if err == nil {
			err = d.p.driver.EventSynchronize(e)
		}
		d.keep(nil, []driver.Event{e})
	}
	if err == nil {
		return nil
	}
	return errors.Join(err, d.p.driver.StreamSynchronize(s))
}

// empty frees what is kept. A lost device has lost it already.
func (d *dev) empty() error {
	if d.gone() != nil {
		return nil
	}
	drv := d.p.driver
	var all []error
	err := d.do(func() error {
		for _, w := range d.benches {
			all = append(all, d.dismantle(w))
		}
		for _, s := range d.streams {
			all = append(all, drv.StreamDestroy(s))
		}
		for _, e := range d.events {
			all = append(all, drv.EventDestroy(e))
		}
		for _, p := range d.scratch {
			all = append(all, drv.Free(p))
		}
		for _, set := range d.sets {
			all = append(all, set.Unload())
		}
		return errors.Join(all...)
	})
	return err
}

// close gives the context back.
func (d *dev) close() error {
	err := bare(d.p.driver, func() error { return d.p.driver.Release(d.ordinal) })
	if err != nil && d.gone() == nil {
		return err
	}
	return nil
}
