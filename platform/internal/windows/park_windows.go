package windows

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	synch                   = windows.NewLazySystemDLL("api-ms-win-core-synch-l1-2-0.dll")
	procWaitOnAddress       = synch.NewProc("WaitOnAddress")
	procWakeByAddressSingle = synch.NewProc("WakeByAddressSingle")
)

// Wait puts the calling thread to sleep while *addr is old: until Wake, until d
// has passed (d < 0: no bound), or for no reason at all. A value that is not
// old any more and the end of d are not errors; the caller looks at *addr and at
// its clock again.
func Wait(addr *uint32, old uint32, d time.Duration) error {
	if err := procWaitOnAddress.Find(); err != nil { // before Windows 8
		return err
	}
	ms := uintptr(windows.INFINITE)
	if d >= 0 {
		ms = uintptr(min(int64((d+time.Millisecond-1)/time.Millisecond), windows.INFINITE-1))
	}
	ok, _, no := syscall.SyscallN(procWaitOnAddress.Addr(), uintptr(unsafe.Pointer(addr)), uintptr(unsafe.Pointer(&old)), unsafe.Sizeof(old), ms)
	if ok == 0 && no != windows.ERROR_TIMEOUT {
		return os.NewSyscallError("WaitOnAddress", no)
	}
	return nil
}

// Wake wakes one thread that sleeps on addr, if there is one. It may only be
// called after a Wait that did not fail.
func Wake(addr *uint32) {
	syscall.SyscallN(procWakeByAddressSingle.Addr(), uintptr(unsafe.Pointer(addr)))
}
