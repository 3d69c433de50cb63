package ptxtest

import "golang.org/x/sys/windows"

// thread is the number of the calling OS thread.
func thread() uint64 { return uint64(windows.GetCurrentThreadId()) }
