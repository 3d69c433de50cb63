package ptxtest

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// A capture records what is queued, and ends with a call that conflicts with
// it: of any thread if it is global, unless that thread is relaxed.
func TestCapture(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d := New(Options{})
	ctx, err := d.Retain(0)
	require.NoError(t, err)
	require.NoError(t, d.Push(ctx))
	s, err := d.StreamCreate()
	require.NoError(t, err)
	other, err := d.StreamCreate()
	require.NoError(t, err)
	e, err := d.EventCreate(false)
	require.NoError(t, err)
	p, err := d.Alloc(16)
	require.NoError(t, err)

	capture := func(m driver.CaptureMode, f func()) error {
		require.NoError(t, d.BeginCapture(s, m))
		yes, err := d.StreamCapturing(s)
		require.NoError(t, err)
		require.True(t, yes)
		f()
		return d.EndCapture(s)
	}
	elsewhere := func(m driver.CaptureMode) (err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // and ends with this goroutine
			if _, err = d.ExchangeCaptureMode(m); err == nil {
				_, err = d.Pointer(p)
			}
			_, _ = d.ExchangeCaptureMode(driver.CaptureGlobal)
		}()
		<-done
		return err
	}
	spoiled := &driver.Error{Result: driver.CaptureInvalidated}

	require.NoError(t, capture(driver.CaptureGlobal, func() {
		require.NoError(t, d.Fill(p, 1, 16, s))
		require.NoError(t, d.Fill(p, 2, 16, other))
	}))
	got := make([]byte, 16)
	require.NoError(t, d.StreamSynchronize(s))
	require.NoError(t, d.CopyToHost(got, p, other))
	require.NoError(t, d.StreamSynchronize(other))
	require.EqualValues(t, 2, got[0], "what was recorded is not done")

	for _, c := range []struct {
		capture, thread driver.CaptureMode
		spoils          bool
	}{
		{driver.CaptureGlobal, driver.CaptureGlobal, true},
		{driver.CaptureGlobal, driver.CaptureThreadLocal, false},
		{driver.CaptureGlobal, driver.CaptureRelaxed, false},
		{driver.CaptureThreadLocal, driver.CaptureGlobal, false},
	} {
		var called error
		err := capture(c.capture, func() { called = elsewhere(c.thread) })
		if c.spoils {
			require.ErrorIs(t, called, &driver.Error{Result: driver.CaptureUnsupported})
			require.ErrorIs(t, err, spoiled)
			continue
		}
		require.NoError(t, called)
		require.NoError(t, err)
	}
	require.ErrorIs(t, capture(driver.CaptureThreadLocal, func() {
		_, err := d.HostAlloc(16)
		require.ErrorIs(t, err, &driver.Error{Result: driver.CaptureUnsupported})
	}), spoiled, "of its own thread")

	require.ErrorIs(t, capture(driver.CaptureRelaxed, func() {
		require.NoError(t, d.EventRecord(e, s))
		_, err := d.EventDone(e)
		require.ErrorIs(t, err, &driver.Error{Result: driver.CapturedEvent})
	}), spoiled, "an event inside")
	require.ErrorIs(t, capture(driver.CaptureRelaxed, func() {
		require.NoError(t, d.EventRecord(e, s))
		require.NoError(t, d.StreamWait(other, e))
		yes, err := d.StreamCapturing(other)
		require.NoError(t, err)
		require.True(t, yes)
	}), spoiled, "a stream that joined")
	require.NoError(t, d.StreamSynchronize(other))
}
