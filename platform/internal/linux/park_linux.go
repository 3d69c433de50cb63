package linux

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// futex operations on memory that only this process has (futex(2)).
const (
	futexWaitPrivate = 0 | 128
	futexWakePrivate = 1 | 128
)

// Wait puts the calling thread to sleep while *addr is old: until Wake, until d
// has passed (d < 0: no bound), or for no reason at all. A value that is not
// old any more, a signal and the end of d are not errors; the caller looks at
// *addr and at its clock again.
func Wait(addr *uint32, old uint32, d time.Duration) error {
	var ts *unix.Timespec
	if d >= 0 {
		t := unix.NsecToTimespec(int64(d))
		ts = &t
	}
	_, _, no := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), futexWaitPrivate, uintptr(old), uintptr(unsafe.Pointer(ts)), 0, 0)
	switch {
	case no == 0, no == syscall.EAGAIN, no == syscall.EINTR, no == syscall.ETIMEDOUT:
		return nil
	}
	return os.NewSyscallError("futex", no)
}

// Wake wakes one thread that sleeps on addr, if there is one.
func Wake(addr *uint32) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), futexWakePrivate, 1, 0, 0, 0)
}
