package determinism

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
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

// Calls with vectors of all sizes share some regions of the device: an
// allocation takes longer than a call.
func TestDeviceKeepsItsMemory(t *testing.T) {
	d := ptxtest.New(ptxtest.Options{})
	g, err := OpenGPU(d, 0)
	require.NoError(t, err)
	before := d.Calls()["cuMemAlloc_v2"]
	for n := range 300 {
		v := make([]byte, 4*n)
		require.NoError(t, g.Reduce(dtype.Float32, dtype.Sum, v, v, v))
	}
	require.Less(t, d.Calls()["cuMemAlloc_v2"]-before, 30)
	require.NoError(t, g.Close())
	require.Equal(t, ptxtest.Counts{}, d.Live())
}

// lazy is a driver that uses ordinary memory of the host as long as it may:
// until somebody waits.
type lazy struct {
	*ptxtest.Device
	used []weak.Pointer[byte]
	gone int
}

func (l *lazy) CopyToDevice(dst driver.Ptr, src []byte, s driver.Stream) error {
	if len(src) > 0 {
		l.used = append(l.used, weak.Make(&src[0]))
	}
	return l.Device.CopyToDevice(dst, bytes.Clone(src), s)
}

func (l *lazy) StreamSynchronize(s driver.Stream) error {
	runtime.GC()
	for _, w := range l.used {
		if w.Value() == nil {
			l.gone++
		}
	}
	l.used = nil
	return l.Device.StreamSynchronize(s)
}

// What is copied to the device stays alive until the device has read it, when
// nobody else holds it, and when the call fails.
func TestDeviceHoldsWhatItCopies(t *testing.T) {
	l := &lazy{Device: ptxtest.New(ptxtest.Options{})}
	g, err := OpenGPU(l, 0)
	require.NoError(t, err)
	b := make([]byte, 5000)
	sum, err := g.Hash(b, 3)
	require.NoError(t, err)
	require.Equal(t, digest.SimpleHash(b), sum)
	require.Zero(t, l.gone)
	require.Empty(t, l.used)

	l.Fail("cuLaunchKernel", 1, driver.OutOfMemory)
	_, err = g.Hash(b, 1)
	require.ErrorIs(t, err, &driver.Error{Result: driver.OutOfMemory})
	require.Zero(t, l.gone)
	require.Empty(t, l.used, "the device was waited for")
	require.NoError(t, g.Close())
}
