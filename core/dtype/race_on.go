//go:build race

package dtype

import (
	"runtime"
	"unsafe"
)

// RaceRead tells the race detector, which does not see what assembly does,
// that b is read.
func RaceRead(b []byte) {
	if len(b) > 0 {
		runtime.RaceReadRange(hidden(b), len(b))
	}
}

// RaceWrite tells the race detector that b is written.
func RaceWrite(b []byte) {
	if len(b) > 0 {
		runtime.RaceWriteRange(hidden(b), len(b))
	}
}

// hidden is the address of b, so that b does not escape: the race detector
// keeps no pointers, but the compiler does not know, and blocks on the stack
// would be allocated.
func hidden(b []byte) unsafe.Pointer {
	address := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}
