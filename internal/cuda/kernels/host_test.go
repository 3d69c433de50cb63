package kernels

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend/backendtest"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"

	"github.com/gopccl/gopccl/internal/cuda/cudatest"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// host returns a hosted on a device whose work runs late, and gives it back.
func host(t *testing.T) *hosted {
	d := cudatest.Open(t, ptxtest.Options{Seed: 5})
	h, err := newHosted(d, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, h.Close())
		require.Equal(t, ptxtest.Counts{}, d.Live())
	})
	return h
}

// reducer is a backend.Backend whose arithmetic a device does.
type reducer struct {
	*hosted
	t *testing.T
}

func (r reducer) Name() string { return "device" }

func (r reducer) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) {
	require.NoError(r.t, r.hosted.Reduce(t, op, dst, a, b))
}

func (r reducer) Finalize(t dtype.Type, dst []byte, world int) {
	require.NoError(r.t, r.hosted.Finalize(t, dst, world))
}

// A device computes what every processor computes: the number is the one that
// the backends for processors are tested with.
func TestSameAsEveryProcessor(t *testing.T) {
	h := host(t)
	sum := backendtest.Fingerprint(reducer{h, t})
	require.Equal(t, uint32(0xfc473538), sum, "%#x", sum)
}

// Callers on several threads share the device, and an error of one leaves
// nothing behind on its thread.
func TestHostShared(t *testing.T) {
	h := host(t)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			b := make([]byte, 1000+i)
			for j := range b {
				b[j] = byte(i * j)
			}
			for offset := range 4 {
				sum, err := h.Hash(b, offset)
				if err != nil || sum != digest.SimpleHash(b) {
					t.Errorf("%d bytes at %d: %#x, %v", len(b), offset, sum, err)
				}
			}
			if err := h.Reduce(dtype.Float32, dtype.Set, b[:4], b[:4], b[:4]); err == nil {
				t.Error("set is not a reduction")
			}
		})
	}
	all.Wait()
}

// A device that cannot be used gives what it gave out back.
func TestHostFails(t *testing.T) {
	d := ptxtest.New(ptxtest.Options{})
	_, err := newHosted(d, 1)
	require.ErrorIs(t, err, &driver.Error{Result: driver.InvalidDevice})
	d.Fail("cuModuleLoadDataEx", 3, driver.OutOfMemory)
	_, err = newHosted(d, 0)
	require.ErrorIs(t, err, &driver.Error{Result: driver.OutOfMemory})
	require.Equal(t, ptxtest.Counts{}, d.Live())
}

// A device that is too old says so.
func TestTooOld(t *testing.T) {
	d := ptxtest.New(ptxtest.Options{Capability: 50})
	_, err := newHosted(d, 0)
	require.ErrorIs(t, err, &driver.Error{Result: driver.NoBinaryForGPU})
	require.ErrorContains(t, err, "use host tensors")
	require.Equal(t, ptxtest.Counts{}, d.Live())
}
