package cuda

import (
	"errors"
	"sync"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

const opReduce = "all-reduce"

// staging is the host memory of one all-reduce, and the goroutine that copies.
// Out of place the source on the device stays as it is, so that the operation
// may run over its staged copy; in place that copy is what restores it, and the
// results have memory of their own.
type staging struct {
	p       *Platform
	dev     *dev // of the source
	out     *dev // of the target
	task    device.Task
	inPlace bool
	reduces bool // on the device
	marks   []mark

	described device.Range // to find the parameters of; set before Begin
	encoded   bool         // it comes in wire form; set before Begin
	params    quant.Meta   // of it, set before Arrived
	wire      area         // where it comes then; set before Arrived
	decodes   bool         // kernels decode results; set before Begin

	// Set before ready is closed, and constant until Release.
	ready  chan struct{}
	source area
	target area  // none out of place: the same as source
	short  error // why there is no memory

	stop chan struct{}
	once sync.Once

	mu       sync.Mutex
	more     sync.Cond
	puts     []put // final, not yet being copied
	stopped  bool
	released bool
	written  []device.Range // of the device's memory, in place
}

// mark is how far a stream was at the launch.
type mark struct {
	dev   *dev
	event driver.Event
}

// Stage implements device.Platform.
func (p *Platform) Stage(t device.Task) (device.Staging, error) {
	src, from, err := p.find(opReduce, t.Source)
	if err != nil {
		return nil, err
	}
	dst, to, err := p.find(opReduce, t.Target)
	if err != nil {
		return nil, err
	}
	t.Source, t.Target = from, to
	s := &staging{
		p: p, dev: src, out: dst, task: t, inPlace: from.Ptr == to.Ptr,
		ready: make(chan struct{}), stop: make(chan struct{}),
	}
	s.more.L = &s.mu
	err = s.note(src, from.Stream)
	if err == nil && (to.Stream != from.Stream || src != dst) {
		err = s.note(dst, to.Stream)
	}
	if err != nil {
		s.Release()
		return nil, p.fault(opReduce, src, from, err)
	}
	s.reserve()
	// The kernels read whole elements.
	s.reduces = t.DType.Valid() && from.Ptr%uint64(t.DType.Size()) == 0 && p.onDevice(src, from.Bytes)
	return s, nil
}

// reserve takes idle memory, or has it allocated while the peers vote: the
// driver takes long for that, and the caller wants to go on.
func (s *staging) reserve() {
	n := s.task.Source.Bytes
	source, ok := s.p.pinned.ready(n)
	var target area
	if ok && s.inPlace {
		target, ok = s.p.pinned.ready(n)
	}
	if ok {
		s.hold(source, target, nil)
		return
	}
	s.p.spawn(func() {
		var err error
		defer func() { s.hold(source, target, err) }()
		defer errs.Catch(opReduce, func(crash *errs.Error) { err = crash })
		err = s.dev.do(func() error {
			if source.whole == nil {
				source = s.p.pinned.get(n)
			}
			if s.inPlace {
				target = s.p.pinned.get(n)
			}
			return nil
		})
	})
}

// hold makes areas those of s, or gives them back if s was released meanwhile.
func (s *staging) hold(source, target area, err error) {
	s.mu.Lock()
	late := s.released
	if !late {
		s.source, s.target, s.short = source, target, err
	}
	s.mu.Unlock()
	if late {
		s.p.pinned.put(source)
		s.p.pinned.put(target)
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
	if s.inPlace {
		return s.source.bytes, s.target.bytes
	}
	return s.source.bytes, s.source.bytes
}

// Begin implements device.Staging.
func (s *staging) Begin(ranges []device.Range, e device.Events) {
	go func() {
		var err error
		func() {
			defer errs.Catch(opReduce, func(crash *errs.Error) { err = crash })
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
			return s.p.fault(opReduce, m.dev, s.task.Source, err)
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
		return s.p.fault(opReduce, s.dev, s.task.Source, s.short)
	}
	in, out := inbound{s: s, left: ranges}, outbound{s: s}
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
	return s.p.fault(opReduce, s.dev, s.task.Source, err)
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
	for {
		s.mu.Lock()
		for !s.stopped && len(s.puts) == 0 && in.idle() && sent < len(s.source.bytes) {
			s.more.Wait()
		}
		stopped := s.stopped
		puts = puts[:0]
		if in.overwritable() {
			puts, s.puts = s.puts, puts
		}
		if s.inPlace {
			for i := range puts {
				s.written = append(s.written, puts[i].Range)
			}
		}
		s.mu.Unlock()
		if stopped || sent == len(s.source.bytes) {
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
	if !s.inPlace || len(s.written) == 0 {
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
				err = s.p.driver.CopyToDevice(driver.Ptr(s.task.Target.Ptr)+driver.Ptr(r.From), s.source.bytes[r.From:r.To], stream)
			}
		}
		return errors.Join(err, s.out.await(stream))
	})
	return s.p.fault(opReduce, s.out, s.task.Target, err)
}

// Release implements device.Staging.
func (s *staging) Release() {
	for _, m := range s.marks {
		m.dev.keep(nil, []driver.Event{m.event})
	}
	s.marks = nil
	s.mu.Lock()
	s.released = true
	areas := []area{s.source, s.target, s.wire}
	s.source, s.target, s.wire = area{}, area{}, area{}
	s.mu.Unlock()
	for _, a := range areas {
		s.p.pinned.put(a)
	}
}
