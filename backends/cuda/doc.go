// Package cuda registers the platform for memory of NVIDIA GPUs, if the program
// is built with the tag cuda. It is a device.Platform, and not a
// backend.Backend as its neighbours are: it stages all-reduces, streams tensors
// of a shared state, and hashes them on the device.
//
// Import it for its effect alone; package backends/defaults does. The driver is
// opened when device memory is first met, and the same binary runs where there
// is none. device.Configure sets its bounds.
package cuda
