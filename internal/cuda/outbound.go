package cuda

import (
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/kernels"
)

// put is a part of the target that is final.
type put struct {
	device.Range
	// What the device makes it of; nil: it is in the host's memory.
	wire  []byte
	meta  quant.Meta
	world int // what to divide by; 0: nothing
}

// extend makes next a part of p if it is what follows, as the parts of a chunk do.
func (p *put) extend(next *put) bool {
	n := len(p.wire)
	switch {
	case p.To != next.From, (n == 0) != (len(next.wire) == 0):
		return false
	case n == 0:
	case p.world != next.world, p.meta != next.meta, cap(p.wire)-n < len(next.wire), &p.wire[:n+1][n] != &next.wire[0]:
		return false
	default:
		p.wire = p.wire[:n+len(next.wire)]
	}
	p.To = next.To
	return true
}

// Put implements device.Staging.
func (s *staging) Put(from, to int) { s.add(put{Range: device.Range{From: from, To: to}}) }

// Decodes implements device.Staging.
func (s *staging) Decodes() bool {
	t := &s.task
	if !s.encodes() || t.Target.Ptr%uint64(t.DType.Size()) != 0 { // the kernels write whole elements
		return false
	}
	files := []string{kernels.Quantization, kernels.Reduction}
	if t.Op != dtype.Avg { // nothing is divided
		files = files[:1]
	}
	s.decodes = s.out.compiled(files...) == len(files)
	return s.decodes
}

// PutEncoded implements device.Staging.
func (s *staging) PutEncoded(from, to int, q []byte, m *quant.Meta, world int) {
	s.add(put{device.Range{From: from, To: to}, q, *m, world})
}

func (s *staging) add(p put) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.puts); n == 0 || !s.puts[n-1].extend(&p) {
		s.puts = append(s.puts, p)
	}
	s.more.Signal()
}

// outbound are the copies of one operation to the device. What comes in wire form
// crosses the bus so, and kernels decode it into the target.
type outbound struct {
	s      *staging
	stream driver.Stream
	// Nil, but for what is decoded.
	set, quotients *kernels.Set
	bench          *workbench
	turns          int // of the bench's lanes
}

// prepare gets what the copies need. The context is current.
func (o *outbound) prepare() (err error) {
	s := o.s
	if o.stream, err = s.out.stream(); err != nil {
		return err
	}
	if !s.decodes {
		return o.keep()
	}
	if o.set, err = s.out.kernels(kernels.Quantization); err != nil {
		return err
	}
	if s.task.Op == dtype.Avg {
		if o.quotients, err = s.out.kernels(kernels.Reduction); err != nil {
			return err
		}
	}
	o.bench, err = s.out.bench()
	return err
}

// keep queues the copies of what the target has and is to be preserved. They are
// ahead of all that overwrites it.
func (o *outbound) keep() error {
	kept := o.s.kept.bytes
	for at := 0; at < len(kept); {
		n := min(len(kept)-at, o.s.p.pieces)
		if err := o.s.p.driver.CopyToHost(kept[at:at+n], driver.Ptr(o.s.task.Target.Ptr)+driver.Ptr(at), o.stream); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// send queues copies of results to the device. Its context is current.
func (o *outbound) send(puts []put) error {
	_, target := o.s.Memory()
	for i := range puts {
		p := &puts[i]
		var err error
		if len(p.wire) > 0 {
			err = o.decode(p)
		} else {
			err = o.s.p.driver.CopyToDevice(driver.Ptr(o.s.task.Target.Ptr)+driver.Ptr(p.From), target[p.From:p.To], o.stream)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decode queues what makes p of its wire form, as much at a time as a lane holds.
func (o *outbound) decode(p *put) error {
	t := &o.s.task
	to := driver.Ptr(t.Target.Ptr) + driver.Ptr(p.From)
	for left := p.wire; len(left) > 0; {
		q := left[:min(len(left), o.bench.size)]
		left = left[len(q):]
		from, err := o.bring(q)
		if err != nil {
			return err
		}
		n := uint64(len(q) / t.Wire.Size())
		if err := o.set.Dequantize(t.DType, t.Wire, &p.meta, dtype.Set, to, to, from, n, o.stream); err != nil {
			return err
		}
		if p.world > 0 {
			if err := o.quotients.Finalize(t.DType, to, n, p.world, o.stream); err != nil {
				return err
			}
		}
		to += driver.Ptr(n) * driver.Ptr(t.DType.Size())
	}
	return nil
}

// bring queues the copy of q to the device, through pinned memory, and returns where
// it will be. The lanes take turns: one is filled while the other one is copied.
func (o *outbound) bring(q []byte) (driver.Ptr, error) {
	d, drv := o.s.out, o.s.p.driver
	l := &o.bench.lane[o.turns%benchLanes]
	if o.turns >= benchLanes {
		if err := drv.EventSynchronize(l.done); err != nil {
			return 0, err
		}
	}
	if l.host.whole == nil {
		l.host = d.p.pinned.get(o.bench.size + vector)
	}
	place, err := o.bench.place(d, &l.received)
	if err != nil {
		return 0, err
	}
	host := l.host.bytes[:copy(l.host.bytes, q)]
	if err := drv.CopyToDevice(place, host, o.stream); err != nil {
		return 0, err
	}
	o.turns++
	return place, drv.EventRecord(l.done, o.stream)
}
