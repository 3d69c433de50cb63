package ptxtest

import "syscall"

// thread is the number of the calling OS thread.
func thread() uint64 { return uint64(syscall.Gettid()) }
