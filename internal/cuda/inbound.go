package cuda

import (
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/kernels"
)

// window is how many copies of one operation to the host are queued at a time.
const window = 4

// inbound are the copies of one operation to the host: what is left of them, and
// what is queued. What is described comes encoded if the kernels for that are
// ready: then so much less crosses the bus, and the host encodes nothing.
type inbound struct {
	s      *staging
	stream driver.Stream
	events [window]driver.Event
	left   []device.Range
	// originals are to follow in place, of what came encoded: they restore it.
	originals device.Range
	encoding  *encoding // nil: everything comes as it is

	queued, waited int         // copies, all and those that were waited for
	sizes          [window]int // of the queued ones, in bytes of what was asked for
}

// encoding makes the wire form of the described bytes on the device.
type encoding struct {
	set   *kernels.Set
	bench *workbench
	most  int // bytes of the source at a time
}

// encodable are the quantizers whose wire form the kernels write, with their bits.
var encodable = map[string]quant.Kind{"minmax": quant.MinMax, "zeropoint": quant.ZeroPoint}

// encodes reports whether there are kernels for the task's quantizer.
func (s *staging) encodes() bool {
	kind, ok := encodable[s.task.Quantizer.Name()]
	return ok && kernels.Quantizes(s.task.DType, s.task.Wire, kind)
}

// prepare gets what encoding needs, if that is to be done. The context is current.
func (in *inbound) prepare() error {
	s, r := in.s, in.s.described
	if !s.encoded || r.From == r.To {
		return nil
	}
	set, err := s.dev.kernels(kernels.Quantization)
	if err != nil {
		return err
	}
	b, err := s.dev.bench()
	if err != nil {
		return err
	}
	in.encoding = &encoding{set, b, min(b.size/s.task.Wire.Size()*s.task.DType.Size(), s.p.pieces&^63)}
	s.wire = s.p.pinned.get(s.wireBytes(r.To - r.From))
	if s.inPlace {
		in.originals = r
	}
	return nil
}

// wireBytes returns how long the wire form of n bytes of elements is.
func (s *staging) wireBytes(n int) int { return n / s.task.DType.Size() * s.task.Wire.Size() }

// idle reports whether nothing is queued or left.
func (in *inbound) idle() bool {
	return in.queued == in.waited && len(in.left) == 0 && in.originals.From == in.originals.To
}

// overwritable reports whether the device's memory may be overwritten: the host
// has all that restores it.
func (in *inbound) overwritable() bool {
	return in.encoding == nil || !in.s.inPlace || in.idle()
}

// next keeps copies queued and waits for the first of them. It returns how many
// of the bytes that were asked for that brought. The context is current.
func (in *inbound) next() (arrived int, err error) {
	for ; in.queued-in.waited < window && (len(in.left) > 0 || in.originals.From < in.originals.To); in.queued++ {
		if err := in.queue(); err != nil {
			return 0, err
		}
	}
	at := in.waited % window
	if err := in.s.p.driver.EventSynchronize(in.events[at]); err != nil {
		return 0, err
	}
	in.waited++
	return in.sizes[at], nil
}

// queue queues the next copy.
func (in *inbound) queue() error {
	s, r, asked := in.s, &in.originals, 0
	if len(in.left) > 0 {
		r, asked = &in.left[0], 1
	}
	n := min(r.To-r.From, s.p.pieces)
	from := driver.Ptr(s.task.Source.Ptr) + driver.Ptr(r.From)
	var err error
	if asked > 0 && in.encoding != nil && s.described.From <= r.From && r.From < s.described.To {
		n = min(n, in.encoding.most)
		err = in.encode(from, r.From-s.described.From, n)
	} else {
		err = s.p.driver.CopyToHost(s.source.bytes[r.From:r.From+n], from, in.stream)
	}
	at := in.queued % window
	if err == nil {
		err = s.p.driver.EventRecord(in.events[at], in.stream)
	}
	in.sizes[at] = asked * n
	if r.From += n; asked > 0 && r.From == r.To {
		in.left = in.left[1:]
	}
	return err
}

// encode queues the wire form of n bytes, which lie at off in what is described.
// One place on the device does for all, as the stream has them in turn.
func (in *inbound) encode(from driver.Ptr, off, n int) error {
	s, e := in.s, in.encoding
	scratch, err := e.bench.place(s.dev, &e.bench.lane[0].result)
	if err != nil {
		return err
	}
	t := &s.task
	if err := e.set.Quantize(t.DType, t.Wire, &s.params, scratch, from, uint64(n/t.DType.Size()), in.stream); err != nil {
		return err
	}
	to := s.wireBytes(off)
	return s.p.driver.CopyToHost(s.wire.bytes[to:to+s.wireBytes(n)], scratch, in.stream)
}

// Encoded implements device.Staging.
func (s *staging) Encoded() []byte { return s.wire.bytes }
