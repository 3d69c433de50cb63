package cuda

import (
	"errors"
	"fmt"
	"time"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/kernels"
)

// lanes of a workbench: while one is copied to the device, the other one is
// reduced or copied back.
const benchLanes = 2

// benchBytes is what one lane takes at a time.
const benchBytes = 256 << 10

// workbench is where received data is reduced on a device.
type workbench struct {
	lane [benchLanes]struct {
		stream   driver.Stream
		received driver.Ptr // on the device, as is result
		result   driver.Ptr
		host     area // pinned, where what was received waits for its copy
	}
	size int // of each
}

// bench returns a workbench; keepBench takes it back. The context is current.
func (d *dev) bench() (*workbench, error) {
	if w, ok := kept(d, &d.benches); ok {
		return w, nil
	}
	w := &workbench{size: min(benchBytes, d.p.pieces&^63)}
	for i := range w.lane {
		l := &w.lane[i]
		var err error
		if l.stream, err = d.stream(); err == nil {
			l.received, err = d.p.driver.Alloc(uint64(w.size))
		}
		if err == nil {
			l.result, err = d.p.driver.Alloc(uint64(w.size))
		}
		if err != nil {
			return nil, errors.Join(err, d.dismantle(w))
		}
		l.host = d.p.pinned.get(w.size)
	}
	return w, nil
}

func (d *dev) keepBench(w *workbench) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.benches = append(d.benches, w)
}

// dismantle frees a workbench. The context is current.
func (d *dev) dismantle(w *workbench) error {
	var all []error
	for i := range w.lane {
		l := &w.lane[i]
		d.keep([]driver.Stream{l.stream}, nil)
		for _, p := range []driver.Ptr{l.received, l.result} {
			if p != 0 {
				all = append(all, d.p.driver.Free(p))
			}
		}
		d.p.pinned.put(l.host)
	}
	return errors.Join(all...)
}

// work is one reduction of received data on the device.
type work struct {
	dtype  dtype.Type
	op     dtype.Op
	local  driver.Ptr // operand on the device
	in     []byte     // received
	result []byte     // pinned, or ordinary memory
	world  int        // what to divide by; 0: nothing
}

// reduce does w and waits for the result.
func (d *dev) reduce(w work) error {
	return d.do(func() error {
		set, err := d.kernels(kernels.Reduction)
		if err != nil {
			return err
		}
		b, err := d.bench()
		if err != nil {
			return err
		}
		defer d.keepBench(b)
		size := uint64(w.dtype.Size())
		for at, i := 0, 0; at < len(w.in) && err == nil; i++ {
			n := min(b.size, len(w.in)-at)
			l := &b.lane[i%benchLanes]
			if i >= benchLanes {
				if err = d.p.driver.StreamSynchronize(l.stream); err != nil {
					break
				}
			}
			copy(l.host.bytes, w.in[at:at+n])
			err = d.p.driver.CopyToDevice(l.received, l.host.bytes[:n], l.stream)
			if err == nil {
				err = set.Reduce(w.dtype, w.op, l.result, w.local+driver.Ptr(at), l.received, uint64(n)/size, l.stream)
			}
			if err == nil && w.world > 0 {
				err = set.Finalize(w.dtype, l.result, uint64(n)/size, w.world, l.stream)
			}
			if err == nil {
				err = d.p.driver.CopyToHost(w.result[at:at+n], l.result, l.stream)
			}
			at += n
		}
		for i := range b.lane {
			if serr := d.p.driver.StreamSynchronize(b.lane[i].stream); err == nil {
				err = serr
			}
		}
		return err
	})
}

// Trial of where reducing is faster.
const (
	trialBytes = 1 << 20
	trialRuns  = 5
	// smallest is the size of an operation below which it is of no interest.
	smallest = 4 << 20
)

// onDevice says whether an operation of so many bytes reduces on d. It does not
// wait: the host does it until it is known that the device is faster. Where the
// device was asked for, its kernels are compiled meanwhile.
func (p *Platform) onDevice(d *dev, bytes int) bool {
	switch *p.reduce.Load() {
	case "host":
		return false
	case "device":
		d.compiling.Do(func() {
			p.spawn(func() { d.compile(kernels.Reduction) })
		})
		return true
	}
	if bytes < smallest {
		return false
	}
	d.trial.Do(func() { p.spawn(d.try) })
	return d.faster.Load()
}

// compile gets the kernels of a file ready. What needs them says why there are none.
func (d *dev) compile(file string) {
	defer errs.Catch(opReduce, func(*errs.Error) {})
	_ = d.do(func() error {
		_, err := d.kernels(file)
		return err
	})
}

// try finds out where reducing is faster.
func (d *dev) try() {
	var device, host time.Duration
	var err error
	func() {
		defer errs.Catch(opReduce, func(crash *errs.Error) { err = crash })
		device, host, err = d.compare()
	}()
	faster := err == nil && device < host
	where := map[bool]string{true: "device", false: "host"}[faster]
	d.p.log.Load().Info("where all-reduces of device memory are reduced", "device", d.ordinal, "reduce", where,
		"per_mib_on_device", device, "per_mib_on_host", host, "error", err)
	d.faster.Store(faster)
}

// compare measures what a reader takes to reduce what it has received, on the
// device with all copies, and on the host; the fastest of some runs each, in turns.
func (d *dev) compare() (device, host time.Duration, err error) {
	b, _, err := backend.Select("auto")
	if err != nil {
		return 0, 0, err
	}
	var local driver.Ptr
	var result area
	if err := d.do(func() (err error) {
		local, err = d.p.driver.Alloc(trialBytes)
		result = d.p.pinned.get(trialBytes)
		return err
	}); err != nil {
		d.p.pinned.put(result)
		return 0, 0, err
	}
	defer func() {
		d.p.pinned.put(result)
		err = errors.Join(err, d.do(func() error { return d.p.driver.Free(local) }))
	}()
	in, mine := make([]byte, trialBytes), make([]byte, trialBytes)
	for range trialRuns {
		began := time.Now()
		if err := d.reduce(work{dtype: dtype.Float32, op: dtype.Sum, local: local, in: in, result: result.bytes}); err != nil {
			return 0, 0, fmt.Errorf("trial of the device: %w", err)
		}
		middle := time.Now()
		b.Reduce(dtype.Float32, dtype.Sum, result.bytes, mine, in)
		end := time.Now()
		device, host = least(device, middle.Sub(began)), least(host, end.Sub(middle))
	}
	return device, host, nil
}

func least(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// Reduces implements device.Staging.
func (s *staging) Reduces() bool { return s.reduces }

// Reduce implements device.Staging.
func (s *staging) Reduce(from, to int, received []byte, world int) error {
	_, target := s.Memory()
	err := s.dev.reduce(work{
		dtype: s.task.DType, op: s.task.Op, local: driver.Ptr(s.task.Source.Ptr) + driver.Ptr(from),
		in: received, result: target[from:to], world: world,
	})
	return s.p.fault(opReduce, s.dev, s.task.Source, err)
}
