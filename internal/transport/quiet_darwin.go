package transport

import (
	"net"

	"golang.org/x/sys/unix"
)

const noSignal = 0 // the socket has an option instead

func quiet(t *net.TCPConn) net.Conn {
	if raw, err := t.SyscallConn(); err == nil {
		// An error means that the connection is closed, which its user learns.
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NOSIGPIPE, 1) })
	}
	return t
}
