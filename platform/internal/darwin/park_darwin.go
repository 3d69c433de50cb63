package darwin

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// __ulock_wait and __ulock_wake are system calls without a place in the SDK's
// headers; the C++ library and the Go runtime's own locks rest on them. Their
// numbers and flags stand in xnu, bsd/kern/syscalls.master and bsd/sys/ulock.h.
const (
	sysUlockWait = 515
	sysUlockWake = 516

	ulCompareAndWait = 1
	maxMicroseconds  = 1<<32 - 1
)

// Wait puts the calling thread to sleep while *addr is old: until Wake, until d
// has passed (d < 0: no bound), or for no reason at all. A value that is not
// old any more, a signal and the end of d are not errors; the caller looks at
// *addr and at its clock again.
func Wait(addr *uint32, old uint32, d time.Duration) error {
	us := int64(0) // no bound
	if d >= 0 {
		us = min(max(int64((d+time.Microsecond-1)/time.Microsecond), 1), maxMicroseconds)
	}
	_, _, no := syscall.Syscall6(sysUlockWait, ulCompareAndWait, uintptr(unsafe.Pointer(addr)), uintptr(old), uintptr(us), 0, 0)
	switch no {
	case 0, syscall.EINTR, syscall.ETIMEDOUT, syscall.EFAULT:
		// EFAULT: the page was not resident; to be tried again.
		return nil
	}
	return os.NewSyscallError("__ulock_wait", no)
}

// Wake wakes one thread that sleeps on addr, if there is one.
func Wake(addr *uint32) {
	for {
		_, _, no := syscall.Syscall(sysUlockWake, ulCompareAndWait, uintptr(unsafe.Pointer(addr)), 0)
		if no != syscall.EINTR {
			return
		}
	}
}
