// Package cuda registers the platform for memory of NVIDIA GPUs in programs for
// Linux and Windows, unless they are built with the tag nocuda. It is a
// device.Platform, and not a backend.Backend as its neighbours are: it stages
// all-reduces, streams tensors of a shared state, and hashes them on the device.
//
// Without cgo (CGO_ENABLED=0), a program for Linux that imports it is linked
// dynamically with the C library of glibc systems; with the tag nocuda it is
// static.
//
// Import it for its effect alone; package backends/defaults does. The driver is
// opened when device memory is first met, and the same binary runs where there
// is none. device.Configure sets its bounds.
package cuda
