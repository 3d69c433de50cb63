package trainers

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/examples/charlm"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// An outer step on a device has the bits of the host's, also where numbers are
// lost or subnormal.
func TestOuterStepOnADevice(t *testing.T) {
	d := ptxtest.New(ptxtest.Options{Devices: 2})
	outer, err := NewDeviceOuter(d, 1)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{1, 31, 1000, 1000, 257} {
		random := func() []float32 {
			v := make([]float32, n)
			for i := range v {
				v[i] = float32(math.Ldexp(rng.NormFloat64(), rng.IntN(220)-160))
			}
			return v
		}
		host, device := charlm.NewNesterov(n, 0.7, 0.9), charlm.NewNesterov(n, 0.7, 0.9)
		params := random()
		other := append([]float32(nil), params...)
		for range 4 {
			grad := random()
			host.Step(params, grad)
			require.NoError(t, outer.Step(device, other, grad))
			require.Equal(t, dtype.AsBytes(params), dtype.AsBytes(other))
			require.Equal(t, dtype.AsBytes(host.Velocity), dtype.AsBytes(device.Velocity))
		}
	}
	require.NoError(t, outer.Close())
	require.Equal(t, ptxtest.Counts{}, d.Live())
}

// One peer steps on a device, one on the host: their states are equal after
// every step, and those of one process.
func TestDiLoCoWithADevice(t *testing.T) {
	d := ptxtest.New(ptxtest.Options{})
	outer, err := NewDeviceOuter(d, 0)
	require.NoError(t, err)
	addr, _ := master(t)
	o := small(addr)
	o.Steps = 4
	r := newReference(o)
	r.diloco(int(o.Steps))
	on := o
	on.Outer = outer
	peers := []*peer{start(t, DiLoCo, o, nil), start(t, DiLoCo, on, nil)}
	for _, p := range peers {
		p.wait(t)
		require.NotEmpty(t, p.of(Stepped))
		p.agrees(t, r.hashes)
	}
	require.NoError(t, outer.Close())
	require.Equal(t, ptxtest.Counts{}, d.Live())
}

// A device that fails ends the trainer with the driver's word for it.
func TestOuterStepFails(t *testing.T) {
	_, err := NewDeviceOuter(ptxtest.New(ptxtest.Options{}), 1)
	require.ErrorContains(t, err, "there is no device 1: this machine has 1")
	d := ptxtest.New(ptxtest.Options{})
	d.Fail("cuModuleLoadDataEx", 1, driver.NoBinaryForGPU)
	_, err = NewDeviceOuter(d, 0)
	require.ErrorIs(t, err, &driver.Error{Result: driver.NoBinaryForGPU})
	require.Equal(t, ptxtest.Counts{}, d.Live())

	outer, err := NewDeviceOuter(d, 0)
	require.NoError(t, err)
	d.Fail("cuMemAlloc_v2", 2, driver.OutOfMemory)
	m := charlm.NewNesterov(8, 0.7, 0.9)
	err = outer.Step(m, make([]float32, 8), make([]float32, 8))
	require.ErrorIs(t, err, &driver.Error{Result: driver.OutOfMemory})
	require.ErrorContains(t, err, "outer step on device 0")
	require.NoError(t, outer.Step(m, make([]float32, 8), make([]float32, 8)))
	require.NoError(t, outer.Close())
	require.Equal(t, ptxtest.Counts{}, d.Live())
}
