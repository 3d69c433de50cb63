package transport

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// noSignal makes a write to a connection that has ended fail, and nothing else.
const noSignal = unix.MSG_NOSIGNAL

// quietConn writes with noSignal. It embeds the interface and not the type, so
// that nobody finds the shortcuts of net.TCPConn (ReadFrom, several buffers in
// one call), which write without it.
type quietConn struct {
	net.Conn
	tcp *net.TCPConn
	raw syscall.RawConn
}

func quiet(t *net.TCPConn) net.Conn {
	raw, err := t.SyscallConn()
	if err != nil { // it is closed
		return t
	}
	return &quietConn{t, t, raw}
}

// TCP returns the connection, for options of the socket.
func (c *quietConn) TCP() *net.TCPConn { return c.tcp }

// CloseWrite sends the end of what was written.
func (c *quietConn) CloseWrite() error { return c.tcp.CloseWrite() }

// Write waits and fails as a write of the connection does.
func (c *quietConn) Write(p []byte) (n int, err error) {
	var failed syscall.Errno
	err = c.raw.Write(func(fd uintptr) bool {
		for n < len(p) {
			m, errno := rawWrite(int(fd), p[n:])
			switch errno {
			case 0:
				n += m
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				failed = errno
				return true
			}
		}
		return true
	})
	if err == nil && failed != 0 {
		local := c.LocalAddr()
		err = &net.OpError{Op: "write", Net: local.Network(), Source: local, Addr: c.RemoteAddr(), Err: os.NewSyscallError("send", failed)}
	}
	return n, err
}
