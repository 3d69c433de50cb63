// Package driver is what the CUDA backend needs of the CUDA driver API: the
// calls as one interface, and their results as typed errors. Package libcuda
// opens the real driver at run time; package ptxtest executes the same kernels
// without one.
package driver

import "time"

// Ptr is an address in device memory, or in host memory that the device knows.
type Ptr uint64

// Handles are made by a Driver and mean something to it alone. 0 is none; as a
// Stream it is the device's legacy default stream.
type (
	Context  uintptr
	Module   uintptr
	Function uintptr
	Stream   uintptr
	Event    uintptr
)

// Attribute is a CUdevice_attribute; the values are the driver's.
type Attribute int32

// The attributes that the backend asks for.
const (
	WarpSize           Attribute = 10
	Processors         Attribute = 16 // streaming multiprocessors
	AsyncEngines       Attribute = 40 // copies that can run beside kernels
	UnifiedAddressing  Attribute = 41
	CapabilityMajor    Attribute = 75
	CapabilityMinor    Attribute = 76
	MaxThreadsPerBlock Attribute = 1
)

// Kind says what an address points to (CU_POINTER_ATTRIBUTE_MEMORY_TYPE).
type Kind uint8

// The kinds. Plain host memory is unknown to the driver and has kind Unknown.
const (
	Unknown Kind = iota
	Host         // pinned
	Device
	Managed // both sides may use it; taken as Device
)

// Pointer is what the driver knows of an address.
type Pointer struct {
	Kind    Kind
	Device  int     // ordinal, for Device and Managed; -1: managed memory that prefers the host, of no known context
	Context Context // that it was allocated in
	Base    Ptr     // of the allocation
	Bytes   uint64  // of the allocation
}

// CaptureMode says which calls of a thread end the captures of graphs that are
// under way (CUstreamCaptureMode). Threads begin with CaptureGlobal.
type CaptureMode uint32

// The modes.
const (
	CaptureGlobal      CaptureMode = iota // calls that may conflict with a capture of any thread that is global itself
	CaptureThreadLocal                    // those that may conflict with one of the same thread
	CaptureRelaxed                        // only those that do
)

// Dim is the size of a grid in blocks, or of a block in threads.
type Dim struct{ X, Y, Z uint32 }

// Driver is the CUDA driver API. Errors are *Error. Calls that need a context
// use the one on top of the calling OS thread's stack, so callers lock the
// thread between Push and Pop. Asynchronous calls report errors of earlier
// work, too. Slices passed to asynchronous copies must stay alive and in place
// until the stream has passed them; HostAlloc's memory does.
type Driver interface {
	// Version is the driver's CUDA version, 1000*major + 10*minor.
	Version() (int, error)
	Devices() (int, error)
	DeviceName(device int) (string, error)
	DeviceAttribute(a Attribute, device int) (int, error)

	// Retain returns the primary context of device, which the trainer's
	// framework uses, too; each Retain needs a Release.
	Retain(device int) (Context, error)
	Release(device int) error
	Push(c Context) error
	// Pop takes the top context off the thread's stack; the one below, the
	// trainer's, is current again.
	Pop() (Context, error)
	// Current returns the thread's current context, 0 if it has none.
	Current() (Context, error)

	// ExchangeCaptureMode sets the calling thread's mode and returns the one
	// before. No context is needed.
	ExchangeCaptureMode(m CaptureMode) (CaptureMode, error)

	// ModuleLoad compiles ptx for the current context's device; log is what
	// the compiler said if it failed.
	ModuleLoad(ptx []byte) (m Module, log string, err error)
	ModuleUnload(m Module) error
	Function(m Module, name string) (Function, error)
	// Launch queues f. args holds the parameters, each little-endian at a
	// multiple of its size, in the order of the kernel's list.
	Launch(f Function, grid, block Dim, shared uint32, s Stream, args []byte) error

	MemInfo() (free, total uint64, err error)
	Alloc(n uint64) (Ptr, error)
	Free(p Ptr) error
	// HostAlloc returns n bytes of pinned memory, aligned to a page, usable
	// from every context. Its content is arbitrary.
	HostAlloc(n int) ([]byte, error)
	HostFree(b []byte) error
	Pointer(p Ptr) (Pointer, error)

	CopyToDevice(dst Ptr, src []byte, s Stream) error
	CopyToHost(dst []byte, src Ptr, s Stream) error
	CopyOnDevice(dst, src Ptr, n uint64, s Stream) error
	Fill(dst Ptr, value byte, n uint64, s Stream) error

	// StreamCreate makes a stream that does not synchronise with the legacy
	// default stream.
	StreamCreate() (Stream, error)
	StreamDestroy(s Stream) error
	StreamSynchronize(s Stream) error
	// StreamWait makes what is queued on s from now on wait for e.
	StreamWait(s Stream, e Event) error

	// StreamCapturing reports whether what is queued on s becomes part of a
	// graph now, and is not done.
	StreamCapturing(s Stream) (bool, error)

	// EventCreate makes an event; timing says whether Elapsed is wanted.
	EventCreate(timing bool) (Event, error)
	EventDestroy(e Event) error
	EventRecord(e Event, s Stream) error
	// EventDone reports whether all work before the last record is complete.
	EventDone(e Event) (bool, error)
	EventSynchronize(e Event) error
	Elapsed(from, to Event) (time.Duration, error)
}
