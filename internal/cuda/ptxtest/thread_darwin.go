package ptxtest

import "syscall"

// thread is the number of the calling OS thread.
func thread() uint64 {
	id, _, _ := syscall.RawSyscall(syscall.SYS_THREAD_SELFID, 0, 0, 0)
	return uint64(id)
}
