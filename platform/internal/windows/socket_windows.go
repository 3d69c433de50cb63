package windows

import (
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// soExclusiveAddrUse is SO_EXCLUSIVEADDRUSE, the complement of SO_REUSEADDR.
const soExclusiveAddrUse = ^windows.SO_REUSEADDR

// SetExclusive keeps other processes from binding the same port. It has to be
// set before bind. On Windows a port in TIME_WAIT can be bound without any
// option, and SO_REUSEADDR would let two processes listen on one port.
func SetExclusive(fd uintptr) error {
	return os.NewSyscallError("setsockopt",
		windows.SetsockoptInt(windows.Handle(fd), windows.SOL_SOCKET, soExclusiveAddrUse, 1))
}

// SetMaxRT sets TCP_MAXRT: the connection breaks when sent data had to be
// repeated for d (rounded up to whole seconds).
func SetMaxRT(fd uintptr, d time.Duration) error {
	s := (d + time.Second - 1) / time.Second
	return os.NewSyscallError("setsockopt",
		windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_TCP, windows.TCP_MAXRT, int(s)))
}

var procGetProcessHandleCount = windows.NewLazySystemDLL("kernel32.dll").NewProc("GetProcessHandleCount")

// OpenHandles returns the number of handles that this process has open. The
// error is errors.ErrUnsupported where the system does not count them (Wine).
func OpenHandles() (int, error) {
	var n uint32
	ok, _, err := procGetProcessHandleCount.Call(uintptr(windows.CurrentProcess()), uintptr(unsafe.Pointer(&n)))
	if ok == 0 {
		return 0, os.NewSyscallError("GetProcessHandleCount", err)
	}
	if n == 0 {
		return 0, errors.ErrUnsupported
	}
	return int(n), nil
}
