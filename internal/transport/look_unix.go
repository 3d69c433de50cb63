//go:build unix

package transport

import (
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// look peeks at the socket of t: once, or until there is something. Calls of the runtime's sockets do not wait.
func look(t *net.TCPConn, wait bool) (n int, err error) {
	raw, err := t.SyscallConn()
	if err != nil {
		return 0, err
	}
	var (
		b    [1]byte
		seen error
	)
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, seen = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK)
			if !errors.Is(seen, unix.EINTR) {
				break
			}
		}
		return !wait || !errors.Is(seen, unix.EAGAIN)
	})
	switch {
	case err != nil:
		return 0, err
	case errors.Is(seen, unix.EAGAIN):
		return 0, nil
	case seen != nil:
		return 0, seen
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
