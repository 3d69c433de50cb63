package cuda

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

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

// workbench is where received data is reduced on a device. The kernels read it
// from pinned memory of the host, and write results there, if that is what they
// have; so an operation is one launch. Otherwise it is copied. What is encoded
// waits there for its copy to the host, too.
type workbench struct {
	lane [benchLanes]struct {
		stream driver.Stream
		done   driver.Event
		// Got when they are needed first.
		host             area       // where what was received waits
		received, result driver.Ptr // on the device
	}
	size int // of each; host has 16 bytes more
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
			l.done, err = d.event()
		}
		if err != nil {
			return nil, errors.Join(err, d.dismantle(w))
		}
	}
	return w, nil
}

// vector is what addresses are best equal modulo of.
const vector = 16

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
		d.keep([]driver.Stream{l.stream}, []driver.Event{l.done})
		for _, p := range []driver.Ptr{l.received, l.result} {
			if p != 0 {
				all = append(all, d.p.driver.Free(p))
			}
		}
		d.p.pinned.put(l.host)
	}
	return errors.Join(all...)
}

// place returns *p, which it allocates first. The context is current.
func (w *workbench) place(d *dev, p *driver.Ptr) (driver.Ptr, error) {
	if *p != 0 {
		return *p, nil
	}
	var err error
	*p, err = d.p.driver.Alloc(uint64(w.size))
	return *p, err
}

// work is one reduction of received data on the device.
type work struct {
	dtype  dtype.Type
	op     dtype.Op
	local  driver.Ptr // operand on the device
	in     []byte     // received
	result []byte
	pinned bool // result is
	world  int  // what to divide by; 0: nothing
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
		for at, i := 0, 0; at < len(w.in) && err == nil; i++ {
			lane := i % benchLanes
			if i >= benchLanes {
				if err = d.p.driver.EventSynchronize(b.lane[lane].done); err != nil {
					break
				}
			}
			n := min(b.size, len(w.in)-at)
			err = d.queue(set, b, lane, &w, at, n)
			at += n
		}
		for i := range b.lane {
			l := &b.lane[i]
			if err == nil {
				err = d.p.driver.EventSynchronize(l.done)
			}
			if err != nil {
				_ = d.await(l.stream)
			}
		}
		return err
	})
}

// queue queues the reduction of n bytes of w at at on a lane, which is free.
func (d *dev) queue(set *kernels.Set, b *workbench, lane int, w *work, at, n int) error {
	drv, l := d.p.driver, &b.lane[lane]
	count := uint64(n) / uint64(w.dtype.Size())
	if l.host.whole == nil {
		l.host = d.p.pinned.get(b.size + vector)
	}
	out := address(w.result[at:])
	// All operands lie alike.
	host := l.host.bytes[(uint64(out)-uint64(address(l.host.bytes)))%vector:][:n]
	copy(host, w.in[at:at+n])
	in := address(host)
	// A second pass over the bus, of the division, would cost more than a copy.
	mapped := w.pinned && w.world == 0
	var err error
	if !l.host.pinned {
		if in, err = b.place(d, &l.received); err == nil {
			err = drv.CopyToDevice(in, host, l.stream)
		}
	}
	if err == nil && !mapped {
		out, err = b.place(d, &l.result)
	}
	if err == nil {
		err = set.Reduce(w.dtype, w.op, out, w.local+driver.Ptr(at), in, count, l.stream)
	}
	if err == nil && w.world > 0 {
		err = set.Finalize(w.dtype, out, count, w.world, l.stream)
	}
	if err == nil && !mapped {
		err = drv.CopyToHost(w.result[at:at+n], out, l.stream)
	}
	if err == nil {
		err = drv.EventRecord(l.done, l.stream)
	}
	return err
}

// address is that of memory of the host, which the device knows by the same one
// if it is pinned.
func address(b []byte) driver.Ptr { return driver.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

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
		var b backend.Backend
		if b, _, err = backend.Select("auto"); err == nil {
			device, host, err = d.compare(b)
		}
	}()
	faster := err == nil && device < host
	where := map[bool]string{true: "device", false: "host"}[faster]
	d.p.log.Load().Info("where all-reduces of device memory are reduced", "device", d.ordinal, "reduce", where,
		"per_mib_on_device", device, "per_mib_on_host", host, "error", err)
	d.faster.Store(faster)
}

// coldBytes is more than the caches of a core hold.
const coldBytes = 64 << 20

// compare measures what a reader takes to reduce what it has received, on the
// device with all copies, and on the host; the fastest of some runs each, in turns.
// The device has just written the local contribution, or left it in its own memory,
// and a socket what was received: so no run finds its operands in a cache.
func (d *dev) compare(b backend.Backend) (device, host time.Duration, err error) {
	var local driver.Ptr
	var memory area
	if err := d.do(func() (err error) {
		local, err = d.p.driver.Alloc(trialBytes)
		memory = d.p.pinned.get(2 * trialBytes)
		return err
	}); err != nil {
		d.p.pinned.put(memory)
		return 0, 0, err
	}
	defer func() {
		d.p.pinned.put(memory)
		err = errors.Join(err, d.do(func() error { return d.p.driver.Free(local) }))
	}()
	mine, result := memory.bytes[:trialBytes], memory.bytes[trialBytes:]
	in, cold := make([]byte, trialBytes), make([]byte, coldBytes)
	clear(mine)
	for run := range trialRuns {
		d.p.chill(cold, byte(run))
		began := time.Now()
		if err := d.reduce(work{dtype: dtype.Float32, op: dtype.Sum, local: local, in: in, result: result, pinned: memory.pinned}); err != nil {
			return 0, 0, fmt.Errorf("trial of the device: %w", err)
		}
		device = least(device, time.Since(began))
		d.p.chill(cold, byte(run))
		began = time.Now()
		b.Reduce(dtype.Float32, dtype.Sum, result, mine, in)
		host = least(host, time.Since(began))
	}
	return device, host, nil
}

// chill writes to each line of b, so that the caches forget what else they held.
func (p *Platform) chill(b []byte, with byte) {
	if p.chilled != nil {
		p.chilled(b)
	}
	const line = 64
	for i := 0; i < len(b); i += line {
		b[i] += with + 1
	}
}

func least(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// pinned reports whether results lie in pinned memory.
func (s *staging) pinned() bool {
	if s.inPlace {
		return s.target.pinned
	}
	return s.source.pinned
}

// Reduces implements device.Staging.
func (s *staging) Reduces() bool { return s.reduces }

// Reduce implements device.Staging.
func (s *staging) Reduce(from, to int, received []byte, world int) error {
	_, target := s.Memory()
	err := s.dev.reduce(work{
		dtype: s.task.DType, op: s.task.Op, local: driver.Ptr(s.task.Source.Ptr) + driver.Ptr(from),
		in: received, result: target[from:to], pinned: s.pinned(), world: world,
	})
	return s.p.fault(opReduce, s.dev, s.task.Source, err)
}
