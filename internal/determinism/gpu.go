package determinism

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/kernels"
	"github.com/gopccl/gopccl/quantizers/zeropoint"
)

// GPU is the Machine of a CUDA device: each call copies its operands to the
// device, launches the kernel and copies the result back. Not safe for
// concurrent use.
type GPU struct {
	driver  driver.Driver
	ordinal int
	name    string
	context driver.Context
	kernels *kernels.Set
	regions []region
	used    int      // regions, of the call in progress
	held    [][]byte // what its copies read and write
}

// region is memory of the device that is kept for the next call: giving it back
// costs more than a call, and there are a hundred thousand of them.
type region struct {
	driver.Ptr
	size uint64
}

// OpenGPU loads the kernels for a device. Close gives everything back. Errors:
// InvalidArgument if there is no such device, DeviceFailed with a *driver.Error.
func OpenGPU(d driver.Driver, device int) (*GPU, error) {
	const op = "open CUDA device"
	fail := func(err error) error { return errs.New(errs.DeviceFailed, op, err) }
	n, err := d.Devices()
	if err != nil {
		return nil, fail(err)
	}
	if device < 0 || device >= n {
		return nil, errs.New(errs.InvalidArgument, op, fmt.Errorf("there is no device %d: this machine has %d", device, n)).
			WithHint("see nvidia-smi and CUDA_VISIBLE_DEVICES")
	}
	name, err := d.DeviceName(device)
	if err != nil {
		return nil, fail(err)
	}
	g := &GPU{driver: d, ordinal: device, name: fmt.Sprintf("cuda:%d %s", device, name)}
	if g.context, err = d.Retain(device); err != nil {
		return nil, fail(err)
	}
	err = g.do(func() (err error) {
		g.kernels, err = kernels.Load(d, device)
		return err
	})
	if err != nil {
		return nil, errors.Join(fail(err), d.Release(device))
	}
	return g, nil
}

// Close frees the memory, unloads the kernels and releases the device.
func (g *GPU) Close() error {
	err := g.do(func() error {
		var all []error
		for _, r := range g.regions {
			if r.size > 0 {
				all = append(all, g.driver.Free(r.Ptr))
			}
		}
		g.regions = nil
		return errors.Join(append(all, g.kernels.Unload())...)
	})
	return errors.Join(err, g.driver.Release(g.ordinal))
}

// Name is the device's number and name.
func (g *GPU) Name() string { return g.name }

// do calls f with the device's context. What f has copied stays alive until
// the device is done with it: a copy of ordinary memory may be asynchronous.
func (g *GPU) do(f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := g.driver.Push(g.context); err != nil {
		return err
	}
	if err = f(); err != nil && len(g.held) > 0 { // f has not waited
		err = errors.Join(err, g.driver.StreamSynchronize(0))
	}
	runtime.KeepAlive(g.held)
	clear(g.held)
	g.used, g.held = 0, g.held[:0]
	_, popped := g.driver.Pop()
	return errors.Join(err, popped)
}

// room returns n bytes of device memory until do ends.
func (g *GPU) room(n int) (driver.Ptr, error) {
	if g.used == len(g.regions) {
		g.regions = append(g.regions, region{})
	}
	r, want := &g.regions[g.used], uint64(max(n, 1))
	if want > r.size {
		if r.size > 0 {
			if err := g.driver.Free(r.Ptr); err != nil {
				return 0, err
			}
			*r = region{}
		}
		// More than is asked for, so that vectors that grow do not move each time.
		want += want/2 + 256
		p, err := g.driver.Alloc(want)
		if err != nil {
			return 0, err
		}
		*r = region{p, want}
	}
	g.used++
	return r.Ptr, nil
}

// put copies buffers of elements of t to the device, to addresses that are
// theirs modulo 16, as far as the size of an element allows.
func (g *GPU) put(t dtype.Type, buffers ...[]byte) (list []driver.Ptr, err error) {
	for _, b := range buffers {
		offset := int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))%16) / t.Size() * t.Size()
		p, err := g.room(offset + len(b))
		if err == nil {
			p += driver.Ptr(offset)
			g.held = append(g.held, b)
			err = g.driver.CopyToDevice(p, b, 0)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// take copies what all work so far has left at src.
func (g *GPU) take(dst []byte, src driver.Ptr) error {
	g.held = append(g.held, dst)
	if err := g.driver.CopyToHost(dst, src, 0); err != nil {
		return err
	}
	return g.driver.StreamSynchronize(0)
}

// Reduce implements Machine.
func (g *GPU) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) error {
	return g.do(func() error {
		p, err := g.put(t, a, b, dst)
		if err == nil {
			err = g.kernels.Reduce(t, op, p[2], p[0], p[1], uint64(len(dst)/t.Size()), 0)
		}
		if err != nil {
			return err
		}
		return g.take(dst, p[2])
	})
}

// Finalize implements Machine.
func (g *GPU) Finalize(t dtype.Type, dst []byte, world int) error {
	return g.do(func() error {
		p, err := g.put(t, dst)
		if err == nil {
			err = g.kernels.Finalize(t, p[0], uint64(len(dst)/t.Size()), world, 0)
		}
		if err != nil {
			return err
		}
		return g.take(dst, p[0])
	})
}

// Hash implements Machine.
func (g *GPU) Hash(b []byte, offset int) (sum uint32, err error) {
	err = g.do(func() error {
		p, err := g.put(dtype.Float64, append(make([]byte, offset, offset+len(b)+16), b...))
		if err != nil {
			return err
		}
		work, err := g.room(kernels.HashScratch + 4)
		if err == nil {
			err = g.kernels.Hash(work+kernels.HashScratch, work, p[0]+driver.Ptr(offset), uint64(len(b)), 0)
		}
		if err != nil {
			return err
		}
		var word [4]byte
		err = g.take(word[:], work+kernels.HashScratch)
		sum = binary.LittleEndian.Uint32(word[:])
		return err
	})
	return sum, err
}

// Params implements Machine. A quantizer without a kernel, and a chunk of which
// the kernel makes nothing, is the processor's, as in an all-reduce.
func (g *GPU) Params(q quant.Quantizer, t, w dtype.Type, src []byte) (meta quant.Meta, err error) {
	n := uint64(len(src) / t.Size())
	err = g.do(func() error {
		p, err := g.put(t, src)
		if err != nil {
			return err
		}
		switch q.Name() {
		case "minmax":
			work, err := g.room(kernels.BoundsScratch + kernels.BoundsBytes)
			if err == nil {
				err = g.kernels.MinMaxBounds(t, work+kernels.BoundsScratch, work, p[0], n, 0)
			}
			if err != nil {
				return err
			}
			var result [kernels.BoundsBytes]byte
			err = g.take(result[:], work+kernels.BoundsScratch)
			meta = kernels.MinMaxParams(t, result[:])
			return err
		case "zeropoint":
			result := make([]byte, kernels.MomentsBytes(n))
			work, err := g.room(len(result))
			if err == nil {
				err = g.kernels.ZeroPointMoments(t, work, p[0], n, 0)
			}
			if err == nil {
				err = g.take(result, work)
			}
			if err != nil {
				return err
			}
			sums := make([]float64, len(result)/8)
			for i := range sums {
				sums[i] = math.Float64frombits(binary.LittleEndian.Uint64(result[8*i:]))
			}
			if m, ok := zeropoint.FromMoments(t, w, int(n), sums); ok {
				meta = m
				return nil
			}
		}
		meta = q.Params(t, w, src)
		return nil
	})
	return meta, err
}

// Quantize implements Machine.
func (g *GPU) Quantize(_ quant.Quantizer, t, w dtype.Type, m *quant.Meta, dst, src []byte) error {
	return g.do(func() error {
		p, err := g.put(t, src)
		if err != nil {
			return err
		}
		coded, err := g.put(w, dst)
		if err == nil {
			err = g.kernels.Quantize(t, w, m, coded[0], p[0], uint64(len(src)/t.Size()), 0)
		}
		if err != nil {
			return err
		}
		return g.take(dst, coded[0])
	})
}

// Dequantize implements Machine.
func (g *GPU) Dequantize(_ quant.Quantizer, t, w dtype.Type, m *quant.Meta, op dtype.Op, dst, src []byte) error {
	return g.do(func() error {
		p, err := g.put(t, dst)
		if err != nil {
			return err
		}
		coded, err := g.put(w, src)
		if err == nil {
			err = g.kernels.Dequantize(t, w, m, op, p[0], p[0], coded[0], uint64(len(dst)/t.Size()), 0)
		}
		if err != nil {
			return err
		}
		return g.take(dst, p[0])
	})
}

// launchPatterns bounds the patterns of one launch, some milliseconds of work.
const launchPatterns = 1 << 26

// Exp implements Machine: CUDA's own expf.
func (g *GPU) Exp(ctx context.Context, step uint64) (total ExpSums, err error) {
	err = g.do(func() error {
		work, err := g.room(kernels.TallyBytes)
		if err != nil {
			return err
		}
		results := make([]byte, kernels.TallyBytes)
		for from := uint64(0); from < Patterns; {
			if err := ctx.Err(); err != nil {
				return err
			}
			count := min(launchPatterns, (Patterns-from+step-1)/step)
			n, err := g.kernels.ExpTally(work, uint32(from), step, count, 0)
			if err == nil {
				err = g.take(results[:n], work)
			}
			if err != nil {
				return err
			}
			t := kernels.ReadTally(results[:n])
			total.Add(ExpSums{NaN: t.NaN, Inf: t.Inf, Finite: t.Finite, Sum: t.Sum, XOR: t.Xor})
			from += count * step
		}
		return nil
	})
	return total, err
}
