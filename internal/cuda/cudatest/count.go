package cudatest

import (
	"maps"
	"sync"
	"time"

	"github.com/gopccl/gopccl/internal/cuda/driver"
	"github.com/gopccl/gopccl/internal/cuda/ptxtest"
)

// counted is a driver whose calls are counted, and fail on demand. A permanent
// failure is made up: every later call that needs a context fails the same way,
// and the device itself is unharmed.
type counted struct {
	driver.Driver

	mu    sync.Mutex
	calls map[string]int
	fails []failure
	lost  driver.Result // Success: it is not
	live  ptxtest.Counts
	bytes map[driver.Ptr]uint64

	kernels  map[driver.Function]string
	launches map[string]int

	toHost, toDevice int // bytes of copies
}

type failure struct {
	call   string
	nth    int
	result driver.Result
}

func count(d driver.Driver) *counted {
	return &counted{
		Driver: d, calls: map[string]int{}, bytes: map[driver.Ptr]uint64{},
		kernels: map[driver.Function]string{}, launches: map[string]int{},
	}
}

// Live implements Device.
func (c *counted) Live() ptxtest.Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live
}

// Calls implements Device.
func (c *counted) Calls() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

// Fail implements Device.
func (c *counted) Fail(call string, nth int, r driver.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = append(c.fails, failure{call, max(nth, 1), r})
}

// Launches implements Device.
func (c *counted) Launches() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.launches)
}

// enter counts a call and returns what it has to fail with. context says that
// it needs one.
func (c *counted) enter(call string, context bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[call]++
	for i := range c.fails {
		f := &c.fails[i]
		if f.call != call {
			continue
		}
		if f.nth--; f.nth > 0 {
			continue
		}
		r := f.result
		c.fails = append(c.fails[:i], c.fails[i+1:]...)
		if r.Sticky() && c.live.Pushed > 0 {
			c.lost = r
		}
		return &driver.Error{Call: call, Device: -1, Result: r, Detail: "injected"}
	}
	if context && c.lost != driver.Success {
		return &driver.Error{Call: call, Device: -1, Result: c.lost, Detail: "injected"}
	}
	return nil
}

// note changes what is out, if the call succeeded.
func (c *counted) note(err error, f func(n *ptxtest.Counts)) {
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		f(&c.live)
	}
}

// end is what a call returns that gives something back: it does so in any case.
func (c *counted) end(failed, err error, f func(n *ptxtest.Counts)) error {
	c.note(err, f)
	if failed != nil {
		return failed
	}
	return err
}

// do is a call that leaves nothing behind.
func (c *counted) do(call string, f func() error) error {
	if err := c.enter(call, true); err != nil {
		return err
	}
	return f()
}

// wait is a call that waits, also if it was asked to fail.
func (c *counted) wait(call string, f func() error) error {
	failed := c.enter(call, true)
	err := f()
	if failed != nil {
		return failed
	}
	return err
}

// Version implements driver.Driver.
func (c *counted) Version() (int, error) {
	if err := c.enter("cuDriverGetVersion", false); err != nil {
		return 0, err
	}
	return c.Driver.Version()
}

// Devices implements driver.Driver.
func (c *counted) Devices() (int, error) {
	if err := c.enter("cuDeviceGetCount", false); err != nil {
		return 0, err
	}
	return c.Driver.Devices()
}

// DeviceAttribute implements driver.Driver.
func (c *counted) DeviceAttribute(a driver.Attribute, device int) (int, error) {
	if err := c.enter("cuDeviceGetAttribute", false); err != nil {
		return 0, err
	}
	return c.Driver.DeviceAttribute(a, device)
}

// Retain implements driver.Driver.
func (c *counted) Retain(device int) (driver.Context, error) {
	if err := c.enter("cuDevicePrimaryCtxRetain", false); err != nil {
		return 0, err
	}
	x, err := c.Driver.Retain(device)
	c.note(err, func(n *ptxtest.Counts) { n.Retained++ })
	return x, err
}

// Release implements driver.Driver.
func (c *counted) Release(device int) error {
	failed := c.enter("cuDevicePrimaryCtxRelease_v2", false)
	return c.end(failed, c.Driver.Release(device), func(n *ptxtest.Counts) { n.Retained-- })
}

// Push implements driver.Driver.
func (c *counted) Push(x driver.Context) error {
	if err := c.enter("cuCtxPushCurrent_v2", false); err != nil {
		return err
	}
	err := c.Driver.Push(x)
	c.note(err, func(n *ptxtest.Counts) { n.Pushed++ })
	return err
}

// Pop implements driver.Driver.
func (c *counted) Pop() (driver.Context, error) {
	if err := c.enter("cuCtxPopCurrent_v2", false); err != nil {
		return 0, err
	}
	x, err := c.Driver.Pop()
	c.note(err, func(n *ptxtest.Counts) { n.Pushed-- })
	return x, err
}

// ExchangeCaptureMode implements driver.Driver.
func (c *counted) ExchangeCaptureMode(m driver.CaptureMode) (driver.CaptureMode, error) {
	if err := c.enter("cuThreadExchangeStreamCaptureMode", false); err != nil {
		return 0, err
	}
	return c.Driver.ExchangeCaptureMode(m)
}

// StreamCapturing implements driver.Driver.
func (c *counted) StreamCapturing(s driver.Stream) (yes bool, err error) {
	err = c.do("cuStreamIsCapturing", func() (err error) { yes, err = c.Driver.StreamCapturing(s); return err })
	return yes, err
}

// ModuleLoad implements driver.Driver.
func (c *counted) ModuleLoad(ptx []byte) (driver.Module, string, error) {
	if err := c.enter("cuModuleLoadDataEx", true); err != nil {
		return 0, "", err
	}
	m, log, err := c.Driver.ModuleLoad(ptx)
	c.note(err, func(n *ptxtest.Counts) { n.Modules++ })
	return m, log, err
}

// ModuleUnload implements driver.Driver.
func (c *counted) ModuleUnload(m driver.Module) error {
	failed := c.enter("cuModuleUnload", true)
	return c.end(failed, c.Driver.ModuleUnload(m), func(n *ptxtest.Counts) { n.Modules-- })
}

// Function implements driver.Driver.
func (c *counted) Function(m driver.Module, name string) (f driver.Function, err error) {
	err = c.do("cuModuleGetFunction", func() (err error) { f, err = c.Driver.Function(m, name); return err })
	c.note(err, func(*ptxtest.Counts) { c.kernels[f] = name })
	return f, err
}

// Launch implements driver.Driver.
func (c *counted) Launch(f driver.Function, grid, block driver.Dim, shared uint32, s driver.Stream, args []byte) error {
	err := c.do("cuLaunchKernel", func() error { return c.Driver.Launch(f, grid, block, shared, s, args) })
	c.note(err, func(*ptxtest.Counts) { c.launches[c.kernels[f]]++ })
	return err
}

// MemInfo implements driver.Driver.
func (c *counted) MemInfo() (free, total uint64, err error) {
	err = c.do("cuMemGetInfo_v2", func() (err error) { free, total, err = c.Driver.MemInfo(); return err })
	return free, total, err
}

// Alloc implements driver.Driver.
func (c *counted) Alloc(size uint64) (driver.Ptr, error) {
	if err := c.enter("cuMemAlloc_v2", true); err != nil {
		return 0, err
	}
	p, err := c.Driver.Alloc(size)
	c.note(err, func(n *ptxtest.Counts) {
		n.Allocations++
		n.Bytes += size
		c.bytes[p] = size
	})
	return p, err
}

// Free implements driver.Driver.
func (c *counted) Free(p driver.Ptr) error {
	failed := c.enter("cuMemFree_v2", true)
	return c.end(failed, c.Driver.Free(p), func(n *ptxtest.Counts) {
		n.Allocations--
		n.Bytes -= c.bytes[p]
		delete(c.bytes, p)
	})
}

// HostAlloc implements driver.Driver.
func (c *counted) HostAlloc(size int) ([]byte, error) {
	if err := c.enter("cuMemHostAlloc", true); err != nil {
		return nil, err
	}
	b, err := c.Driver.HostAlloc(size)
	c.note(err, func(n *ptxtest.Counts) {
		n.Host++
		n.HostBytes += uint64(size)
	})
	return b, err
}

// HostFree implements driver.Driver.
func (c *counted) HostFree(b []byte) error {
	failed := c.enter("cuMemFreeHost", true)
	return c.end(failed, c.Driver.HostFree(b), func(n *ptxtest.Counts) {
		n.Host--
		n.HostBytes -= uint64(len(b))
	})
}

// Pointer implements driver.Driver.
func (c *counted) Pointer(p driver.Ptr) (driver.Pointer, error) {
	if err := c.enter("cuPointerGetAttributes", false); err != nil {
		return driver.Pointer{}, err
	}
	return c.Driver.Pointer(p)
}

// Copied implements Device.
func (c *counted) Copied() (toHost, toDevice int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.toHost, c.toDevice
}

// CopyToDevice implements driver.Driver.
func (c *counted) CopyToDevice(dst driver.Ptr, src []byte, s driver.Stream) error {
	err := c.do("cuMemcpyHtoDAsync_v2", func() error { return c.Driver.CopyToDevice(dst, src, s) })
	c.note(err, func(*ptxtest.Counts) { c.toDevice += len(src) })
	return err
}

// CopyToHost implements driver.Driver.
func (c *counted) CopyToHost(dst []byte, src driver.Ptr, s driver.Stream) error {
	err := c.do("cuMemcpyDtoHAsync_v2", func() error { return c.Driver.CopyToHost(dst, src, s) })
	c.note(err, func(*ptxtest.Counts) { c.toHost += len(dst) })
	return err
}

// CopyOnDevice implements driver.Driver.
func (c *counted) CopyOnDevice(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	return c.do("cuMemcpyDtoDAsync_v2", func() error { return c.Driver.CopyOnDevice(dst, src, n, s) })
}

// Fill implements driver.Driver.
func (c *counted) Fill(dst driver.Ptr, value byte, n uint64, s driver.Stream) error {
	return c.do("cuMemsetD8Async", func() error { return c.Driver.Fill(dst, value, n, s) })
}

// StreamCreate implements driver.Driver.
func (c *counted) StreamCreate() (driver.Stream, error) {
	if err := c.enter("cuStreamCreate", true); err != nil {
		return 0, err
	}
	s, err := c.Driver.StreamCreate()
	c.note(err, func(n *ptxtest.Counts) { n.Streams++ })
	return s, err
}

// StreamDestroy implements driver.Driver.
func (c *counted) StreamDestroy(s driver.Stream) error {
	failed := c.enter("cuStreamDestroy_v2", true)
	return c.end(failed, c.Driver.StreamDestroy(s), func(n *ptxtest.Counts) { n.Streams-- })
}

// StreamSynchronize implements driver.Driver.
func (c *counted) StreamSynchronize(s driver.Stream) error {
	return c.wait("cuStreamSynchronize", func() error { return c.Driver.StreamSynchronize(s) })
}

// StreamWait implements driver.Driver.
func (c *counted) StreamWait(s driver.Stream, e driver.Event) error {
	return c.do("cuStreamWaitEvent", func() error { return c.Driver.StreamWait(s, e) })
}

// EventCreate implements driver.Driver.
func (c *counted) EventCreate(timing bool) (driver.Event, error) {
	if err := c.enter("cuEventCreate", true); err != nil {
		return 0, err
	}
	e, err := c.Driver.EventCreate(timing)
	c.note(err, func(n *ptxtest.Counts) { n.Events++ })
	return e, err
}

// EventDestroy implements driver.Driver.
func (c *counted) EventDestroy(e driver.Event) error {
	failed := c.enter("cuEventDestroy_v2", true)
	return c.end(failed, c.Driver.EventDestroy(e), func(n *ptxtest.Counts) { n.Events-- })
}

// EventRecord implements driver.Driver.
func (c *counted) EventRecord(e driver.Event, s driver.Stream) error {
	return c.do("cuEventRecord", func() error { return c.Driver.EventRecord(e, s) })
}

// EventDone implements driver.Driver.
func (c *counted) EventDone(e driver.Event) (done bool, err error) {
	err = c.do("cuEventQuery", func() (err error) { done, err = c.Driver.EventDone(e); return err })
	return done, err
}

// EventSynchronize implements driver.Driver.
func (c *counted) EventSynchronize(e driver.Event) error {
	return c.wait("cuEventSynchronize", func() error { return c.Driver.EventSynchronize(e) })
}

// Elapsed implements driver.Driver.
func (c *counted) Elapsed(from, to driver.Event) (d time.Duration, err error) {
	err = c.do("cuEventElapsedTime", func() (err error) { d, err = c.Driver.Elapsed(from, to); return err })
	return d, err
}
