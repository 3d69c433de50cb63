//go:build !linux || race

package transport_test

const maxAllocs = 8 // of the system's package
