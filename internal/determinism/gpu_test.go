package determinism

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// The kernels of the device, executed by the interpreter, give the processor's
// bits. Its exp is an approximation, so only the counts are the device's.
func TestDevice(t *testing.T) {
	d := ptxtest.New(ptxtest.Options{})
	g, err := OpenGPU(d, 0)
	require.NoError(t, err)
	p := plan(t, g)
	p.Others, p.Elements, p.Step = []Machine{g}, 300, 1<<20
	list, ok := rows(t, p)
	checks := map[string]int{}
	for _, r := range list {
		if r.On == g.Name() {
			checks[r.Check]++
		}
		require.True(t, r.OK, "%+v", r) // S0-22
	}
	require.True(t, ok)
	require.Equal(t, map[string]int{"reduce": 60, "finalize": 12, "quantize": 20, "hash": 2, "exp": 5}, checks)
	require.NoError(t, g.Close())
	require.Equal(t, ptxtest.Counts{}, d.Live())
}

// A device that is not there or fails is named, and nothing of it is kept.
func TestDeviceFails(t *testing.T) {
	d := ptxtest.New(ptxtest.Options{Devices: 2})
	for _, n := range []int{-1, 2} {
		_, err := OpenGPU(d, n)
		require.ErrorIs(t, err, errs.InvalidArgument)
		require.ErrorContains(t, err, "this machine has 2")
	}
	_, err := OpenGPU(ptxtest.New(ptxtest.Options{Init: driver.SystemNotReady}), 0)
	require.ErrorIs(t, err, errs.DeviceFailed)
	require.ErrorIs(t, err, &driver.Error{Result: driver.SystemNotReady})

	d.Fail("cuModuleLoadDataEx", 2, driver.UnsupportedPTX)
	_, err = OpenGPU(d, 1)
	require.ErrorIs(t, err, &driver.Error{Result: driver.UnsupportedPTX})
	require.ErrorContains(t, err, "update the NVIDIA driver")
	require.Equal(t, ptxtest.Counts{}, d.Live())

	g, err := OpenGPU(d, 1)
	require.NoError(t, err)
	d.Fail("cuMemAlloc_v2", 2, driver.OutOfMemory)
	p := plan(t, g)
	p.Others, p.Elements = []Machine{g}, 16
	_, err = p.Run(context.Background(), func(Row) error { return nil })
	require.ErrorContains(t, err, "reduce sum uint8 on cuda:1")
	require.ErrorIs(t, err, &driver.Error{Result: driver.OutOfMemory})
	require.NoError(t, g.Close())
	require.Equal(t, ptxtest.Counts{}, d.Live())
}
