package cuda

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/kernels"
)

const opHash = "hash on the device"

// hashBatch is how many results come to the host at a time.
const hashBatch = 512

// scratchBytes is what is taken of a device for the hashes of a batch (partial
// results of one, and the results) or the parameters of a quantizer.
const scratchBytes = max(kernels.HashScratch+4*hashBatch, kernels.BoundsScratch+kernels.BoundsBytes)

// hashes is what one device has to hash.
type hashes struct {
	d    *dev
	list []int // of the buffers
}

// HashAll implements device.Platform. Everything on a device is queued before
// one wait: a wait for each tensor takes longer than most hashes.
func (p *Platform) HashAll(ctx context.Context, bufs []device.Buffer) (sums []uint32, failed int, err error) {
	sums = make([]uint32, len(bufs))
	bufs = append([]device.Buffer(nil), bufs...)
	var all []*hashes
	for i, b := range bufs {
		if b.Bytes == 0 {
			continue
		}
		d, found, err := p.find(opHash, b)
		if err != nil {
			return nil, i, err
		}
		bufs[i] = found
		var h *hashes
		for _, other := range all {
			if other.d == d {
				h = other
			}
		}
		if h == nil {
			h = &hashes{d: d}
			all = append(all, h)
		}
		h.list = append(h.list, i)
	}
	for _, h := range all {
		if failed, err := h.run(ctx, bufs, sums); err != nil {
			return nil, failed, p.fault(opHash, h.d, bufs[failed], err)
		}
	}
	return sums, 0, nil
}

// run hashes what the callers' streams have written until now. The error is
// about the buffer failed.
func (h *hashes) run(ctx context.Context, bufs []device.Buffer, sums []uint32) (failed int, err error) {
	if failed, err = h.await(ctx, bufs); err != nil {
		return failed, err
	}
	failed = h.list[0]
	err = h.d.do(func() error {
		set, err := h.d.kernels(kernels.Hashing)
		if err != nil {
			return err
		}
		s, err := h.d.stream()
		if err != nil {
			return err
		}
		defer h.d.keep([]driver.Stream{s}, nil)
		work, err := h.d.workspace()
		if err != nil {
			return err
		}
		defer h.d.keepWorkspace(work)
		host := h.d.p.pinned.get(4 * min(len(h.list), hashBatch))
		defer h.d.p.pinned.put(host)
		for left := h.list; len(left) > 0; {
			batch := left[:min(len(left), hashBatch)]
			left = left[len(batch):]
			if failed, err = h.batch(set, work, s, host.bytes[:4*len(batch)], batch, bufs); err != nil {
				return err
			}
			for i, at := range batch {
				sums[at] = binary.LittleEndian.Uint32(host.bytes[4*i:])
			}
		}
		return nil
	})
	return failed, err
}

// await waits until the streams of the buffers have come to where they are now,
// or ctx ends. Nothing is queued before, so that a stream that is busy for
// long holds up nothing but this call.
func (h *hashes) await(ctx context.Context, bufs []device.Buffer) (failed int, err error) {
	marks := map[uint64]driver.Event{}
	defer func() {
		for _, m := range marks {
			h.d.keep(nil, []driver.Event{m})
		}
	}()
	for _, i := range h.list {
		stream := bufs[i].Stream
		if _, ok := marks[stream]; ok {
			continue
		}
		if err := h.d.do(func() error {
			m, err := h.d.mark(stream)
			if err == nil {
				marks[stream] = m
			}
			return err
		}); err != nil {
			return i, err
		}
	}
	for _, i := range h.list {
		ok, err := h.d.passed(marks[bufs[i].Stream], ctx.Done())
		if err == nil && !ok {
			err = errs.New(errs.Canceled, opHash, fmt.Errorf("the work that was queued on the buffer's stream before is not done: %w", context.Cause(ctx)))
		}
		if err != nil {
			return i, err
		}
	}
	return 0, nil
}

// batch hashes some buffers, with the results in host. The context is current.
func (h *hashes) batch(set *kernels.Set, work driver.Ptr, s driver.Stream, host []byte, list []int, bufs []device.Buffer) (failed int, err error) {
	results := work + kernels.HashScratch
	failed = list[0]
	for i, at := range list {
		b := bufs[at]
		if err = set.Hash(results+driver.Ptr(4*i), work, driver.Ptr(b.Ptr), uint64(b.Bytes), s); err != nil {
			failed = at
			break
		}
	}
	if err == nil {
		err = h.d.p.driver.CopyToHost(host, results, s)
	}
	// Whatever happened, memory is given back that nobody uses.
	if werr := h.d.await(s); err == nil {
		err = werr
	}
	return failed, err
}
