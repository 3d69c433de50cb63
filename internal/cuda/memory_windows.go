package cuda

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

var globalMemoryStatus = windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx")

// machineMemory returns the memory of the machine in bytes; 0: not known.
func machineMemory() uint64 {
	var s struct { // MEMORYSTATUSEX
		length, load uint32
		total        uint64
		other        [6]uint64
	}
	s.length = uint32(unsafe.Sizeof(s))
	if ok, _, _ := globalMemoryStatus.Call(uintptr(unsafe.Pointer(&s))); ok == 0 {
		return 0
	}
	return s.total
}
