//go:build !nocuda && (linux || windows) && (amd64 || arm64)

package libcuda

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// ptr is the address of a variable that the driver reads or writes.
func ptr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// Version implements driver.Driver.
func (d *Driver) Version() (int, error) {
	v := new(int32)
	err := d.call(cuDriverGetVersion, none, uintptr(unsafe.Pointer(v)))
	return int(*v), err
}

// Devices implements driver.Driver.
func (d *Driver) Devices() (int, error) {
	n := new(int32)
	err := d.call(cuDeviceGetCount, none, uintptr(unsafe.Pointer(n)))
	return int(*n), err
}

// handle returns the CUdevice of an ordinal.
func (d *Driver) handle(device int) (uintptr, error) {
	h := new(int32)
	err := d.call(cuDeviceGet, device, uintptr(unsafe.Pointer(h)), uintptr(device))
	return uintptr(*h), err
}

// DeviceName implements driver.Driver.
func (d *Driver) DeviceName(device int) (string, error) {
	h, err := d.handle(device)
	if err != nil {
		return "", err
	}
	name := new([256]byte)
	if err := d.call(cuDeviceGetName, device, uintptr(unsafe.Pointer(name)), uintptr(len(name)-1), h); err != nil {
		return "", err
	}
	return text(name[:]), nil
}

// text is a C string.
func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// DeviceAttribute implements driver.Driver.
func (d *Driver) DeviceAttribute(a driver.Attribute, device int) (int, error) {
	h, err := d.handle(device)
	if err != nil {
		return 0, err
	}
	v := new(int32)
	err = d.call(cuDeviceGetAttribute, device, uintptr(unsafe.Pointer(v)), uintptr(a), h)
	return int(*v), err
}

// Retain implements driver.Driver.
func (d *Driver) Retain(device int) (driver.Context, error) {
	h, err := d.handle(device)
	if err != nil {
		return 0, err
	}
	c := new(driver.Context)
	err = d.call(cuDevicePrimaryCtxRetain, device, uintptr(unsafe.Pointer(c)), h)
	return *c, err
}

// Release implements driver.Driver.
func (d *Driver) Release(device int) error {
	h, err := d.handle(device)
	if err != nil {
		return err
	}
	return d.call(cuDevicePrimaryCtxRelease, device, h)
}

// Push implements driver.Driver.
func (d *Driver) Push(c driver.Context) error { return d.call(cuCtxPushCurrent, none, uintptr(c)) }

// Pop implements driver.Driver.
func (d *Driver) Pop() (driver.Context, error) {
	c := new(driver.Context)
	err := d.call(cuCtxPopCurrent, none, uintptr(unsafe.Pointer(c)))
	return *c, err
}

// Current implements driver.Driver.
func (d *Driver) Current() (driver.Context, error) {
	c := new(driver.Context)
	err := d.call(cuCtxGetCurrent, none, uintptr(unsafe.Pointer(c)))
	return *c, err
}

// ExchangeCaptureMode implements driver.Driver.
func (d *Driver) ExchangeCaptureMode(m driver.CaptureMode) (driver.CaptureMode, error) {
	mode := new(uint32)
	*mode = uint32(m)
	err := d.call(cuThreadExchangeStreamCaptureMode, none, uintptr(unsafe.Pointer(mode)))
	return driver.CaptureMode(*mode), err
}

// device is that of the current context, for errors. Of a lost context nothing
// can be asked.
func (d *Driver) device() int {
	v := new(int32)
	if d.call(cuCtxGetDevice, none, uintptr(unsafe.Pointer(v))) != nil {
		return none
	}
	return int(*v)
}

// here makes an error one of the current context's device.
func (d *Driver) here(err error, detail string) error {
	var e *driver.Error
	if errors.As(err, &e) {
		e.Device, e.Detail = d.device(), detail
	}
	return err
}

// Options of the compiler (CUjit_option).
const (
	jitErrorLog     = 5
	jitErrorLogSize = 6
)

// loading is what a compilation writes to; the driver gets its addresses.
type loading struct {
	options [2]uint32
	values  [2]uintptr
	log     [4096]byte
	module  driver.Module
}

// ModuleLoad implements driver.Driver.
func (d *Driver) ModuleLoad(ptx []byte) (driver.Module, string, error) {
	image := append(append(make([]byte, 0, len(ptx)+1), ptx...), 0)
	l := &loading{options: [2]uint32{jitErrorLog, jitErrorLogSize}}
	l.values = [2]uintptr{ptr(&l.log), uintptr(len(l.log) - 1)}
	err := d.call(cuModuleLoadDataEx, none, uintptr(unsafe.Pointer(&l.module)), uintptr(unsafe.Pointer(unsafe.SliceData(image))),
		uintptr(len(l.options)), uintptr(unsafe.Pointer(&l.options)), uintptr(unsafe.Pointer(&l.values)))
	if err != nil {
		return 0, text(l.log[:]), d.here(err, "")
	}
	return l.module, "", nil
}

// ModuleUnload implements driver.Driver.
func (d *Driver) ModuleUnload(m driver.Module) error {
	return d.here(d.call(cuModuleUnload, none, uintptr(m)), "")
}

// Function implements driver.Driver.
func (d *Driver) Function(m driver.Module, name string) (driver.Function, error) {
	f, s := new(driver.Function), append([]byte(name), 0)
	err := d.call(cuModuleGetFunction, none, uintptr(unsafe.Pointer(f)), uintptr(m), uintptr(unsafe.Pointer(unsafe.SliceData(s))))
	return *f, d.here(err, name)
}

// Ends and parts of the list of a launch (CU_LAUNCH_PARAM_...).
const (
	launchEnd    = 0
	launchBuffer = 1
	launchSize   = 2
)

// launch holds the parameters of a kernel; the driver copies them in the call.
type launch struct {
	extra [5]uintptr
	size  uintptr
	args  [256]byte
}

// Launch implements driver.Driver.
func (d *Driver) Launch(f driver.Function, grid, block driver.Dim, shared uint32, s driver.Stream, args []byte) error {
	l := new(launch)
	if len(args) > len(l.args) {
		return &driver.Error{Call: cuLaunchKernel.name(), Device: none, Result: driver.InvalidValue, Detail: fmt.Sprintf("%d bytes of parameters", len(args))}
	}
	copy(l.args[:], args)
	l.size = uintptr(len(args))
	l.extra = [5]uintptr{launchBuffer, ptr(&l.args), launchSize, ptr(&l.size), launchEnd}
	err := d.call(cuLaunchKernel, none, uintptr(f), uintptr(grid.X), uintptr(grid.Y), uintptr(grid.Z),
		uintptr(block.X), uintptr(block.Y), uintptr(block.Z), uintptr(shared), uintptr(s), 0, uintptr(unsafe.Pointer(&l.extra)))
	runtime.KeepAlive(l)
	if err == nil {
		return nil
	}
	return d.here(err, fmt.Sprintf("grid %v, block %v", grid, block))
}

// MemInfo implements driver.Driver.
func (d *Driver) MemInfo() (free, total uint64, err error) {
	v := new([2]uint64)
	err = d.call(cuMemGetInfo, none, uintptr(unsafe.Pointer(&v[0])), uintptr(unsafe.Pointer(&v[1])))
	return v[0], v[1], d.here(err, "")
}

// Alloc implements driver.Driver.
func (d *Driver) Alloc(n uint64) (driver.Ptr, error) {
	p := new(driver.Ptr)
	err := d.call(cuMemAlloc, none, uintptr(unsafe.Pointer(p)), uintptr(n))
	if err != nil {
		return 0, d.here(err, fmt.Sprintf("%d bytes", n))
	}
	return *p, nil
}

// Free implements driver.Driver.
func (d *Driver) Free(p driver.Ptr) error { return d.here(d.call(cuMemFree, none, uintptr(p)), "") }

// hostPortable: usable from every context (CU_MEMHOSTALLOC_PORTABLE).
const hostPortable = 1

// HostAlloc implements driver.Driver.
func (d *Driver) HostAlloc(n int) ([]byte, error) {
	p := new(unsafe.Pointer)
	if err := d.call(cuMemHostAlloc, none, uintptr(unsafe.Pointer(p)), uintptr(n), hostPortable); err != nil {
		return nil, d.here(err, fmt.Sprintf("%d bytes of pinned memory", n))
	}
	return unsafe.Slice((*byte)(*p), n), nil
}

// HostFree implements driver.Driver.
func (d *Driver) HostFree(b []byte) error {
	return d.here(d.call(cuMemFreeHost, none, address(b)), "")
}

// Attributes of an address (CUpointer_attribute) and kinds of memory (CUmemorytype).
const (
	ofContext = 1
	ofKind    = 2
	ofManaged = 8
	ofDevice  = 9
	ofBase    = 11
	ofSize    = 12

	kindHost    = 1
	kindDevice  = 2
	kindUnified = 4
)

// knowledge is what the driver writes about an address.
type knowledge struct {
	asked   [6]uint32
	answers [6]uintptr
	context driver.Context
	base    uint64
	size    uint64
	kind    uint32
	device  int32
	managed uint32
}

// Pointer implements driver.Driver.
func (d *Driver) Pointer(p driver.Ptr) (driver.Pointer, error) {
	k := &knowledge{asked: [6]uint32{ofContext, ofKind, ofManaged, ofDevice, ofBase, ofSize}}
	k.answers = [6]uintptr{ptr(&k.context), ptr(&k.kind), ptr(&k.managed), ptr(&k.device), ptr(&k.base), ptr(&k.size)}
	err := d.call(cuPointerGetAttributes, none, uintptr(len(k.asked)), uintptr(unsafe.Pointer(&k.asked)),
		uintptr(unsafe.Pointer(&k.answers)), uintptr(p))
	runtime.KeepAlive(k)
	if err != nil {
		return driver.Pointer{}, err
	}
	known := driver.Pointer{Context: k.context, Base: driver.Ptr(k.base), Bytes: k.size, Device: int(k.device)}
	switch {
	case k.managed&0xff != 0 || k.kind == kindUnified:
		known.Kind = driver.Managed
		if k.device < 0 {
			known.Device = d.deviceOf(k.context)
		}
	case k.kind == kindDevice:
		known.Kind = driver.Device
	case k.kind == kindHost:
		known.Kind = driver.Host
	default:
		return driver.Pointer{}, nil
	}
	return known, nil
}

// deviceOf is the device of a context. Managed memory that prefers the host has
// none of its own; that of the context it was allocated in can use it.
func (d *Driver) deviceOf(c driver.Context) int {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if c == 0 || d.Push(c) != nil {
		return none
	}
	device := d.device()
	if _, err := d.Pop(); err != nil {
		return none
	}
	return device
}

// CopyToDevice implements driver.Driver.
func (d *Driver) CopyToDevice(dst driver.Ptr, src []byte, s driver.Stream) error {
	err := d.call(cuMemcpyHtoDAsync, none, uintptr(dst), uintptr(unsafe.Pointer(unsafe.SliceData(src))), uintptr(len(src)), uintptr(s))
	return d.copied(err, dst, uint64(len(src)))
}

// CopyToHost implements driver.Driver.
func (d *Driver) CopyToHost(dst []byte, src driver.Ptr, s driver.Stream) error {
	err := d.call(cuMemcpyDtoHAsync, none, uintptr(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(src), uintptr(len(dst)), uintptr(s))
	return d.copied(err, src, uint64(len(dst)))
}

// CopyOnDevice implements driver.Driver.
func (d *Driver) CopyOnDevice(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	return d.copied(d.call(cuMemcpyDtoDAsync, none, uintptr(dst), uintptr(src), uintptr(n), uintptr(s)), dst, n)
}

// Fill implements driver.Driver.
func (d *Driver) Fill(dst driver.Ptr, value byte, n uint64, s driver.Stream) error {
	return d.copied(d.call(cuMemsetD8Async, none, uintptr(dst), uintptr(value), uintptr(n), uintptr(s)), dst, n)
}

func (d *Driver) copied(err error, p driver.Ptr, n uint64) error {
	if err == nil {
		return nil
	}
	return d.here(err, fmt.Sprintf("%d bytes at %#x", n, uint64(p)))
}

// streamNonBlocking: does not wait for the legacy default stream.
const streamNonBlocking = 1

// StreamCreate implements driver.Driver.
func (d *Driver) StreamCreate() (driver.Stream, error) {
	s := new(driver.Stream)
	err := d.call(cuStreamCreate, none, uintptr(unsafe.Pointer(s)), streamNonBlocking)
	return *s, d.here(err, "")
}

// StreamDestroy implements driver.Driver.
func (d *Driver) StreamDestroy(s driver.Stream) error {
	return d.here(d.call(cuStreamDestroy, none, uintptr(s)), "")
}

// StreamSynchronize implements driver.Driver.
func (d *Driver) StreamSynchronize(s driver.Stream) error {
	return d.here(d.call(cuStreamSynchronize, none, uintptr(s)), "")
}

// StreamWait implements driver.Driver.
func (d *Driver) StreamWait(s driver.Stream, e driver.Event) error {
	return d.here(d.call(cuStreamWaitEvent, none, uintptr(s), uintptr(e), 0), "")
}

// StreamCapturing implements driver.Driver. A capture that has failed and has
// not been ended is one, too.
func (d *Driver) StreamCapturing(s driver.Stream) (bool, error) {
	status := new(uint32)
	err := d.call(cuStreamIsCapturing, none, uintptr(s), uintptr(unsafe.Pointer(status)))
	return *status != 0, d.here(err, "")
}

// Flags of an event: a thread that waits for it sleeps, and it has no time.
const (
	eventBlocking = 1
	eventNoTiming = 2
)

// EventCreate implements driver.Driver.
func (d *Driver) EventCreate(timing bool) (driver.Event, error) {
	e, flags := new(driver.Event), uintptr(eventBlocking|eventNoTiming)
	if timing {
		flags = eventBlocking
	}
	err := d.call(cuEventCreate, none, uintptr(unsafe.Pointer(e)), flags)
	return *e, d.here(err, "")
}

// EventDestroy implements driver.Driver.
func (d *Driver) EventDestroy(e driver.Event) error {
	return d.here(d.call(cuEventDestroy, none, uintptr(e)), "")
}

// EventRecord implements driver.Driver.
func (d *Driver) EventRecord(e driver.Event, s driver.Stream) error {
	return d.here(d.call(cuEventRecord, none, uintptr(e), uintptr(s)), "")
}

// EventDone implements driver.Driver.
func (d *Driver) EventDone(e driver.Event) (bool, error) {
	r, _, _ := purego.SyscallN(d.fn[cuEventQuery], uintptr(e))
	if driver.Result(int32(uint32(r))) == driver.NotReady {
		return false, nil
	}
	err := d.result(cuEventQuery, none, r)
	return err == nil, d.here(err, "")
}

// EventSynchronize implements driver.Driver.
func (d *Driver) EventSynchronize(e driver.Event) error {
	return d.here(d.call(cuEventSynchronize, none, uintptr(e)), "")
}

// Elapsed implements driver.Driver.
func (d *Driver) Elapsed(from, to driver.Event) (time.Duration, error) {
	ms := new(float32)
	err := d.call(cuEventElapsedTime, none, uintptr(unsafe.Pointer(ms)), uintptr(from), uintptr(to))
	return time.Duration(float64(*ms) * float64(time.Millisecond)), d.here(err, "")
}
