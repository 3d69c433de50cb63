// Package libcuda is the CUDA driver of the system, opened at run time:
// libcuda.so.1 on Linux, nvcuda.dll on Windows. It needs no toolkit and no cgo.
// It is empty with the build tag nocuda, and on systems for which NVIDIA has no
// driver.
package libcuda
