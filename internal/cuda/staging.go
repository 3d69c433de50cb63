package cuda

import (
	"errors"
	"slices"
	"sync"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

const opReduce = "all-reduce"

// staging is the host memory of one operation, and the goroutine that copies. Out of
// place the source of an all-reduce stays as it is on the device, so that the operation
// may run over its staged copy; in place that copy is what restores it, and the
// results have memory of their own. Of another operation source and target are always
// apart, and what the target had is kept if it is to be preserved.
type staging struct {
	p       *Platform
	dev     *dev // of the source; of a task that has none, of the target
	out     *dev // of the target; likewise
	task    device.Task
	inPlace bool // of an all-reduce
	reduces bool // on the device
	marks   []mark

	described device.Range   // to find the parameters of; set before Begin
	encoded   bool           // it comes in wire form; set before Begin
	params    quant.Meta     // of it, set before Arrived
	wire      area           // where it comes then; set before Arrived
	decodes   bool           // kernels decode results; set before Begin
	asked     []device.Range // of the source; set by Begin

	// Set before ready is closed, and constant until Release.
	ready  chan struct{}
	source area
	target area  // none of an all-reduce out of place: the same as source
	kept   area  // what the target had; none: it is not preserved
	short  error // why there is no memory

	stop chan struct{}
	once sync.Once

	mu       sync.Mutex
	more     sync.Cond
	puts     []put // final, not yet being copied
	stopped  bool
	released bool
	written  []device.Range // of the target, where it can be restored
}

// mark is how far a stream was at the launch.
type mark struct {
	dev   *dev
	event driver.Event
}

// Stage implements device.Platform.
func (p *Platform) Stage(t device.Task) (device.Staging, error) {
	s := &staging{p: p, task: t, ready: make(chan struct{}), stop: make(chan struct{})}
	s.more.L = &s.mu
	var err error
	if !t.Source.None() {
		if s.dev, s.task.Source, err = p.find(s.name(), t.Source); err != nil {
			return nil, err
		}
	}
	if !t.Target.None() {
		if s.out, s.task.Target, err = p.find(s.name(), t.Target); err != nil {
			return nil, err
		}
	}
	from, to := s.task.Source, s.task.Target
	switch {
	case s.dev == nil:
		s.dev = s.out
		err = s.note(s.out, to.Stream)
	case s.out == nil:
		s.out = s.dev
		err = s.note(s.dev, from.Stream)
	default:
		s.inPlace = !s.apart() && from.Ptr == to.Ptr
		err = s.note(s.dev, from.Stream)
		if err == nil && (to.Stream != from.Stream || s.dev != s.out) {
			err = s.note(s.out, to.Stream)
		}
	}
	if err != nil {
		s.Release()
		return nil, p.fault(s.name(), s.dev, s.about(), err)
	}
	s.reserve()
	// The kernels read whole elements.
	s.reduces = !s.apart() && t.DType.Valid() && from.Ptr%uint64(t.DType.Size()) == 0 && p.onDevice(s.dev, from.Bytes)
	return s, nil
}

// name names the operation in errors.
func (s *staging) name() string {
	if s.apart() {
		return s.task.Call
	}
	return opReduce
}

// apart reports whether source and target have host memory of their own.
func (s *staging) apart() bool { return s.task.Call != "" }

// about is the buffer that errors name.
func (s *staging) about() device.Buffer {
	if s.task.Source.None() {
		return s.task.Target
	}
	return s.task.Source
}

// sizes returns the bytes of the areas: source, target and what is kept.
func (s *staging) sizes() (list [3]int) {
	list[0] = s.task.Source.Bytes
	if s.inPlace || s.apart() {
		list[1] = s.task.Target.Bytes
	}
	if s.apart() && s.task.Preserve {
		list[2] = s.task.Target.Bytes
	}
	return list
}

// reserve takes idle memory, or has it allocated while the peers vote: the
// driver takes long for that, and the caller wants to go on.
func (s *staging) reserve() {
	var areas [3]area
	sizes, ok := s.sizes(), true
	for i, n := range sizes {
		if ok && n > 0 {
			areas[i], ok = s.p.pinned.ready(n)
		}
	}
	if ok {
		s.hold(areas, nil)
		return
	}
	s.p.spawn(func() {
		var err error
		defer func() { s.hold(areas, err) }()
		defer errs.Catch(s.name(), func(crash *errs.Error) { err = crash })
		err = s.dev.do(func() error {
			for i, n := range sizes {
				if n > 0 && areas[i].whole == nil {
					areas[i] = s.p.pinned.get(n)
				}
			}
			return nil
		})
	})
}

// hold makes areas those of s, or gives them back if s was released meanwhile.
func (s *staging) hold(areas [3]area, err error) {
	s.mu.Lock()
	late := s.released
	if !late {
		s.source, s.target, s.kept, s.short = areas[0], areas[1], areas[2], err
	}
	s.mu.Unlock()
	if late {
		for _, a := range areas {
			s.p.pinned.put(a)
		}
	}
	close(s.ready)
}

func (s *staging) note(d *dev, stream uint64) error {
	return d.do(func() error {
		e, err := d.mark(stream)
		if err == nil {
			s.marks = append(s.marks, mark{d, e})
		}
		return err
	})
}

// Memory implements device.Staging.
func (s *staging) Memory() (source, target []byte) {
	if s.inPlace || s.apart() {
		return s.source.bytes, s.target.bytes
	}
	return s.source.bytes, s.source.bytes
}

// Begin implements device.Staging.
func (s *staging) Begin(ranges []device.Range, e device.Events) {
	s.asked = ranges
	go func() {
		var err error
		func() {
			defer errs.Catch(s.name(), func(crash *errs.Error) { err = crash })
			err = s.run(ranges, e)
		}()
		e.Ended(err)
	}()
}

// Stop implements device.Staging.
func (s *staging) Stop() {
	s.once.Do(func() {
		s.mu.Lock()
		s.stopped = true
		s.mu.Unlock()
		close(s.stop)
		s.more.Signal()
	})
}

// run copies until all of the target is on the device, or Stop. When it
// returns nothing is being copied.
func (s *staging) run(ranges []device.Range, e device.Events) error {
	for _, m := range s.marks {
		if ok, err := m.dev.passed(m.event, s.stop); err != nil {
			return s.p.fault(s.name(), m.dev, s.about(), err)
		} else if !ok {
			return nil
		}
	}
	select {
	case <-s.stop:
		return nil
	case <-s.ready:
	}
	if s.short != nil {
		return s.p.fault(s.name(), s.dev, s.about(), s.short)
	}
	in, out := inbound{s: s, left: slices.Clone(ranges)}, outbound{s: s}
	err := s.dev.do(func() (err error) {
		if in.stream, err = s.dev.stream(); err != nil {
			return err
		}
		for i := range in.events {
			if in.events[i], err = s.dev.event(); err != nil {
				return err
			}
		}
		return in.prepare()
	})
	if err == nil {
		err = s.out.do(out.prepare)
	}
	if err == nil {
		err = s.measure(in.stream)
	}
	if err == nil {
		err = s.copies(&in, &out, e)
	}
	// Whatever happened, memory is given back that nobody writes to.
	quiet := errors.Join(s.settle(s.dev, in.stream), s.settle(s.out, out.stream))
	s.dev.keep([]driver.Stream{in.stream}, in.events[:])
	s.out.keep([]driver.Stream{out.stream}, nil)
	if in.encoding != nil {
		s.dev.keepBench(in.encoding.bench)
	}
	if out.bench != nil {
		s.out.keepBench(out.bench)
	}
	if err == nil {
		err = quiet
	}
	return s.p.fault(s.name(), s.dev, s.about(), err)
}

// settle waits for what is queued on a stream; a lost device does nothing more.
func (s *staging) settle(d *dev, stream driver.Stream) error {
	if stream == 0 || d.gone() != nil {
		return nil
	}
	return d.do(func() error { return d.await(stream) })
}

// copies is the loop of run: it keeps some copies to the host queued, tells
// how far they are, and queues what was put.
func (s *staging) copies(in *inbound, out *outbound, e device.Events) error {
	var arrived, sent int // bytes
	var puts []put
	if len(in.left) == 0 {
		e.Arrived(0)
	}
	for {
		s.mu.Lock()
		for !s.stopped && len(s.puts) == 0 && in.idle() && sent < s.task.Target.Bytes {
			s.more.Wait()
		}
		stopped := s.stopped
		puts = puts[:0]
		if in.overwritable() {
			puts, s.puts = s.puts, puts
		}
		if s.inPlace || s.apart() {
			for i := range puts {
				s.written = append(s.written, puts[i].Range)
			}
		}
		s.mu.Unlock()
		if stopped || sent == s.task.Target.Bytes && in.idle() {
			return nil
		}
		if len(puts) > 0 {
			if err := s.out.do(func() error { return out.send(puts) }); err != nil {
				return err
			}
			for i := range puts {
				sent += puts[i].To - puts[i].From
			}
		}
		if in.idle() {
			continue
		}
		var n int
		err := s.dev.do(func() (err error) {
			n, err = in.next()
			return err
		})
		if err != nil {
			return err
		}
		if arrived += n; n > 0 {
			e.Arrived(arrived)
		}
	}
}

// Restore implements device.Staging.
func (s *staging) Restore() error {
	if len(s.written) == 0 {
		return nil
	}
	err := s.out.do(func() error {
		stream, err := s.out.stream()
		if err != nil {
			return err
		}
		defer s.out.keep([]driver.Stream{stream}, nil)
		for _, r := range s.written {
			if err == nil {
				err = s.putBack(r, stream)
			}
		}
		return errors.Join(err, s.out.await(stream))
	})
	return s.p.fault(s.name(), s.out, s.task.Target, err)
}

// putBack queues the copies that restore what r has of the target.
func (s *staging) putBack(r device.Range, stream driver.Stream) error {
	back := func(at uint64, original []byte) error {
		return s.p.driver.CopyToDevice(driver.Ptr(at), original, stream)
	}
	at, end := s.task.Target.Ptr+uint64(r.From), s.task.Target.Ptr+uint64(r.To)
	if s.kept.bytes != nil {
		return back(at, s.kept.bytes[r.From:r.To])
	}
	base := s.task.Source.Ptr
	if base == 0 {
		return nil
	}
	if !s.apart() {
		return back(at, s.source.bytes[r.From:r.To])
	}
	for _, a := range s.asked {
		from, to := max(at, base+uint64(a.From)), min(end, base+uint64(a.To))
		if from >= to {
			continue
		}
		if err := back(from, s.source.bytes[from-base:to-base]); err != nil {
			return err
		}
	}
	return nil
}

// Release implements device.Staging.
func (s *staging) Release() {
	for _, m := range s.marks {
		m.dev.keep(nil, []driver.Event{m.event})
	}
	s.marks = nil
	s.mu.Lock()
	s.released = true
	areas := []area{s.source, s.target, s.kept, s.wire}
	s.source, s.target, s.kept, s.wire = area{}, area{}, area{}, area{}
	s.mu.Unlock()
	for _, a := range areas {
		s.p.pinned.put(a)
	}
}
