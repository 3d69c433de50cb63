//go:build unix && (!linux || race)

package transport

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func rawWrite(fd int, p []byte) (int, syscall.Errno) { return numbered(syscall.Write(fd, p)) }

func rawWritev(fd int, vec [][]byte, _ *[]unix.Iovec) (int, syscall.Errno) {
	released()
	return numbered(unix.SendmsgBuffers(fd, vec, nil, nil, 0))
}

func numbered(n int, err error) (int, syscall.Errno) {
	if err == nil {
		return n, 0
	}
	if errno, ok := err.(syscall.Errno); ok {
		return 0, errno
	}
	return 0, syscall.EIO
}
