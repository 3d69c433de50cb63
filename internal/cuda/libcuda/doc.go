// Package libcuda is the CUDA driver of the system, opened at run time:
// libcuda.so.1 on Linux, nvcuda.dll on Windows. It needs no toolkit and no cgo,
// and is empty without the build tag cuda.
package libcuda
