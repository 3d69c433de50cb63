// Package platform is the one place where the differences between operating
// systems live: socket options, the meaning of error numbers, how a port is
// listened on, how many descriptors a process has open.
//
// The packages below it (linux, darwin, windows) speak to their system in its
// own terms and know nothing of this module; the select files put the right
// one behind the interface OS. A system that has no package of its own gets
// the portable fallback, which does what the standard library can do.
package platform
