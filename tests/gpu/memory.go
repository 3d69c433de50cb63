package main

import (
	"errors"
	"runtime"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// owner is what a trainer's framework is to the engine: it has device memory in
// the primary context.
type owner struct {
	driver  driver.Driver
	ordinal int
	context driver.Context
}

func newOwner(d driver.Driver, ordinal int) (*owner, error) {
	c, err := d.Retain(ordinal)
	return &owner{d, ordinal, c}, err
}

func (o *owner) release() error { return o.driver.Release(o.ordinal) }

// do calls f with the context current.
func (o *owner) do(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := o.driver.Push(o.context); err != nil {
		return err
	}
	err := f()
	_, popped := o.driver.Pop()
	return errors.Join(err, popped)
}

// alloc returns n bytes of the device.
func (o *owner) alloc(n int) (b core.DeviceBuffer, err error) {
	err = o.do(func() error {
		p, err := o.driver.Alloc(uint64(n))
		b = core.DeviceBuffer{Platform: device.CUDA, Ptr: uint64(p), Bytes: n, Device: o.ordinal}
		return err
	})
	return b, err
}

func (o *owner) free(list ...core.DeviceBuffer) error {
	return o.do(func() (err error) {
		for _, b := range list {
			err = errors.Join(err, o.driver.Free(driver.Ptr(b.Ptr)))
		}
		return err
	})
}

// write copies src to b and waits.
func (o *owner) write(b core.DeviceBuffer, src []byte) error {
	return o.do(func() error {
		if err := o.driver.CopyToDevice(driver.Ptr(b.Ptr), src, 0); err != nil {
			return err
		}
		return o.driver.StreamSynchronize(0)
	})
}

// read copies b to dst and waits.
func (o *owner) read(dst []byte, b core.DeviceBuffer) error {
	return o.do(func() error {
		if err := o.driver.CopyToHost(dst, driver.Ptr(b.Ptr), 0); err != nil {
			return err
		}
		return o.driver.StreamSynchronize(0)
	})
}
