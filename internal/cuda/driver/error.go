package driver

import "fmt"

// Result is a CUresult. The values are the driver's.
type Result int32

// The results that the backend tells apart.
const (
	Success            Result = 0
	InvalidValue       Result = 1
	OutOfMemory        Result = 2
	NotInitialized     Result = 3
	Deinitialized      Result = 4
	NoDevice           Result = 100
	InvalidDevice      Result = 101
	InvalidImage       Result = 200
	InvalidContext     Result = 201
	NoBinaryForGPU     Result = 209
	ECCUncorrectable   Result = 214
	InvalidPTX         Result = 218
	UnsupportedPTX     Result = 222
	InvalidHandle      Result = 400
	NotFound           Result = 500
	NotReady           Result = 600
	IllegalAddress     Result = 700
	LaunchResources    Result = 701
	LaunchTimeout      Result = 702
	ContextDestroyed   Result = 709
	Assert             Result = 710
	HardwareStack      Result = 714
	IllegalInstr       Result = 715
	MisalignedAddress  Result = 716
	InvalidAddrSpace   Result = 717
	InvalidPC          Result = 718
	LaunchFailed       Result = 719
	SystemNotReady     Result = 802
	SystemMismatch     Result = 803
	CaptureUnsupported Result = 900
	CaptureInvalidated Result = 901
	CaptureImplicit    Result = 906
	CapturedEvent      Result = 907
	UnknownError       Result = 999
)

// adviceCapture is for conflicts with a capture that the program has under way.
const adviceCapture = "do not call this while a CUDA graph is captured, or capture it with the mode thread_local"

// known holds the driver's name of each result and what its user can do.
var known = map[Result]struct{ name, advice string }{
	Success:            {"CUDA_SUCCESS", ""},
	InvalidValue:       {"CUDA_ERROR_INVALID_VALUE", "check that the pointer belongs to this process and that the tensor still exists"},
	OutOfMemory:        {"CUDA_ERROR_OUT_OF_MEMORY", "free device memory, or lower backends.cuda.staging"},
	NotInitialized:     {"CUDA_ERROR_NOT_INITIALIZED", ""},
	Deinitialized:      {"CUDA_ERROR_DEINITIALIZED", "close communicators before the process ends"},
	NoDevice:           {"CUDA_ERROR_NO_DEVICE", "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use host tensors"},
	InvalidDevice:      {"CUDA_ERROR_INVALID_DEVICE", "see nvidia-smi and CUDA_VISIBLE_DEVICES"},
	InvalidImage:       {"CUDA_ERROR_INVALID_IMAGE", "update the NVIDIA driver"},
	InvalidContext:     {"CUDA_ERROR_INVALID_CONTEXT", "use tensors of the device's primary context, as frameworks do"},
	NoBinaryForGPU:     {"CUDA_ERROR_NO_BINARY_FOR_GPU", "the device is older than compute capability 5.2; use host tensors"},
	ECCUncorrectable:   {"CUDA_ERROR_ECC_UNCORRECTABLE", "the device's memory is failing: restart on another one"},
	InvalidPTX:         {"CUDA_ERROR_INVALID_PTX", "update the NVIDIA driver"},
	UnsupportedPTX:     {"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "update the NVIDIA driver"},
	InvalidHandle:      {"CUDA_ERROR_INVALID_HANDLE", ""},
	NotFound:           {"CUDA_ERROR_NOT_FOUND", ""},
	NotReady:           {"CUDA_ERROR_NOT_READY", ""},
	IllegalAddress:     {"CUDA_ERROR_ILLEGAL_ADDRESS", "a tensor was freed while in use, or another kernel of this process failed; restart the process to use the device again"},
	LaunchResources:    {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", ""},
	LaunchTimeout:      {"CUDA_ERROR_LAUNCH_TIMEOUT", "restart the process to use the device again"},
	ContextDestroyed:   {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "close communicators before resetting the device"},
	Assert:             {"CUDA_ERROR_ASSERT", "a kernel of this process failed an assertion; restart it to use the device again"},
	HardwareStack:      {"CUDA_ERROR_HARDWARE_STACK_ERROR", "restart the process to use the device again"},
	IllegalInstr:       {"CUDA_ERROR_ILLEGAL_INSTRUCTION", "restart the process to use the device again"},
	MisalignedAddress:  {"CUDA_ERROR_MISALIGNED_ADDRESS", "restart the process to use the device again"},
	InvalidAddrSpace:   {"CUDA_ERROR_INVALID_ADDRESS_SPACE", "restart the process to use the device again"},
	InvalidPC:          {"CUDA_ERROR_INVALID_PC", "restart the process to use the device again"},
	LaunchFailed:       {"CUDA_ERROR_LAUNCH_FAILED", "restart the process to use the device again"},
	SystemNotReady:     {"CUDA_ERROR_SYSTEM_NOT_READY", "start the fabric manager, or wait for it"},
	SystemMismatch:     {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot after a driver update"},
	CaptureUnsupported: {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", adviceCapture},
	CaptureInvalidated: {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", adviceCapture},
	CaptureImplicit:    {"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", adviceCapture},
	CapturedEvent:      {"CUDA_ERROR_CAPTURED_EVENT", adviceCapture},
	UnknownError:       {"CUDA_ERROR_UNKNOWN", "see the kernel log for NVRM messages"},
}

// String returns the driver's name of the result.
func (r Result) String() string {
	if k, ok := known[r]; ok {
		return k.name
	}
	return fmt.Sprintf("CUresult(%d)", int32(r))
}

// Sticky reports whether the context that gave r is lost: each later call in
// it fails the same way until the process ends.
func (r Result) Sticky() bool {
	switch r {
	case Deinitialized, ECCUncorrectable, IllegalAddress, LaunchTimeout, ContextDestroyed, Assert, HardwareStack,
		IllegalInstr, MisalignedAddress, InvalidAddrSpace, InvalidPC, LaunchFailed:
		return true
	}
	return false
}

// Error is a call of the driver that failed.
type Error struct {
	Call   string // as in the driver API, "cuMemAlloc"
	Device int    // ordinal, -1 if none was meant
	Result Result
	Detail string // "" or what else is known: a size, a compiler's log
}

// Error names the call, the device, the result and what to do.
func (e *Error) Error() string {
	text := e.Call
	if e.Device >= 0 {
		text += fmt.Sprintf(" on device %d", e.Device)
	}
	text += ": " + e.Result.String()
	if e.Detail != "" {
		text += " (" + e.Detail + ")"
	}
	if a := known[e.Result].advice; a != "" {
		text += ": " + a
	}
	return text
}

// Is matches an *Error of the same result and, if the target has one, the same call.
func (e *Error) Is(target error) bool {
	o, ok := target.(*Error)
	return ok && o.Result == e.Result && (o.Call == "" || o.Call == e.Call)
}
