package kernels

import (
	"github.com/gopccl/gopccl/core/dtype"

	"github.com/gopccl/gopccl/backends/cuda/driver"
)

const (
	nesterovStep = "nesterov_step"
	difference   = "difference_float32"
)

// NesterovStep queues one step of gradient descent with Nesterov momentum on n
// float32: velocity := momentum*velocity + gradient, then params := params -
// rate*(gradient + momentum*velocity), each operation rounded once, as a loop
// in Go that fuses nothing does it. NaNs are NaNs, whatever their bits.
func (k *Set) NesterovStep(params, velocity, gradient driver.Ptr, n uint64, rate, momentum float32, s driver.Stream) error {
	if err := aligned("device step", dtype.Float32, params, velocity, gradient); err != nil || n == 0 {
		return err
	}
	return k.launch(nesterovStep, k.grid(n), s, args().ptr(params, velocity, gradient).u64(n).f32(rate).f32(momentum))
}

// Difference queues dst[i] := a[i] - b[i] for n float32, a pseudo-gradient. dst
// may be a or b.
func (k *Set) Difference(dst, a, b driver.Ptr, n uint64, s driver.Stream) error {
	if err := aligned("device difference", dtype.Float32, dst, a, b); err != nil || n == 0 {
		return err
	}
	return k.launch(difference, k.grid(n), s, args().ptr(dst, a, b).u64(n))
}
