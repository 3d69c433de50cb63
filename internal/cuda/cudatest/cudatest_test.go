package cudatest

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// What is out is counted as the interpreter counts it itself, and a call fails
// when it was asked to; a permanent failure is that of all later ones, but what
// is given back is given back.
func TestCounted(t *testing.T) {
	inner := ptxtest.New(ptxtest.Options{})
	d := count(inner)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	x, err := d.Retain(0)
	require.NoError(t, err)
	require.NoError(t, d.Push(x))
	p, err := d.Alloc(1000)
	require.NoError(t, err)
	b, err := d.HostAlloc(5000)
	require.NoError(t, err)
	s, err := d.StreamCreate()
	require.NoError(t, err)
	e, err := d.EventCreate(true)
	require.NoError(t, err)
	require.NoError(t, d.CopyToDevice(p, b[:1000], s))
	require.NoError(t, d.EventRecord(e, s))
	require.Equal(t, inner.Live(), d.Live())
	require.Equal(t, ptxtest.Counts{Allocations: 1, Bytes: 1000, Host: 1, HostBytes: 5000, Streams: 1, Events: 1, Retained: 1, Pushed: 1}, d.Live())

	d.Fail("cuEventSynchronize", 2, driver.OutOfMemory)
	require.NoError(t, d.EventSynchronize(e))
	require.ErrorIs(t, d.EventSynchronize(e), &driver.Error{Call: "cuEventSynchronize", Result: driver.OutOfMemory})
	require.NoError(t, d.EventSynchronize(e))
	require.Equal(t, inner.Calls(), d.Calls())

	d.Fail("cuEventQuery", 1, driver.LaunchFailed)
	for range 2 {
		_, err = d.EventDone(e)
		require.ErrorIs(t, err, &driver.Error{Result: driver.LaunchFailed})
	}
	_, err = d.Alloc(1)
	require.ErrorIs(t, err, &driver.Error{Result: driver.LaunchFailed})
	for _, err := range []error{d.Free(p), d.HostFree(b), d.StreamDestroy(s), d.EventDestroy(e)} {
		require.ErrorIs(t, err, &driver.Error{Result: driver.LaunchFailed})
	}
	_, err = d.Pop()
	require.NoError(t, err)
	require.NoError(t, d.Release(0))
	require.Equal(t, ptxtest.Counts{}, d.Live())
	require.Equal(t, ptxtest.Counts{}, inner.Live())
}

// Without a driver the tests say that they cannot run on one.
func TestNoDriver(t *testing.T) {
	if _, err := system(); err == nil {
		return // there is one
	}
	t.Setenv(Variable, "1")
	f := &fatal{TB: t}
	func() {
		defer func() { _ = recover() }()
		Open(f, ptxtest.Options{})
	}()
	require.True(t, f.failed)
}

// fatal is a test that may fail.
type fatal struct {
	testing.TB
	failed bool
}

func (f *fatal) Fatalf(string, ...any) {
	f.failed = true
	panic("failed")
}
