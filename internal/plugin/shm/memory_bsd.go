//go:build unix && !linux

package shm

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// anonymous is a file without a name.
func anonymous() (*os.File, error) {
	f, err := os.CreateTemp("", "gopccl-plugin")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// seal does nothing: these systems cannot fix the size of a file, so a plugin
// that cuts it short takes the host with it.
func seal(*os.File) error { return nil }

func socketpair() ([2]int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	return fds, err
}

// Release does nothing on this system.
func Release([]byte) {}
