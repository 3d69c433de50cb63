package ptxtest

import (
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// stream is work in order. Work of different streams is ordered by events alone.
type stream struct {
	handle driver.Stream
	ctx    *context
	queue  []work
	// number and clock say what of other streams' work is done before the next
	// one of this.
	number  int
	clock   clock
	capture *capture // what it is part of, nil: its work is done
}

// work is one of: something to do, a record to make, a record to wait for.
type work struct {
	do   func(*work) *fault
	mark *record
	wait *record
	// what it is, the how manieth of its stream, and what comes before it
	what   string
	stream int
	n      uint64
	clock  clock
}

// record is one call of EventRecord.
type record struct {
	on   *stream
	done bool
	at   time.Duration // that was worked until then
	// clock is what is done when it is.
	clock   clock
	capture *capture // that it is a part of, nil: it is a time of the stream
}

type event struct {
	handle driver.Event
	ctx    *context
	timing bool
	last   *record
}

// drop ends what is queued without doing it.
func (s *stream) drop() {
	for _, w := range s.queue {
		if w.mark != nil {
			w.mark.done = true
		}
	}
	s.queue = nil
}

func (d *Device) queue(s *stream, w work) {
	if s.capture != nil { // becomes a part of the graph
		if w.mark != nil {
			w.mark.capture = s.capture
		}
		return
	}
	if len(s.queue) == 0 && !slices.Contains(d.order, s) {
		d.order = append(d.order, s)
	}
	d.counts[s.number]++
	w.stream, w.n = s.number, d.counts[s.number]
	s.clock = s.clock.join(d.known).with(w.stream, w.n)
	w.clock = s.clock
	if w.mark != nil {
		w.mark.clock = s.clock
	}
	s.queue = append(s.queue, w)
	if d.opts.Eager {
		d.finish(s, func() bool { return len(s.queue) == 0 })
	}
}

// blocked returns the record that the first work of s waits for.
func (s *stream) blocked() *record {
	if len(s.queue) > 0 && s.queue[0].wait != nil && !s.queue[0].wait.done {
		return s.queue[0].wait
	}
	return nil
}

// ready returns a stream whose first work has to be done before that of s can
// be, nil if somebody holds it.
func (d *Device) ready(s *stream) *stream {
	for s != nil && s.blocked() != nil {
		s = s.blocked().on
	}
	return s
}

// Hold makes a stream stand still behind what is queued on it, as a kernel
// does that waits for another peer, until the function that it returns is
// called. A call that waits for the stream in the driver panics meanwhile,
// since nothing could end it.
func (d *Device) Hold(h driver.Stream) (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &record{}
	d.queue(d.streams[h], work{wait: r})
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		r.done = true
	}
}

// step does the first work of s, which is not blocked.
func (d *Device) step(s *stream) {
	w := s.queue[0]
	s.queue = s.queue[1:]
	switch {
	case w.mark != nil:
		w.mark.done, w.mark.at = true, d.busy
	case w.do != nil:
		began := time.Now()
		f := w.do(&w)
		d.busy += time.Since(began)
		if f == nil {
			f = d.injected()
		}
		if f != nil {
			d.lose(s.ctx.device, &loss{f.result, f.detail})
		}
	}
	if len(s.queue) == 0 {
		d.order = slices.DeleteFunc(d.order, func(o *stream) bool { return o == s })
	}
}

// injected counts work, and returns the fault that was asked for.
func (d *Device) injected() *fault {
	for i := range d.faults {
		if d.faults[i].nth--; d.faults[i].nth == 0 {
			r := d.faults[i].result
			d.faults = slices.Delete(d.faults, i, i+1)
			return &fault{r, "injected"}
		}
	}
	return nil
}

// finish works until done. Half of the time what is needed is done, half of
// the time anything.
func (d *Device) finish(s *stream, done func() bool) {
	for !done() {
		next := s
		if len(d.order) > 0 && !d.opts.Eager && d.dice(2) == 0 {
			next = d.order[d.dice(len(d.order))]
		}
		if next = d.ready(next); next == nil {
			if next = d.ready(s); next == nil {
				panic("ptxtest: a call waits for a stream that is held")
			}
		}
		switch {
		case len(next.queue) > 0:
			d.step(next)
		case next == s: // it was dropped
			return
		}
	}
}

// drain does all work of the streams that match, and what it waits for.
func (d *Device) drain(match func(s *stream) bool) {
	for {
		i := slices.IndexFunc(d.order, match)
		if i < 0 {
			return
		}
		s := d.order[i]
		if len(s.queue) == 0 {
			d.order = slices.Delete(d.order, i, i+1)
			continue
		}
		d.finish(s, func() bool { return len(s.queue) == 0 })
		d.known = d.known.join(s.clock)
	}
}

// stream finds a stream of the current context.
func (d *Device) stream(call string, c *context, h driver.Stream) (*stream, error) {
	if h == 0 {
		return c.stream, nil
	}
	s := d.streams[h]
	if s == nil || s.ctx != c {
		return nil, failed(call, c.device, driver.InvalidHandle, "stream %#x is not one of the current context", uintptr(h))
	}
	return s, nil
}

// on is with for calls that concern a stream.
func (d *Device) on(call string, h driver.Stream) (*context, *stream, error) {
	c, err := d.with(call)
	if err != nil {
		return nil, nil, err
	}
	s, err := d.stream(call, c, h)
	return c, s, err
}

// newStream makes a stream with a number. Numbers of streams that are gone are
// used again: to be ordered after their work is to know a little too much, but
// the clocks of a long run stay small.
func (d *Device) newStream(c *context) *stream {
	s := &stream{ctx: c}
	if n := len(d.unused); n > 0 {
		s.number = d.unused[n-1]
		d.unused = d.unused[:n-1]
	} else {
		s.number = len(d.counts)
		d.counts = append(d.counts, 0)
	}
	return s
}

// StreamCreate makes a stream.
func (d *Device) StreamCreate() (driver.Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := d.with("cuStreamCreate")
	if err != nil {
		return 0, err
	}
	s := d.newStream(c)
	s.handle = driver.Stream(d.newHandle())
	d.streams[s.handle] = s
	return s.handle, nil
}

// StreamDestroy forgets a stream; what is queued is done nevertheless.
func (d *Device) StreamDestroy(h driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuStreamDestroy_v2"
	c, err := d.with(call)
	s := d.streams[h]
	if err == nil && (s == nil || s.ctx != c) {
		return failed(call, c.device, driver.InvalidHandle, "stream %#x", uintptr(h))
	}
	if s != nil && (err == nil || driver.Result.Sticky(resultOf(err))) {
		delete(d.streams, h)
		d.unused = append(d.unused, s.number)
	}
	return err
}

// StreamSynchronize waits for all work of a stream, also if it was asked to fail.
func (d *Device) StreamSynchronize(h driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuStreamSynchronize"
	c, s, err := d.on(call, h)
	if s == nil && err != nil {
		if s = d.streams[h]; s == nil || resultOf(err).Sticky() {
			return err
		}
	}
	if s.capture != nil {
		return s.capture.spoil(call, s.ctx.device, driver.CaptureUnsupported)
	}
	d.finish(s, func() bool { return len(s.queue) == 0 })
	d.known = d.known.join(s.clock)
	if err != nil { // on demand, after the wait
		return err
	}
	return d.after(call, c)
}

// after returns the error of work that was done meanwhile.
func (d *Device) after(call string, c *context) error {
	if l := d.lost[c.device]; l != nil {
		return failed(call, c.device, l.result, "%s", l.detail)
	}
	return nil
}

// StreamWait makes later work of a stream wait for the last record of e.
func (d *Device) StreamWait(h driver.Stream, e driver.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuStreamWaitEvent"
	c, s, err := d.on(call, h)
	if err != nil {
		return err
	}
	ev := d.events[e]
	if ev == nil {
		return failed(call, c.device, driver.InvalidHandle, "event %#x", uintptr(e))
	}
	if ev.last != nil && ev.last.capture != nil {
		s.capture = ev.last.capture
		return nil
	}
	if ev.last != nil {
		s.clock = s.clock.join(ev.last.clock)
		if !ev.last.done {
			d.queue(s, work{wait: ev.last})
		}
	}
	return d.after(call, c)
}

// EventCreate makes an event.
func (d *Device) EventCreate(timing bool) (driver.Event, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := d.with("cuEventCreate")
	if err != nil {
		return 0, err
	}
	e := &event{handle: driver.Event(d.newHandle()), ctx: c, timing: timing}
	d.events[e.handle] = e
	return e.handle, nil
}

// EventDestroy forgets an event. Streams that wait for it continue to wait.
func (d *Device) EventDestroy(h driver.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuEventDestroy_v2"
	c, err := d.with(call)
	e := d.events[h]
	if err == nil && (e == nil || e.ctx != c) {
		return failed(call, c.device, driver.InvalidHandle, "event %#x", uintptr(h))
	}
	if err == nil || driver.Result.Sticky(resultOf(err)) {
		delete(d.events, h)
	}
	return err
}

// event finds an event of any context.
func (d *Device) event(call string, h driver.Event) (*context, *event, error) {
	c, err := d.with(call)
	if err != nil {
		return nil, nil, err
	}
	e := d.events[h]
	if e == nil {
		return nil, nil, failed(call, c.device, driver.InvalidHandle, "event %#x", uintptr(h))
	}
	return c, e, nil
}

// EventRecord makes e stand for what is queued on a stream until now.
func (d *Device) EventRecord(h driver.Event, on driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuEventRecord"
	c, e, err := d.event(call, h)
	if err != nil {
		return err
	}
	s, err := d.stream(call, c, on)
	if err != nil {
		return err
	}
	if e.ctx != c {
		return failed(call, c.device, driver.InvalidHandle, "the event belongs to another context than the stream")
	}
	e.last = &record{on: s}
	d.queue(s, work{mark: e.last})
	return d.after(call, c)
}

// EventDone reports whether the last record is complete. Each call does a
// piece of work of some stream, so that polling ends.
func (d *Device) EventDone(h driver.Event) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuEventQuery"
	c, e, err := d.event(call, h)
	if err != nil {
		return false, err
	}
	if e.last != nil && e.last.capture != nil {
		return false, e.last.capture.spoil(call, c.device, driver.CapturedEvent)
	}
	if len(d.order) > 0 {
		s := d.order[d.dice(len(d.order))]
		if s = d.ready(s); s != nil && len(s.queue) > 0 {
			d.step(s)
		}
	}
	if e.last != nil && e.last.done {
		d.known = d.known.join(e.last.clock)
	}
	return e.last == nil || e.last.done, d.after(call, c)
}

// EventSynchronize waits for the last record.
func (d *Device) EventSynchronize(h driver.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuEventSynchronize"
	c, e, err := d.event(call, h)
	if err != nil {
		return err
	}
	if r := e.last; r != nil && r.capture != nil {
		return r.capture.spoil(call, c.device, driver.CapturedEvent)
	} else if r != nil {
		d.finish(r.on, func() bool { return r.done })
		d.known = d.known.join(r.clock)
	}
	return d.after(call, c)
}

// Elapsed is the time that the interpreter worked between two records.
func (d *Device) Elapsed(from, to driver.Event) (time.Duration, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuEventElapsedTime"
	c, a, err := d.event(call, from)
	if err != nil {
		return 0, err
	}
	_, b, err := d.event(call, to)
	switch {
	case err != nil:
		return 0, err
	case !a.timing || !b.timing || a.last == nil || b.last == nil:
		return 0, failed(call, c.device, driver.InvalidHandle, "the events have no times")
	case !a.last.done || !b.last.done:
		return 0, failed(call, c.device, driver.NotReady, "")
	}
	return b.last.at - a.last.at, nil
}

// memory returns n bytes at an address as the current context may copy them.
func (d *Device) memory(call string, c *context, p driver.Ptr, n uint64) (*allocation, error) {
	a := d.mem.find(uint64(p))
	if a == nil || n > a.end()-uint64(p) {
		return nil, failed(call, c.device, driver.InvalidValue, "%s", d.mem.describe(uint64(p), n))
	}
	return a, nil
}

// at is the memory of a copy when its turn comes.
func (a *allocation) at(p driver.Ptr, n uint64, write bool, w *work) ([]byte, *fault) {
	if a.freed {
		return nil, &fault{driver.IllegalAddress, "copy of freed memory"}
	}
	from := uint64(p) - a.base
	if f := a.note(from, from+n, write, w); f != nil {
		return nil, f
	}
	return a.data[from:][:n], nil
}

// host notes the use of host memory, if it is pinned.
func (d *Device) host(b []byte, write bool, w *work) *fault {
	a := d.mem.find(address(b))
	if a == nil {
		return nil
	}
	from := address(b) - a.base
	return a.note(from, from+uint64(len(b)), write, w)
}

// CopyToDevice queues a copy from host memory, which is read when its turn comes.
func (d *Device) CopyToDevice(dst driver.Ptr, src []byte, h driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuMemcpyHtoDAsync_v2"
	c, s, err := d.on(call, h)
	if err != nil || len(src) == 0 {
		return err
	}
	a, err := d.memory(call, c, dst, uint64(len(src)))
	if err != nil {
		return err
	}
	d.toDevice += len(src)
	d.queue(s, work{what: call, do: func(w *work) *fault {
		to, f := a.at(dst, uint64(len(src)), true, w)
		if f == nil {
			f = d.host(src, false, w)
		}
		copy(to, src)
		return f
	}})
	return d.after(call, c)
}

// CopyToHost queues a copy to host memory, which is written when its turn comes.
func (d *Device) CopyToHost(dst []byte, src driver.Ptr, h driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuMemcpyDtoHAsync_v2"
	c, s, err := d.on(call, h)
	if err != nil || len(dst) == 0 {
		return err
	}
	a, err := d.memory(call, c, src, uint64(len(dst)))
	if err != nil {
		return err
	}
	d.toHost += len(dst)
	d.queue(s, work{what: call, do: func(w *work) *fault {
		from, f := a.at(src, uint64(len(dst)), false, w)
		if f == nil {
			f = d.host(dst, true, w)
		}
		copy(dst, from)
		return f
	}})
	return d.after(call, c)
}

// CopyOnDevice queues a copy within or between devices.
func (d *Device) CopyOnDevice(dst, src driver.Ptr, n uint64, h driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuMemcpyDtoDAsync_v2"
	c, s, err := d.on(call, h)
	if err != nil || n == 0 {
		return err
	}
	a, err := d.memory(call, c, dst, n)
	if err != nil {
		return err
	}
	b, err := d.memory(call, c, src, n)
	if err != nil {
		return err
	}
	d.queue(s, work{what: call, do: func(w *work) *fault {
		from, f := b.at(src, n, false, w)
		if f != nil {
			return f
		}
		to, f := a.at(dst, n, true, w)
		copy(to, from)
		return f
	}})
	return d.after(call, c)
}

// Fill queues the writing of n bytes.
func (d *Device) Fill(dst driver.Ptr, value byte, n uint64, h driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuMemsetD8Async"
	c, s, err := d.on(call, h)
	if err != nil || n == 0 {
		return err
	}
	a, err := d.memory(call, c, dst, n)
	if err != nil {
		return err
	}
	d.queue(s, work{what: call, do: func(w *work) *fault {
		to, f := a.at(dst, n, true, w)
		flood(to, value)
		return f
	}})
	return d.after(call, c)
}

// Launch queues a kernel. args has to hold exactly the parameters.
func (d *Device) Launch(f driver.Function, grid, dim driver.Dim, shared uint32, h driver.Stream, args []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	const call = "cuLaunchKernel"
	c, s, err := d.on(call, h)
	if err != nil {
		return err
	}
	e := d.funcs[f]
	if e == nil || e.mod.ctx != c {
		return failed(call, c.device, driver.InvalidHandle, "function %#x is not one of the current context", uintptr(f))
	}
	p := e.prog
	threads := uint64(dim.X) * uint64(dim.Y) * uint64(dim.Z)
	switch {
	case grid.X == 0 || grid.Y == 0 || grid.Z == 0 || grid.X > 1<<31-1 || grid.Y > 65535 || grid.Z > 65535:
		return failed(call, c.device, driver.InvalidValue, "%s: grid %v", p.fn.name, grid)
	case threads == 0 || dim.X > maxThreads || dim.Y > maxThreads || dim.Z > 64 || threads > maxThreads:
		return failed(call, c.device, driver.InvalidValue, "%s: block %v", p.fn.name, dim)
	case p.fn.threads != 0 && threads > uint64(p.fn.threads):
		return failed(call, c.device, driver.LaunchResources, "%s: %d threads, compiled for %d", p.fn.name, threads, p.fn.threads)
	case uint64(shared)+uint64(p.shared) > maxShared:
		return failed(call, c.device, driver.InvalidValue, "%s: %d bytes of shared memory", p.fn.name, uint64(shared)+uint64(p.shared))
	case len(args) < p.args || len(args) > (p.args+7)&^7:
		return failed(call, c.device, driver.InvalidValue, "%s: %d bytes of parameters, %d given", p.fn.name, p.args, len(args))
	}
	n := &launch{
		prog: p, grid: grid, dim: dim, dynamic: shared, args: slices.Clone(args), constants: e.mod.mod.mod.constants,
		ctx: c.handle, mem: &d.mem, steps: d.opts.Steps, arena: &d.arena,
	}
	if e.mod.variables != nil {
		n.variables = e.mod.variables.base
	}
	d.launches[p.fn.name]++
	d.queue(s, work{what: p.fn.name, do: func(w *work) *fault {
		d.random++
		n.seed = d.random
		n.watched = len(d.counts) > 2 || s.handle == 0
		steps, f := n.run(w)
		d.steps += steps
		return f
	}})
	return d.after(call, c)
}
