package kernels

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"sync"
	"unsafe"

	"github.com/gopccl/gopccl/core/dtype"

	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// hosted runs the kernels on memory of the process: operands are copied to the
// device, and the result is copied back, while the caller waits. It is for
// comparing a device with a processor, not for speed. Slices are as those of
// backend.Backend and quant.Quantizer; on the device they lie at addresses that
// are equal to theirs modulo 16, as far as the size of an element allows. It is
// safe for concurrent use.
type hosted struct {
	driver  driver.Driver
	device  int
	context driver.Context

	mu      sync.Mutex
	set     *Set
	regions [3]region // with mu
}

// region is device memory that grows with what is asked of it.
type region struct {
	driver.Ptr
	size uint64
}

// newHosted loads the kernels on a device. Close gives everything back.
func newHosted(d driver.Driver, device int) (*hosted, error) {
	c, err := d.Retain(device)
	if err != nil {
		return nil, err
	}
	h := &hosted{driver: d, device: device, context: c}
	if err := h.do(func() (err error) { h.set, err = Load(d, device); return err }); err != nil {
		return nil, errors.Join(err, d.Release(device))
	}
	return h, nil
}

// Close frees the memory and unloads the kernels. No other call may be running
// or follow.
func (h *hosted) Close() error {
	err := h.do(func() error {
		var all []error
		for i := range h.regions {
			if h.regions[i].size > 0 {
				all = append(all, h.driver.Free(h.regions[i].Ptr))
			}
		}
		return errors.Join(append(all, h.set.Unload())...)
	})
	return errors.Join(err, h.driver.Release(h.device))
}

// do calls f with the device's context on top of this thread's stack.
func (h *hosted) do(f func() error) (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := h.driver.Push(h.context); err != nil {
		return err
	}
	defer func() {
		_, popped := h.driver.Pop()
		err = errors.Join(err, popped)
	}()
	return f()
}

// room returns n bytes of region i, offset bytes behind a multiple of 256.
func (h *hosted) room(i, n, offset int) (driver.Ptr, error) {
	r, want := &h.regions[i], uint64(n+offset)
	if want > r.size {
		if r.size > 0 {
			if err := h.driver.Free(r.Ptr); err != nil {
				return 0, err
			}
			r.size = 0
		}
		p, err := h.driver.Alloc(want)
		if err != nil {
			return 0, err
		}
		*r = region{p, want}
	}
	return r.Ptr + driver.Ptr(offset), nil
}

// offset is where b lies modulo 16, rounded down to whole elements.
func offset(b []byte, size int) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))%16) / size * size
}

// send copies b to region i.
func (h *hosted) send(i int, b []byte, offset int) (driver.Ptr, error) {
	p, err := h.room(i, len(b), offset)
	if err == nil && len(b) > 0 {
		err = h.driver.CopyToDevice(p, b, 0)
	}
	return p, err
}

// fetch copies what is at p, once all is computed, to b.
func (h *hosted) fetch(b []byte, p driver.Ptr) error {
	if len(b) > 0 {
		if err := h.driver.CopyToHost(b, p, 0); err != nil {
			return err
		}
	}
	return h.driver.StreamSynchronize(0)
}

// Reduce sets dst[i] := a[i] op b[i]. dst may be a or b.
func (h *hosted) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) error {
	return h.do(func() error {
		x, err := h.send(0, a, offset(a, t.Size()))
		if err != nil {
			return err
		}
		y, err := h.send(1, b, offset(b, t.Size()))
		if err != nil {
			return err
		}
		to := x
		switch same := unsafe.SliceData(dst); {
		case len(dst) == 0 || same == unsafe.SliceData(a):
		case same == unsafe.SliceData(b):
			to = y
		default:
			if to, err = h.room(2, len(dst), offset(dst, t.Size())); err != nil {
				return err
			}
		}
		if err := h.set.Reduce(t, op, to, x, y, uint64(len(dst)/t.Size()), 0); err != nil {
			return err
		}
		return h.fetch(dst, to)
	})
}

// Finalize divides every element of dst by world.
func (h *hosted) Finalize(t dtype.Type, dst []byte, world int) error {
	return h.do(func() error {
		p, err := h.send(0, dst, offset(dst, t.Size()))
		if err != nil {
			return err
		}
		if err := h.set.Finalize(t, p, uint64(len(dst)/t.Size()), world, 0); err != nil {
			return err
		}
		return h.fetch(dst, p)
	})
}

// Hash returns the SimpleHash of b, which lies offset bytes behind a multiple of
// 256 on the device.
func (h *hosted) Hash(b []byte, offset int) (sum uint32, err error) {
	err = h.do(func() error {
		src, err := h.send(0, b, offset)
		if err != nil {
			return err
		}
		work, err := h.room(1, HashScratch+4, 0)
		if err != nil {
			return err
		}
		if err := h.set.Hash(work+HashScratch, work, src, uint64(len(b)), 0); err != nil {
			return err
		}
		var result [4]byte
		err = h.fetch(result[:], work+HashScratch)
		sum = binary.LittleEndian.Uint32(result[:])
		return err
	})
	return sum, err
}

// MinMaxParams returns the metadata that minmax has for src.
func (h *hosted) MinMaxParams(t dtype.Type, src []byte) (m quant.Meta, err error) {
	err = h.do(func() error {
		p, err := h.send(0, src, offset(src, t.Size()))
		if err != nil {
			return err
		}
		work, err := h.room(1, BoundsScratch+BoundsBytes, 0)
		if err != nil {
			return err
		}
		if err := h.set.MinMaxBounds(t, work+BoundsScratch, work, p, uint64(len(src)/t.Size()), 0); err != nil {
			return err
		}
		var result [BoundsBytes]byte
		err = h.fetch(result[:], work+BoundsScratch)
		m = MinMaxParams(t, result[:])
		return err
	})
	return m, err
}

// ZeroPointMoments returns sum and squared distances of each segment of src, for
// package zeropoint (FromMoments).
func (h *hosted) ZeroPointMoments(t dtype.Type, src []byte) (sums []float64, err error) {
	err = h.do(func() error {
		n := uint64(len(src) / t.Size())
		p, err := h.send(0, src, offset(src, t.Size()))
		if err != nil {
			return err
		}
		b := make([]byte, MomentsBytes(n))
		to, err := h.room(1, len(b), 0)
		if err != nil {
			return err
		}
		if err := h.set.ZeroPointMoments(t, to, p, n, 0); err != nil {
			return err
		}
		err = h.fetch(b, to)
		sums = make([]float64, len(b)/8)
		for i := range sums {
			sums[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
		}
		return err
	})
	return sums, err
}

// Quantize writes the wire form of src under m to dst.
func (h *hosted) Quantize(t, q dtype.Type, m *quant.Meta, dst, src []byte) error {
	return h.do(func() error {
		from, err := h.send(0, src, offset(src, t.Size()))
		if err != nil {
			return err
		}
		to, err := h.room(1, len(dst), offset(dst, q.Size()))
		if err != nil {
			return err
		}
		if err := h.set.Quantize(t, q, m, to, from, uint64(len(dst)/q.Size()), 0); err != nil {
			return err
		}
		return h.fetch(dst, to)
	})
}

// DequantizeFrom sets dst := acc op value(q). dst may be acc.
func (h *hosted) DequantizeFrom(t, qt dtype.Type, m *quant.Meta, op dtype.Op, dst, acc, q []byte) error {
	return h.do(func() error {
		from, err := h.send(0, q, offset(q, qt.Size()))
		if err != nil {
			return err
		}
		old, err := h.send(1, acc, offset(acc, t.Size()))
		if err != nil {
			return err
		}
		to := old
		if len(dst) > 0 && unsafe.SliceData(dst) != unsafe.SliceData(acc) {
			if to, err = h.room(2, len(dst), offset(dst, t.Size())); err != nil {
				return err
			}
		}
		if err := h.set.Dequantize(t, qt, m, op, to, old, from, uint64(len(dst)/t.Size()), 0); err != nil {
			return err
		}
		return h.fetch(dst, to)
	})
}
