package trainers

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/examples/charlm"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// The kernel is made by tools/ci/ptx.sh.
//
//go:embed _ptx/nesterov.ptx
var nesterovPTX []byte

// blockThreads is the size of a block of it.
const blockThreads = 256

// Outer takes DiLoCo's outer steps: of Nesterov momentum, on params, which have
// the length of o.Velocity, against the averaged pseudo-gradient. Wherever they are
// taken, the bits are those of o.Step: peers need not agree on it.
type Outer interface {
	Step(o *charlm.Nesterov, params, grad []float32) error
	Close() error
}

// hostOuter takes steps on the processor.
type hostOuter struct{}

func (hostOuter) Step(o *charlm.Nesterov, params, grad []float32) error {
	o.Step(params, grad)
	return nil
}

func (hostOuter) Close() error { return nil }

// DeviceOuter takes steps on a CUDA device. Not safe for concurrent use.
type DeviceOuter struct {
	driver  driver.Driver
	ordinal int
	context driver.Context
	module  driver.Module
	kernel  driver.Function
	vectors [3]driver.Ptr // parameters, velocity, gradient
	length  int           // of each, in elements
}

// NewDeviceOuter loads the kernel for a device. Close gives everything back.
func NewDeviceOuter(d driver.Driver, device int) (*DeviceOuter, error) {
	n, err := d.Devices()
	if err == nil && (device < 0 || device >= n) {
		err = fmt.Errorf("there is no device %d: this machine has %d", device, n)
	}
	if err != nil {
		return nil, fmt.Errorf("outer step on a device: %w", err)
	}
	o := &DeviceOuter{driver: d, ordinal: device}
	if o.context, err = d.Retain(device); err != nil {
		return nil, fmt.Errorf("outer step on a device: %w", err)
	}
	err = o.do(o.load)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("outer step on a device: %w", err), d.Release(device))
	}
	return o, nil
}

func (o *DeviceOuter) load() error {
	m, log, err := o.driver.ModuleLoad(nesterovPTX)
	if err != nil {
		return fmt.Errorf("%w %s", err, log)
	}
	if o.kernel, err = o.driver.Function(m, "nesterov_step"); err != nil {
		return errors.Join(err, o.driver.ModuleUnload(m))
	}
	o.module = m
	return nil
}

// launch queues the step of n elements.
func (o *DeviceOuter) launch(n int, rate, momentum float32) error {
	if n == 0 {
		return nil
	}
	args := make([]byte, 0, 40)
	for _, p := range o.vectors {
		args = binary.LittleEndian.AppendUint64(args, uint64(p))
	}
	args = binary.LittleEndian.AppendUint64(args, uint64(n))
	args = binary.LittleEndian.AppendUint32(args, math.Float32bits(rate))
	args = binary.LittleEndian.AppendUint32(args, math.Float32bits(momentum))
	grid := driver.Dim{X: uint32((n + blockThreads - 1) / blockThreads), Y: 1, Z: 1}
	return o.driver.Launch(o.kernel, grid, driver.Dim{X: blockThreads, Y: 1, Z: 1}, 0, 0, args)
}

// do calls f with the device's context current.
func (o *DeviceOuter) do(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := o.driver.Push(o.context); err != nil {
		return err
	}
	err := f()
	_, popped := o.driver.Pop()
	return errors.Join(err, popped)
}

// Step implements Outer. The vectors travel to the device and back; all that is
// computed in between is the kernel's.
func (o *DeviceOuter) Step(m *charlm.Nesterov, params, grad []float32) error {
	err := o.do(func() error {
		if err := o.room(len(params)); err != nil {
			return err
		}
		for i, v := range [][]float32{params, m.Velocity, grad} {
			if err := o.driver.CopyToDevice(o.vectors[i], dtype.AsBytes(v), 0); err != nil {
				return err
			}
		}
		if err := o.launch(len(params), m.Rate, m.Momentum); err != nil {
			return err
		}
		for i, v := range [][]float32{params, m.Velocity} {
			if err := o.driver.CopyToHost(dtype.AsBytes(v), o.vectors[i], 0); err != nil {
				return err
			}
		}
		return o.driver.StreamSynchronize(0)
	})
	if err != nil {
		return fmt.Errorf("outer step on device %d: %w", o.ordinal, err)
	}
	return nil
}

// room makes the vectors n elements long.
func (o *DeviceOuter) room(n int) error {
	if n == o.length {
		return nil
	}
	err := o.free()
	for i := range o.vectors {
		if err == nil {
			o.vectors[i], err = o.driver.Alloc(uint64(max(4, 4*n)))
		}
	}
	if err == nil {
		o.length = n
	}
	return err
}

func (o *DeviceOuter) free() (err error) {
	for i, p := range o.vectors {
		if p != 0 {
			err = errors.Join(err, o.driver.Free(p))
		}
		o.vectors[i] = 0
	}
	o.length = 0
	return err
}

// Close implements Outer.
func (o *DeviceOuter) Close() error {
	err := o.do(func() error { return errors.Join(o.free(), o.driver.ModuleUnload(o.module)) })
	return errors.Join(err, o.driver.Release(o.ordinal))
}
