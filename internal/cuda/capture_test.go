package cuda

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/device"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// captured calls f while a stream of the trainer is captured, on a thread of
// its own that f does not run on, and returns what became of the capture.
func (r *trainer) captured(mode driver.CaptureMode, f func(s driver.Stream)) (err error) {
	only := r.interpreter()
	begun, over, ended := make(chan driver.Stream), make(chan struct{}), make(chan error)
	go func() {
		var err error
		r.on(0, func() {
			s, serr := r.d.StreamCreate()
			if serr == nil {
				serr = only.BeginCapture(s, mode)
			}
			if serr != nil {
				panic(serr)
			}
			begun <- s
			<-over
			err = only.EndCapture(s)
			if derr := r.d.StreamDestroy(s); derr != nil {
				panic(derr)
			}
		})
		ended <- err // the thread has nothing of the driver's any more
	}()
	f(<-begun)
	close(over)
	return <-ended
}

// A trainer may capture a graph while operations of ours run: neither notices
// the other, whatever the mode of the capture is, and from whichever thread.
func TestTrainerCapturesAGraph(t *testing.T) {
	for _, mode := range []driver.CaptureMode{driver.CaptureGlobal, driver.CaptureThreadLocal} {
		r := newTrainer(t, ptxtest.Options{}, device.Settings{Reduce: "device"})
		only := r.interpreter()
		x := r.tensor(0, random(5000, 1))
		require.NoError(t, r.captured(mode, func(driver.Stream) {
			_, ok := r.p.Identify(x.Ptr) // the driver is opened, the context retained
			require.True(t, ok)
			require.Empty(t, exercise(t, r, x))
		}), "in another thread")

		r.on(0, func() {
			s, err := r.d.StreamCreate()
			require.NoError(t, err)
			require.NoError(t, only.BeginCapture(s, mode))
			_, ok := r.p.Identify(x.Ptr)
			require.True(t, ok)
			require.Empty(t, exercise(t, r, x))
			require.NoError(t, only.EndCapture(s), "in this thread")
			require.NoError(t, r.d.StreamDestroy(s))
		})
		r.close(x)
	}
}

// The thread's mode is what it was, whatever was done on it.
func TestCaptureModeIsLeftAlone(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{})
	x := r.tensor(0, random(5000, 1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, err := r.d.ExchangeCaptureMode(driver.CaptureThreadLocal)
	require.NoError(t, err)
	require.Empty(t, exercise(t, r, x))
	r.d.Fail("cuMemcpyDtoHAsync_v2", 1, driver.OutOfMemory)
	require.NotEmpty(t, exercise(t, r, x))
	_, ok := r.p.Identify(x.Ptr)
	require.True(t, ok)
	r.close(x)
	mode, err := r.d.ExchangeCaptureMode(driver.CaptureGlobal)
	require.NoError(t, err)
	require.Equal(t, driver.CaptureThreadLocal, mode)
}

// What is called inside a capture is refused before anything is queued, and
// says what to do; the capture goes on.
func TestCalledInsideACapture(t *testing.T) {
	r := newTrainer(t, ptxtest.Options{}, device.Settings{})
	x := r.tensor(0, random(5000, 1))
	calls := map[string]func(b device.Buffer) error{
		"check": func(b device.Buffer) error { _, err := r.p.Check(b); return err },
		"hash":  func(b device.Buffer) error { _, err := r.hash(t.Context(), b); return err },
		"read":  func(b device.Buffer) error { _, err := r.p.Read(t.Context(), b); return err },
		"write": func(b device.Buffer) error { _, err := r.p.Write(t.Context(), b); return err },
		"source": func(b device.Buffer) error {
			_, err := r.p.Stage(device.Task{Source: b, Target: x, DType: dtype.Uint8, Op: dtype.Sum})
			return err
		},
		"target": func(b device.Buffer) error {
			_, err := r.p.Stage(device.Task{Source: x, Target: b, DType: dtype.Uint8, Op: dtype.Sum})
			return err
		},
	}
	refused := func(what string, err error) {
		require.ErrorIs(t, err, errs.InvalidArgument, what)
		require.ErrorContains(t, err, "a CUDA graph is being captured", what)
		require.ErrorContains(t, err, "call this before the capture begins or after it has ended", what)
	}
	for what, call := range calls {
		require.NoError(t, r.captured(driver.CaptureGlobal, func(s driver.Stream) {
			b := x
			b.Stream = uint64(s)
			refused(what, call(b))
		}), what)
		r.d.Fail("cuStreamIsCapturing", 1, driver.CaptureImplicit)
		refused(what, call(x))
	}
	require.Empty(t, exercise(t, r, x), "later it works")
	r.close(x)
}
