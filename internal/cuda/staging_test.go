package cuda

import (
	"bytes"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/cuda/cudatest"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// watcher is an operation that does nothing but look.
type watcher struct {
	arrived chan int
	ended   chan error
}

func newWatcher() *watcher { return &watcher{make(chan int, 1000), make(chan error, 1)} }

func (w *watcher) Arrived(n int)   { w.arrived <- n }
func (w *watcher) Ended(err error) { w.ended <- err }

func (w *watcher) until(t testing.TB, n int) {
	for {
		select {
		case k := <-w.arrived:
			if k == n {
				return
			}
		case <-time.After(time.Minute):
			t.Fatal("the source did not arrive")
		}
	}
}

func (w *watcher) end(t testing.TB) error {
	select {
	case err := <-w.ended:
		return err
	case <-time.After(time.Minute):
		t.Fatal("the copies did not end")
		return nil
	}
}

// stage prepares an operation and waits for its memory.
func (r *trainer) stage(t device.Task) *staging {
	s, err := r.p.Stage(t)
	require.NoError(r.t, err)
	<-s.(*staging).ready
	return s.(*staging)
}

// The source arrives in the order that was asked for, behind what the caller
// has queued; results go out as they are put, and back again if the operation
// was in place and is undone.
func TestStaging(t *testing.T) {
	for seed := range uint64(4) {
		for _, inPlace := range []bool{true, false} {
			r := newTrainer(t, ptxtest.Options{Seed: seed}, device.Settings{})
			const n = 10_000
			old, b := random(n, 1), random(n, seed+2)
			src := r.tensor(0, old)
			dst := src
			if !inPlace {
				dst = r.tensor(0, make([]byte, n))
			}
			var stream driver.Stream
			r.on(0, func() { // the trainer's kernel writes the tensor late
				var err error
				stream, err = r.d.StreamCreate()
				require.NoError(t, err)
				require.NoError(t, r.d.CopyToDevice(driver.Ptr(src.Ptr), b, stream))
			})
			src.Stream, dst.Stream = uint64(stream), uint64(stream)
			s := r.stage(device.Task{Source: src, Target: dst, DType: dtype.Uint8, Op: dtype.Sum})
			from, to := s.Memory()
			require.Equal(t, inPlace, &from[0] != &to[0])
			w := newWatcher()
			s.Begin([]device.Range{{From: 7000, To: n}, {From: 0, To: 1500}, {From: 1500, To: 7000}}, w)
			w.until(t, 3000)
			require.True(t, bytes.Equal(b[7000:8000], from[7000:8000]))
			w.until(t, n)
			require.True(t, bytes.Equal(b, from))
			want := random(n, 99)
			copy(to, want)
			var puts sync.WaitGroup
			for at := 0; at < n; at += 2500 {
				puts.Go(func() { s.Put(at, at+2500) })
			}
			puts.Wait()
			require.NoError(t, w.end(t))
			require.True(t, bytes.Equal(want, r.content(dst)))
			require.NoError(t, s.Restore())
			if inPlace {
				require.True(t, bytes.Equal(b, r.content(dst)))
			} else {
				require.True(t, bytes.Equal(want, r.content(dst)))
				require.True(t, bytes.Equal(b, r.content(src)))
			}
			s.Release()
			r.on(0, func() { require.NoError(t, r.d.StreamDestroy(stream)) })
			if !inPlace {
				r.free(dst)
			}
			r.close(src)
		}
	}
}

// Stop ends copies wherever they are; what was put is put back. No wait keeps a
// processor busy, as the driver's for a stream does.
func TestStopAnywhere(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{Seed: 5}, device.Settings{})
	b := random(8000, 1)
	x := r.tensor(0, b)
	for stopAt := -1; stopAt <= 8; stopAt++ {
		before := r.d.Calls()
		s := r.stage(device.Task{Source: x, Target: x, DType: dtype.Uint8, Op: dtype.Sum})
		if stopAt < 0 {
			s.Stop()
		}
		w := newWatcher()
		s.Begin([]device.Range{{From: 0, To: 8000}}, w)
		if stopAt > 0 {
			w.until(t, stopAt*1000)
		}
		_, to := s.Memory()
		if stopAt == 8 {
			copy(to[:5000], make([]byte, 5000))
			s.Put(0, 5000)
		}
		s.Stop()
		s.Stop()
		require.NoError(t, w.end(t))
		require.NoError(t, s.Restore())
		s.Release()
		require.Equal(t, before["cuStreamSynchronize"], r.d.Calls()["cuStreamSynchronize"])
		require.True(t, bytes.Equal(b, r.content(x)), "stopped at %d", stopAt)
	}
	r.close(x)
}

// Pinned memory is bounded: beyond it ordinary memory does, counted; idle
// memory makes room for other sizes, beside the operations.
func TestStagingIsBounded(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{Staging: 64 << 10})
	round := func(n int) {
		b := random(n, 1)
		x := r.tensor(0, b)
		s, err := r.p.Stage(device.Task{Source: x, Target: x, DType: dtype.Uint8, Op: dtype.Sum})
		require.NoError(t, err)
		w := newWatcher()
		s.Begin([]device.Range{{From: 0, To: n}}, w)
		w.until(t, n)
		from, to := s.Memory()
		require.True(t, bytes.Equal(b, from))
		copy(to, from)
		s.Put(0, n)
		require.NoError(t, w.end(t))
		s.Release()
		r.free(x)
		r.p.background.Wait()
	}
	round(20_000)
	require.Zero(t, r.p.Stats().Pageable)
	pageable := func(n int) int { // of an operation, after those before it
		before := r.p.Stats().Pageable
		round(n)
		return int(r.p.Stats().Pageable - before)
	}
	require.Positive(t, pageable(32_000), "the areas are too small")
	round(32_000)
	require.Zero(t, pageable(32_000))
	round(60_000)
	require.Equal(t, 1, pageable(60_000), "two areas of 60 kB")
	st := r.p.Stats()
	require.LessOrEqual(t, st.Pinned, int64(64<<10))
	require.Positive(t, st.Pinned)
	require.Equal(t, st.Pinned, st.Idle)
	require.Equal(t, 2, pageable(100_000))
	require.Equal(t, st.Pinned, r.p.Stats().Pinned, "it would not help")
	r.close()
}

// Sizes in turns, of which the pool holds the largest alone, come to rest: no
// memory is pinned or unpinned any more, and all operations have pinned memory.
// Whatever is given back, no launch waits for it.
func TestSizesInTurns(t *testing.T) {
	const large, small = 1 << 20, 300 << 10
	for _, sizes := range [][]int{{large, small}, {small, large}, {small, small, large}, {small, 2 * small, large}} {
		r := newTrainer(t, ptxtest.Options{}, device.Settings{Staging: 2 * large})
		only := r.interpreter()
		x := r.tensor(0, make([]byte, large))
		turns := func(n int) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for range n {
				for _, size := range sizes {
					y := x
					y.Bytes = size
					stop := only.Watch()
					s, err := r.p.Stage(device.Task{Source: y, Target: y, DType: dtype.Uint8, Op: dtype.Sum})
					calls := stop()
					require.NoError(t, err)
					require.Zero(t, calls["cuMemFreeHost"])
					require.Zero(t, calls["cuMemHostAlloc"])
					<-s.(*staging).ready
					s.Release()
					r.p.background.Wait()
				}
			}
		}
		turns(3)
		before, calls := r.p.Stats(), r.d.Calls()
		turns(20)
		require.Equal(t, before, r.p.Stats(), "%v", sizes)
		for _, call := range []string{"cuMemFreeHost", "cuMemHostAlloc"} {
			require.Equal(t, calls[call], r.d.Calls()[call], "%s of %v", call, sizes)
		}
		r.close(x)
	}
}

// An area serves what is at most half as large while there is room for another.
func TestAreasAreNotWasted(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{Staging: 200 << 10})
	x := r.tensor(0, make([]byte, 128<<10))
	held := func(n int) int {
		y := x
		y.Bytes = n
		s := r.stage(device.Task{Source: y, Target: y, DType: dtype.Uint8, Op: dtype.Sum})
		defer s.Release()
		return len(s.source.whole)
	}
	require.Equal(t, 64<<10, held(64<<10))
	require.Equal(t, 64<<10, held(40<<10), "the next larger one")
	require.Equal(t, 20<<10, held(20<<10), "there is room for one of its own")
	r.close(x)
}

// The bound follows the machine's memory.
func TestUsualLimit(t *testing.T) {
	require.EqualValues(t, 2<<30, limitFor(0))
	require.EqualValues(t, 16<<30, limitFor(128<<30))
	r := newTrainer(t, ptxtest.Options{}, device.Settings{})
	require.NoError(t, r.p.Probe())
	require.Equal(t, limitFor(machineMemory()), r.p.pinned.limit)
	require.NoError(t, r.p.Configure(device.Settings{Staging: 1 << 20}))
	require.EqualValues(t, 1<<20, r.p.pinned.limit)
	r.close()
}

// A launch does not wait for the driver: it asks for the addresses and notes how
// far the stream is. What takes long is done beside it, and ends before the
// platform does; so an operation that ends before it has memory gives it back.
func TestLaunchPath(t *testing.T) {
	for _, how := range []string{"auto", "device"} {
		r := newTrainer(t, ptxtest.Options{}, device.Settings{Reduce: how})
		only := r.interpreter()
		x := r.tensor(0, make([]byte, smallest))
		runtime.LockOSThread()
		for i, inPlace := range []bool{true, true, false} {
			y := x
			if !inPlace {
				y = r.tensor(0, make([]byte, smallest))
			}
			stop := only.Watch()
			s, err := r.p.Stage(device.Task{Source: x, Target: y, DType: dtype.Float32, Op: dtype.Sum})
			calls := stop()
			require.NoError(t, err)
			require.Equal(t, how == "device", s.Reduces())
			if i == 1 {
				<-s.(*staging).ready
			}
			s.Release()
			r.p.background.Wait()
			require.Equal(t, 1, calls["cuEventRecord"], "launch %d", i)
			for _, cheap := range []string{
				"cuPointerGetAttributes", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode",
				"cuStreamIsCapturing", "cuEventRecord",
			} {
				delete(calls, cheap)
			}
			if i == 0 { // of the process
				delete(calls, "cuDeviceGetCount")
				delete(calls, "cuDevicePrimaryCtxRetain")
			}
			if i < 2 { // before it has enough for marks and workbench
				delete(calls, "cuEventCreate")
			}
			require.Empty(t, calls, "launch %d", i)
			if !inPlace {
				r.free(y)
			}
		}
		runtime.UnlockOSThread()
		require.Positive(t, r.d.Calls()["cuMemHostAlloc"])
		require.Positive(t, r.d.Calls()["cuModuleLoadDataEx"])
		require.GreaterOrEqual(t, r.p.Stats().Idle, int64(2*smallest))
		r.close(x)
	}
}

// slow is a driver that pins no memory before it may.
type slow struct {
	cudatest.Device
	gate chan struct{}
}

func (d slow) HostAlloc(n int) ([]byte, error) {
	<-d.gate
	return d.Device.HostAlloc(n)
}

// An operation that is stopped while its memory is allocated ends at once; the
// memory serves the next one.
func TestStopBeforeMemory(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{})
	gate := make(chan struct{})
	r.p = On(slow{r.d, gate}, device.Settings{})
	x := r.tensor(0, make([]byte, 5000))
	s, err := r.p.Stage(device.Task{Source: x, Target: x, DType: dtype.Uint8, Op: dtype.Sum})
	require.NoError(t, err)
	w := newWatcher()
	s.Begin([]device.Range{{From: 0, To: 5000}}, w)
	s.Stop()
	require.NoError(t, w.end(t))
	s.Release()
	require.Empty(t, w.arrived)
	close(gate)
	r.p.background.Wait()
	require.Positive(t, r.p.Stats().Idle)
	require.Equal(t, r.p.Stats().Pinned, r.p.Stats().Idle)
	r.close(x)
}
