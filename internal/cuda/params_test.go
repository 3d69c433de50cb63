package cuda

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
	"github.com/gopccl/gopccl/quantizers/blocks"
	"github.com/gopccl/gopccl/quantizers/minmax"
	"github.com/gopccl/gopccl/quantizers/zeropoint"
)

// numbers are n elements of t, the one at odd being x.
func numbers(t dtype.Type, n, odd int, x float64) []byte {
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	if t == dtype.Float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		v[odd] = float32(x)
		return dtype.AsBytes(v)
	}
	v := make([]float64, n)
	for i := range v {
		v[i] = rng.NormFloat64()
	}
	v[odd] = x
	return dtype.AsBytes(v)
}

// describe runs an operation until its source is there.
func (r *trainer) describe(x device.Buffer, z quant.Quantizer, t, q dtype.Type, from, to int) (quant.Meta, error) {
	s := r.stage(device.Task{Source: x, Target: x, DType: t, Op: dtype.Sum, Quantizer: z, Wire: q})
	defer s.Release()
	require.True(r.t, s.Describe(from, to))
	w := newWatcher()
	s.Begin([]device.Range{{From: from, To: to}}, w)
	select {
	case <-w.arrived:
		s.Stop()
		require.NoError(r.t, w.end(r.t))
		return s.Params(), nil
	case err := <-w.ended:
		return quant.Meta{}, err
	}
}

// prepared returns a trainer whose platform has the kernels.
func prepared(t *testing.T) *trainer {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{})
	x := r.tensor(0, make([]byte, 64))
	task := device.Task{Source: x, Target: x, DType: dtype.Float32, Op: dtype.Sum, Quantizer: minmax.New(), Wire: dtype.Uint8}
	s := r.stage(task)
	require.False(t, s.Describe(0, 64), "a launch does not wait for the compiler")
	s.Release()
	r.p.background.Wait()
	r.free(x)
	return r
}

// Parameters from the device are the quantizer's own, bit for bit, whatever it
// has to look at: numbers, and what makes its sums useless.
func TestParams(t *testing.T) {
	r := prepared(t)
	for _, c := range []struct {
		z     quant.Quantizer
		wires []dtype.Type
	}{
		{minmax.New(), []dtype.Type{dtype.Uint8, dtype.Uint16, dtype.Uint32}},
		{zeropoint.New(), []dtype.Type{dtype.Uint8, dtype.Int8, dtype.Uint16, dtype.Int16, dtype.Uint32, dtype.Int32, dtype.Int64}},
	} {
		for _, typ := range []dtype.Type{dtype.Float32, dtype.Float64} {
			for k, q := range c.wires {
				n := []int{1, 1000, 5000, 2048, 4097}[k%5]
				for _, x := range []float64{0.5, math.NaN(), math.Inf(-1), math.Copysign(0, -1), 1e300} {
					b := numbers(typ, n+7, n/2+3, x)
					buf := r.tensor(0, b)
					from, to := 3*typ.Size(), (3+n)*typ.Size()
					got, err := r.describe(buf, c.z, typ, q, from, to)
					require.NoError(t, err)
					want := c.z.Params(typ, q, b[from:to])
					require.Equal(t, want, got, "%s of %d %v as %v with %v", c.z.Name(), n, typ, q, x)
					require.Equal(t, math.Signbit(want.Min), math.Signbit(got.Min))
					r.free(buf)
				}
			}
		}
	}
	r.close()
}

// More segments than one copy moves.
func TestParamsOfMany(t *testing.T) {
	r := prepared(t)
	const n = 62*2048*2 + 5
	b := numbers(dtype.Float32, n, 1, 4)
	x := r.tensor(0, b)
	got, err := r.describe(x, zeropoint.New(), dtype.Float32, dtype.Uint8, 0, len(b))
	require.NoError(t, err)
	require.Equal(t, zeropoint.New().Params(dtype.Float32, dtype.Uint8, b), got)
	require.Equal(t, 3, r.d.Launches()["zeropoint_moments_float32"])
	r.close(x)
}

// What has no kernels is left to the host; a device that fails ends the operation.
func TestParamsRefused(t *testing.T) {
	r := prepared(t)
	x := r.tensor(0, make([]byte, 4096))
	for what, task := range map[string]device.Task{
		"quantizer": {DType: dtype.Float32, Quantizer: blocks.New(), Wire: dtype.Uint4},
		"type":      {DType: dtype.Float16, Quantizer: minmax.New(), Wire: dtype.Uint8},
	} {
		task.Source, task.Target, task.Op = x, x, dtype.Sum
		s := r.stage(task)
		require.False(t, s.Describe(0, 64), what)
		s.Release()
	}
	for _, call := range []string{"cuMemAlloc_v2", "cuLaunchKernel", "cuMemcpyDtoHAsync_v2"} {
		r.d.Fail(call, 1, driver.OutOfMemory)
		_, err := r.describe(x, minmax.New(), dtype.Float32, dtype.Uint8, 0, 4096)
		require.ErrorIs(t, err, errs.DeviceFailed, call)
		require.ErrorIs(t, err, &driver.Error{Result: driver.OutOfMemory}, call)
	}
	_, err := r.describe(x, minmax.New(), dtype.Float32, dtype.Uint8, 0, 4096)
	require.NoError(t, err)
	r.close(x)
}
