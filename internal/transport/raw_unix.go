//go:build unix && (!linux || race)

package transport

import (
	"syscall"

	"golang.org/x/sys/unix"
)

func rawWrite(fd int, p []byte) (int, syscall.Errno) {
	released()
	return numbered(unix.SendmsgN(fd, p, nil, nil, noSignal))
}

// vecRoom is what the calls that know nothing of the scheduler need.
type vecRoom struct{}

func rawWritev(fd int, vec [][]byte, _ *vecRoom) (int, syscall.Errno) {
	released()
	return numbered(unix.SendmsgBuffers(fd, vec, nil, nil, noSignal))
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
