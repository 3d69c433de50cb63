package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// The tensors of a model are hashed in one pass for each device: with one wait,
// behind one mark for each stream, and one copy of all results.
func TestHashAll(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{Devices: 2}, device.Settings{})
	const n = 300
	var bufs []device.Buffer
	var want []uint32
	var tensors []device.Buffer
	for dev := range 2 {
		all := random(40_000, uint64(dev))
		x := r.tensor(dev, all)
		tensors = append(tensors, x)
		for i := range n / 2 {
			b := x
			b.Ptr, b.Bytes = x.Ptr+uint64(16*i), i*i
			bufs = append(bufs, b)
			want = append(want, digest.SimpleHash(all[16*i:16*i+i*i]))
		}
	}
	_, _, err := r.p.HashAll(t.Context(), bufs[:2]) // loads the kernels
	require.NoError(t, err)
	_, _, err = r.p.HashAll(t.Context(), bufs[n-1:])
	require.NoError(t, err)
	before, launched := r.d.Calls(), r.d.Launches()
	sums, _, err := r.p.HashAll(t.Context(), bufs)
	require.NoError(t, err)
	require.Equal(t, want, sums)
	require.Equal(t, n-2, r.d.Launches()["hash_finish"]-launched["hash_finish"], "two are empty")
	after := r.d.Calls()
	count := func(calls ...string) (n int) {
		for _, c := range calls {
			n += after[c] - before[c]
		}
		return n
	}
	require.Equal(t, 2, count("cuStreamSynchronize", "cuEventSynchronize"))
	require.Equal(t, 2, count("cuMemcpyDtoHAsync_v2"))
	require.Equal(t, 4, count("cuEventRecord"), "marks and ends")
	require.Zero(t, count("cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamCreate", "cuStreamWaitEvent"))
	r.close(tensors...)
}

// More tensors than one copy brings the results of.
func TestHashMany(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{})
	all := random(2*hashBatch+20, 1)
	x := r.tensor(0, all)
	var bufs []device.Buffer
	var want []uint32
	for i := range 2*hashBatch + 1 {
		b := x
		b.Ptr, b.Bytes = x.Ptr+uint64(i), 3
		bufs = append(bufs, b)
		want = append(want, digest.SimpleHash(all[i:i+3]))
	}
	sums, _, err := r.p.HashAll(t.Context(), bufs)
	require.NoError(t, err)
	require.Equal(t, want, sums)
	r.close(x)
}

// An error says which buffer it is about.
func TestHashAllFails(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{})
	x := r.tensor(0, random(500, 1))
	bad := x
	bad.Bytes = 501
	_, failed, err := r.p.HashAll(t.Context(), []device.Buffer{x, {Platform: device.CUDA}, bad, x})
	require.ErrorIs(t, err, errs.InvalidArgument)
	require.Equal(t, 2, failed)
	r.d.Fail("cuLaunchKernel", 4, driver.OutOfMemory) // two for each
	_, failed, err = r.p.HashAll(t.Context(), []device.Buffer{x, x, x})
	require.ErrorIs(t, err, &driver.Error{Result: driver.OutOfMemory})
	require.Equal(t, 1, failed)
	r.close(x)
}
