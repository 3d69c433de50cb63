package cuda

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// Reducing on the device gives the bits of the processor, whatever the type,
// the operation, the cut and the number of those who do it at once, in pinned
// memory and in ordinary one.
func TestReduceOnDevice(t *testing.T) {
	generic, _, err := backend.Select("cpu_generic")
	require.NoError(t, err)
	for _, staging := range []int64{0, 1} { // no memory can be pinned within 1 byte
		reduceAll(t, generic, device.Settings{Reduce: "device", Staging: staging})
	}
}

func reduceAll(t *testing.T, generic backend.Backend, settings device.Settings) {
	r := newTrainer(t, ptxtest.Options{}, settings)
	for dt := range dtype.Type(dtype.NumTypes) {
		for _, how := range []dtype.Op{dtype.Sum, dtype.Avg, dtype.Max} {
			n := 400 * dt.Size()
			a, b := random(n, 1), random(n, 2)
			x, y := r.tensor(0, a), r.tensor(0, make([]byte, n))
			s := r.stage(device.Task{Source: x, Target: y, DType: dt, Op: how})
			require.True(t, s.Reduces())
			world := 0
			if how == dtype.Avg {
				world = 3
			}
			_, got := s.Memory()
			var both sync.WaitGroup
			for _, cut := range [][2]int{{0, 13}, {13, 400}} {
				from, to := cut[0]*dt.Size(), cut[1]*dt.Size()
				both.Go(func() { require.NoError(t, s.Reduce(from, to, b[from:to], world)) })
			}
			both.Wait()
			want := make([]byte, n)
			generic.Reduce(dt, how, want, a, b)
			if world > 0 {
				generic.Finalize(dt, want, world)
			}
			require.True(t, bytes.Equal(want, got), "%v %v", how, dt)
			s.Release()
			r.free(x, y)
		}
	}
	odd := r.tensor(0, make([]byte, 64))
	odd.Ptr, odd.Bytes = odd.Ptr+1, 32
	s, err := r.p.Stage(device.Task{Source: odd, Target: odd, DType: dtype.Float32, Op: dtype.Sum})
	require.NoError(t, err)
	require.False(t, s.Reduces(), "kernels read whole elements")
	s.Release()
	odd.Ptr--
	r.close(odd)
}

// Pinned memory is read and written by the kernels: a piece is one launch, and
// nothing is copied.
func TestReduceInPinnedMemory(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{Reduce: "device"})
	const n = 4000
	x := r.tensor(0, make([]byte, n))
	s := r.stage(device.Task{Source: x, Target: x, DType: dtype.Float32, Op: dtype.Sum})
	in := make([]byte, n)
	require.NoError(t, s.Reduce(0, n, in, 0))
	before, launched := r.d.Calls(), r.d.Launches()
	require.NoError(t, s.Reduce(0, n, in, 0))
	after := r.d.Calls()
	require.Equal(t, 5, after["cuLaunchKernel"]-before["cuLaunchKernel"], "pieces of 960 bytes")
	require.Equal(t, 5, r.d.Launches()["reduce_sum_float32"]-launched["reduce_sum_float32"])
	for _, call := range []string{"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemAlloc_v2"} {
		require.Equal(t, before[call], after[call], call)
	}
	s.Release()
	r.close(x)
}

// looking is a backend that looks at the memory that it gets.
type looking struct {
	backend.Backend
	seen func(dst, a, b []byte)
}

func (l looking) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) {
	l.seen(dst, a, b)
	l.Backend.Reduce(t, op, dst, a, b)
}

// The trial begins each run with caches that hold something else.
func TestTrialIsCold(t *testing.T) {
	generic, _, err := backend.Select("cpu_generic")
	require.NoError(t, err)
	r := newTrainer(t, ptxtest.Options{}, device.Settings{})
	r.p.pieces = benchBytes
	require.NoError(t, r.p.Probe())
	d, err := r.p.device(0)
	require.NoError(t, err)
	chilled, runs := 0, 0
	d.p.chilled = func(b []byte) {
		require.GreaterOrEqual(t, len(b), 32<<20)
		chilled++
	}
	_, _, err = d.compare(looking{generic, func(dst, a, b []byte) {
		runs++
		require.Equal(t, 2*runs, chilled, "before the device's run and the host's")
		for _, m := range [][]byte{dst, a, b} {
			require.Len(t, m, trialBytes)
		}
	}})
	require.NoError(t, err)
	require.Equal(t, trialRuns, runs)
	r.close()
}

// Auto tries both once, for operations that are large enough, and says what
// it chose; a trial that fails leaves it at the host.
func TestWhereToReduce(t *testing.T) {
	for _, fails := range []bool{false, true} {
		var log bytes.Buffer
		r := newTrainer(t, ptxtest.Options{}, device.Settings{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		r.p.pieces = benchBytes
		require.NoError(t, r.p.Probe())
		d, err := r.p.device(0)
		require.NoError(t, err)
		require.False(t, r.p.onDevice(d, smallest-1))
		require.Zero(t, log.Len())
		if fails {
			r.d.Fail("cuLaunchKernel", 1, driver.OutOfMemory)
		}
		require.False(t, r.p.onDevice(d, smallest), "not known yet")
		r.p.background.Wait()
		chosen := r.p.onDevice(d, smallest)
		r.p.background.Wait()
		require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
		require.Contains(t, log.String(), "where all-reduces of device memory are reduced")
		if fails {
			require.False(t, chosen)
			require.Contains(t, log.String(), "CUDA_ERROR_OUT_OF_MEMORY")
		}
		for how, want := range map[string]bool{"host": false, "device": true} {
			require.NoError(t, r.p.Configure(device.Settings{Reduce: how}))
			require.Equal(t, want, r.p.onDevice(d, 1))
		}
		r.close()
	}
}
