package driver

import "fmt"

// Result is a CUresult. The values are the driver's.
type Result int32

// The results that have a name here: those that the backend tells apart, and
// those that are met where a driver, a container or a device is set up wrong.
const (
	Success             Result = 0
	InvalidValue        Result = 1
	OutOfMemory         Result = 2
	NotInitialized      Result = 3
	Deinitialized       Result = 4
	StubLibrary         Result = 34
	NewerDriverNeeded   Result = 36
	DeviceUnavailable   Result = 46
	NoDevice            Result = 100
	InvalidDevice       Result = 101
	InvalidImage        Result = 200
	InvalidContext      Result = 201
	NoBinaryForGPU      Result = 209
	ECCUncorrectable    Result = 214
	InvalidPTX          Result = 218
	NVLinkUncorrectable Result = 220
	CompilerNotFound    Result = 221
	UnsupportedPTX      Result = 222
	CompilationDisabled Result = 223
	Contained           Result = 226
	OperatingSystem     Result = 304
	InvalidHandle       Result = 400
	NotFound            Result = 500
	NotReady            Result = 600
	IllegalAddress      Result = 700
	LaunchResources     Result = 701
	LaunchTimeout       Result = 702
	ContextDestroyed    Result = 709
	Assert              Result = 710
	HardwareStack       Result = 714
	IllegalInstr        Result = 715
	MisalignedAddress   Result = 716
	InvalidAddrSpace    Result = 717
	InvalidPC           Result = 718
	LaunchFailed        Result = 719
	TensorMemoryLeak    Result = 721
	NotPermitted        Result = 800
	NotSupported        Result = 801
	SystemNotReady      Result = 802
	SystemMismatch      Result = 803
	CompatNotSupported  Result = 804
	MPSConnectionFailed Result = 805
	MPSRPCFailure       Result = 806
	MPSNotReady         Result = 807
	MPSMaxClients       Result = 808
	MPSMaxConnections   Result = 809
	MPSClientTerminated Result = 810
	CaptureUnsupported  Result = 900
	CaptureInvalidated  Result = 901
	CaptureMerge        Result = 902
	CaptureUnmatched    Result = 903
	CaptureUnjoined     Result = 904
	CaptureIsolation    Result = 905
	CaptureImplicit     Result = 906
	CapturedEvent       Result = 907
	CaptureWrongThread  Result = 908
	UnknownError        Result = 999
)

// Advice that several results share.
const (
	adviceDriver  = "update the NVIDIA driver"
	adviceRestart = "restart the process to use the device again"
	adviceCapture = "do not call this while a CUDA graph is captured, or capture it with the mode thread_local"
	adviceMPS     = "start fewer processes on the device, or raise the limits of the MPS server"
	adviceLog     = "see the kernel log for NVRM messages"
)

// known holds the driver's name of each result and what its user can do.
var known = map[Result]struct{ name, advice string }{
	Success:             {"CUDA_SUCCESS", ""},
	InvalidValue:        {"CUDA_ERROR_INVALID_VALUE", "check that the pointer belongs to this process and that the tensor still exists"},
	OutOfMemory:         {"CUDA_ERROR_OUT_OF_MEMORY", "free device memory, or lower backends.cuda.staging"},
	NotInitialized:      {"CUDA_ERROR_NOT_INITIALIZED", ""},
	Deinitialized:       {"CUDA_ERROR_DEINITIALIZED", "close communicators before the process ends"},
	StubLibrary:         {"CUDA_ERROR_STUB_LIBRARY", "this is the toolkit's stub of libcuda: take its directory off the loader's path, so that the driver's own library is found"},
	NewerDriverNeeded:   {"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", adviceDriver},
	DeviceUnavailable:   {"CUDA_ERROR_DEVICE_UNAVAILABLE", "another process has the device to itself: see the compute mode in nvidia-smi -q"},
	NoDevice:            {"CUDA_ERROR_NO_DEVICE", "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use host tensors"},
	InvalidDevice:       {"CUDA_ERROR_INVALID_DEVICE", "see nvidia-smi and CUDA_VISIBLE_DEVICES"},
	InvalidImage:        {"CUDA_ERROR_INVALID_IMAGE", adviceDriver},
	InvalidContext:      {"CUDA_ERROR_INVALID_CONTEXT", "use tensors of the device's primary context, as frameworks do"},
	NoBinaryForGPU:      {"CUDA_ERROR_NO_BINARY_FOR_GPU", "the device is older than compute capability 5.2; use host tensors"},
	ECCUncorrectable:    {"CUDA_ERROR_ECC_UNCORRECTABLE", "the device's memory is failing: restart on another one"},
	InvalidPTX:          {"CUDA_ERROR_INVALID_PTX", adviceDriver},
	NVLinkUncorrectable: {"CUDA_ERROR_NVLINK_UNCORRECTABLE", "a link between devices has failed: restart the process, and see nvidia-smi nvlink -s"},
	CompilerNotFound:    {"CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "libnvidia-ptxjitcompiler.so.1 is missing: give the container NVIDIA_DRIVER_CAPABILITIES=compute,utility"},
	UnsupportedPTX:      {"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", adviceDriver},
	CompilationDisabled: {"CUDA_ERROR_JIT_COMPILATION_DISABLED", "unset CUDA_DISABLE_PTX_JIT"},
	Contained:           {"CUDA_ERROR_CONTAINED", adviceRestart},
	OperatingSystem:     {"CUDA_ERROR_OPERATING_SYSTEM", adviceLog},
	InvalidHandle:       {"CUDA_ERROR_INVALID_HANDLE", "check that the stream belongs to the tensor's device and still exists"},
	NotFound:            {"CUDA_ERROR_NOT_FOUND", ""},
	NotReady:            {"CUDA_ERROR_NOT_READY", ""},
	IllegalAddress:      {"CUDA_ERROR_ILLEGAL_ADDRESS", "a tensor was freed while in use, or another kernel of this process failed; " + adviceRestart},
	LaunchResources:     {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", ""},
	LaunchTimeout:       {"CUDA_ERROR_LAUNCH_TIMEOUT", adviceRestart},
	ContextDestroyed:    {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "close communicators before resetting the device"},
	Assert:              {"CUDA_ERROR_ASSERT", "a kernel of this process failed an assertion; restart it to use the device again"},
	HardwareStack:       {"CUDA_ERROR_HARDWARE_STACK_ERROR", adviceRestart},
	IllegalInstr:        {"CUDA_ERROR_ILLEGAL_INSTRUCTION", adviceRestart},
	MisalignedAddress:   {"CUDA_ERROR_MISALIGNED_ADDRESS", adviceRestart},
	InvalidAddrSpace:    {"CUDA_ERROR_INVALID_ADDRESS_SPACE", adviceRestart},
	InvalidPC:           {"CUDA_ERROR_INVALID_PC", adviceRestart},
	LaunchFailed:        {"CUDA_ERROR_LAUNCH_FAILED", adviceRestart},
	TensorMemoryLeak:    {"CUDA_ERROR_TENSOR_MEMORY_LEAK", adviceRestart},
	NotPermitted:        {"CUDA_ERROR_NOT_PERMITTED", "check what the container or the user may do with /dev/nvidia*"},
	NotSupported:        {"CUDA_ERROR_NOT_SUPPORTED", "use host tensors on this device"},
	SystemNotReady:      {"CUDA_ERROR_SYSTEM_NOT_READY", "start the fabric manager, or wait for it"},
	SystemMismatch:      {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot after a driver update"},
	CompatNotSupported:  {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "take the cuda-compat package off the loader's path, or update the NVIDIA driver"},
	MPSConnectionFailed: {"CUDA_ERROR_MPS_CONNECTION_FAILED", "start nvidia-cuda-mps-control, or unset CUDA_MPS_PIPE_DIRECTORY"},
	MPSRPCFailure:       {"CUDA_ERROR_MPS_RPC_FAILURE", "restart the MPS server"},
	MPSNotReady:         {"CUDA_ERROR_MPS_SERVER_NOT_READY", "wait for the MPS server, and start the process again"},
	MPSMaxClients:       {"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", adviceMPS},
	MPSMaxConnections:   {"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", adviceMPS},
	MPSClientTerminated: {"CUDA_ERROR_MPS_CLIENT_TERMINATED", "another process on the same MPS server has failed; " + adviceRestart},
	CaptureUnsupported:  {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", adviceCapture},
	CaptureInvalidated:  {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", adviceCapture},
	CaptureMerge:        {"CUDA_ERROR_STREAM_CAPTURE_MERGE", adviceCapture},
	CaptureUnmatched:    {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", adviceCapture},
	CaptureUnjoined:     {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", adviceCapture},
	CaptureIsolation:    {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", adviceCapture},
	CaptureImplicit:     {"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", adviceCapture},
	CapturedEvent:       {"CUDA_ERROR_CAPTURED_EVENT", adviceCapture},
	CaptureWrongThread:  {"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", adviceCapture},
	UnknownError:        {"CUDA_ERROR_UNKNOWN", adviceLog},
}

// Known reports whether String has a name for the result.
func (r Result) Known() bool {
	_, ok := known[r]
	return ok
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
	case Deinitialized, ECCUncorrectable, NVLinkUncorrectable, Contained, IllegalAddress, LaunchTimeout, ContextDestroyed, Assert,
		HardwareStack, IllegalInstr, MisalignedAddress, InvalidAddrSpace, InvalidPC, LaunchFailed, TensorMemoryLeak, MPSClientTerminated:
		return true
	}
	return false
}
