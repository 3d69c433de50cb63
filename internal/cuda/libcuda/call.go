//go:build !nocuda && (linux || windows) && (amd64 || arm64)

package libcuda

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

// function is a call of the driver API.
type function uint8

const (
	cuInit function = iota
	cuDriverGetVersion
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetAttribute
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxPushCurrent
	cuCtxPopCurrent
	cuCtxGetCurrent
	cuCtxGetDevice
	cuThreadExchangeStreamCaptureMode
	cuModuleLoadDataEx
	cuModuleUnload
	cuModuleGetFunction
	cuLaunchKernel
	cuMemGetInfo
	cuMemAlloc
	cuMemFree
	cuMemHostAlloc
	cuMemFreeHost
	cuPointerGetAttributes
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemcpyDtoDAsync
	cuMemsetD8Async
	cuStreamCreate
	cuStreamDestroy
	cuStreamSynchronize
	cuStreamWaitEvent
	cuStreamIsCapturing
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuEventSynchronize
	cuEventElapsedTime
	cuGetErrorName
	functions
)

// symbols are the names in the library. Where the API has a second version, the
// header gives the plain name to that one, and the library keeps the first
// under it for programs built before CUDA 4.
var symbols = [functions]string{
	"cuInit", "cuDriverGetVersion",
	"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
	"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2",
	"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxGetCurrent", "cuCtxGetDevice",
	"cuThreadExchangeStreamCaptureMode",
	"cuModuleLoadDataEx", "cuModuleUnload", "cuModuleGetFunction", "cuLaunchKernel",
	"cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuPointerGetAttributes",
	"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async",
	"cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamWaitEvent", "cuStreamIsCapturing",
	"cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventElapsedTime",
	"cuGetErrorName",
}

// name is that of the API, without the version.
func (f function) name() string {
	s := symbols[f]
	if n := len(s) - len("_v2"); n > 0 && s[n:] == "_v2" {
		return s[:n]
	}
	return s
}

// Driver implements driver.Driver.
type Driver struct{ fn [functions]uintptr }

var _ driver.Driver = (*Driver)(nil)

// MinVersion is the oldest CUDA version of a driver that is taken: 11.0, the
// first with cuDevicePrimaryCtxRelease_v2. No older one has all of symbols.
const MinVersion = 11000

// Open opens the system's driver. The error says what is missing: the library,
// a call in it, or a device.
func Open() (driver.Driver, error) { return open(library) }

func open(path string) (driver.Driver, error) {
	lib, err := openLibrary(path)
	if err != nil {
		return nil, fmt.Errorf("the NVIDIA driver cannot be opened: %w", err)
	}
	d, err := bind(lib, path)
	if err != nil {
		return nil, err
	}
	if err := d.call(cuInit, none, 0); err != nil {
		return nil, err
	}
	v, err := d.Version()
	if err != nil {
		return nil, err
	}
	if v < MinVersion {
		return nil, fmt.Errorf("the NVIDIA driver is for CUDA %d.%d, too old: update it to one for %d.%d or later",
			v/1000, v%1000/10, MinVersion/1000, MinVersion%1000/10)
	}
	return d, nil
}

// bind finds the calls in an open library.
func bind(lib uintptr, path string) (d *Driver, err error) {
	d = &Driver{}
	for f, name := range symbols {
		if d.fn[f], err = symbol(lib, name); err != nil {
			return nil, fmt.Errorf("%s is too old, update the NVIDIA driver to one for CUDA %d.%d or later: %w",
				path, MinVersion/1000, MinVersion%1000/10, err)
		}
	}
	return d, nil
}

// none stands for the device of a call that is for no certain one.
const none = -1

// call calls f and makes its result an error. Pointers among args must be
// converted in the call, so that what they point to stays in place.
//
//go:uintptrescapes
func (d *Driver) call(f function, device int, args ...uintptr) error {
	r, _, _ := purego.SyscallN(d.fn[f], args...)
	return d.result(f, device, r)
}

func (d *Driver) result(f function, device int, r uintptr) error {
	code := driver.Result(int32(uint32(r)))
	if code == driver.Success {
		return nil
	}
	err := &driver.Error{Call: f.name(), Device: device, Result: code}
	if !code.Known() {
		err.Name = d.nameOf(code)
	}
	return err
}

// nameOf asks the driver for its name of a result, "" if it has none either.
func (d *Driver) nameOf(code driver.Result) string {
	name := new(unsafe.Pointer)
	purego.SyscallN(d.fn[cuGetErrorName], uintptr(code), uintptr(unsafe.Pointer(name)))
	if *name == nil {
		return ""
	}
	var b []byte
	for c := (*byte)(*name); *c != 0 && len(b) < 80; c = (*byte)(unsafe.Add(unsafe.Pointer(c), 1)) {
		b = append(b, *c)
	}
	return string(b)
}

// address of memory that the driver copies from or to.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
