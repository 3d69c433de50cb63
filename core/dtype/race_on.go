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
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
}

// RaceWrite tells the race detector that b is written.
func RaceWrite(b []byte) {
	if len(b) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
}
