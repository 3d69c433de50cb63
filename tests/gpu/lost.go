package main

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/kernels"
)

// nowhere is an address in the first page, which is never mapped.
const nowhere = driver.Ptr(0x200)

// lostDevice has the trainer launch a kernel at a bad address while peers are
// at work, which loses the device for this process. The operations that use it
// have to end, and say why; those in host memory have to go on.
func lostDevice(j *job) (err error) {
	p, err := newPair(j, j.driver, device.Settings{})
	if err != nil {
		return err
	}
	n := pick(j, 16<<20, 5000)
	host := make([]float32, n)
	for i := range host {
		host[i] = float32(i % 1000)
	}
	var x [world]core.DeviceBuffer
	for i := range x {
		if x[i], err = p.owner.alloc(4 * n); err != nil {
			return errors.Join(err, p.close())
		}
		if err := p.owner.write(x[i], dtype.AsBytes(host)); err != nil {
			return errors.Join(err, p.close())
		}
	}
	onDevice := func(i int) core.Reduce { return core.ReduceDevice(x[i], x[i], dtype.Float32, core.Sum) }

	// Some are under way when it happens. They may have been quicker.
	var handles [world]*core.Handle
	if err := p.each(func(i int) (err error) {
		handles[i], err = p.comms[i].AllReduceAsync(p.ctx, onDevice(i))
		return err
	}); err != nil {
		return errors.Join(err, p.close())
	}
	result := p.owner.misuse()
	var silent []string
	var ends [world]error
	_ = p.each(func(i int) error {
		_, ends[i] = handles[i].Wait(context.WithoutCancel(p.ctx))
		return nil
	})
	for _, err := range ends {
		if err != nil && !expected(err) {
			silent = append(silent, err.Error())
		}
	}
	// Then each must fail, and say which result the device had.
	for range 2 {
		_ = p.each(func(i int) error {
			_, err := p.comms[i].AllReduce(p.ctx, onDevice(i))
			return err
		})
	}
	for i := range world {
		if _, err := p.comms[i].AllReduceAsync(p.ctx, onDevice(i)); errs.CodeOf(err) != errs.DeviceFailed {
			silent = append(silent, "no DeviceFailed: "+text(err))
		}
	}
	if _, _, err := p.platform.HashAll(p.ctx, x[:1]); errs.CodeOf(err) != errs.DeviceFailed {
		silent = append(silent, "hash: no DeviceFailed: "+text(err))
	}
	wrong := 0
	var sums [world][]float32
	err = p.each(func(i int) error {
		sums[i] = make([]float32, n)
		_, err := core.AllReduceSlice(p.ctx, p.comms[i], sums[i], host, core.Sum)
		return err
	})
	for i := range sums {
		for k, v := range sums[i] {
			if math.Float32bits(v) != math.Float32bits(world*host[k]) {
				wrong++
			}
		}
	}
	for i, c := range p.comms {
		err = errors.Join(err, c.Close())
		p.comms[i] = nil
	}
	lost := p.platform.Stats().Lost
	_ = p.close() // the driver takes nothing back any more
	if err != nil {
		return err
	}
	code := driver.Success
	var e *driver.Error
	if errors.As(result, &e) {
		code = e.Result
	}
	return errors.Join(
		j.tell(exactly("lost", "result of a kernel at a bad address", int(code), int(driver.IllegalAddress), map[string]any{"error": text(result)})),
		j.tell(exactly("lost", "operations on the device that did not say so", len(silent), 0, map[string]any{"errors": silent})),
		j.tell(exactly("lost", "devices that are marked as lost", len(lost), 1, nil)),
		j.tell(exactly("lost", "elements in host memory that are wrong afterwards", wrong, 0, nil)),
	)
}

// expected tells whether an operation that was under way may end with err: the
// device's result, or the abort of a peer that had it.
func expected(err error) bool {
	return slices.Contains([]errs.Code{errs.DeviceFailed, errs.RankConnectionLost}, errs.CodeOf(err))
}

// misuse launches a kernel at an address that nothing is at, and returns what
// the driver says of it.
func (o *owner) misuse() error {
	return o.do(func() error {
		k, err := kernels.Load(o.driver, o.ordinal, kernels.Reduction)
		if err != nil {
			return err
		}
		if err := k.Finalize(dtype.Float32, nowhere, 1000, 2, 0); err != nil {
			return err
		}
		return o.driver.StreamSynchronize(0)
	})
}

func text(err error) string {
	if err == nil {
		return "none"
	}
	return err.Error()
}
