package transport

import (
	"io"
	"net"
	"unsafe"

	"golang.org/x/sys/windows"
)

var wsaPoll = windows.NewLazySystemDLL("ws2_32.dll").NewProc("WSAPoll")

// polled is a WSAPOLLFD.
type polled struct {
	fd              uintptr
	events, happens int16
}

// pollReadable is POLLRDNORM.
const pollReadable = 0x100

// look peeks at the socket of t: once, or until there is something. A socket of the runtime is one
// whose calls wait, so it is asked first whether there is something.
func look(t *net.TCPConn, wait bool) (n int, err error) {
	raw, err := t.SyscallConn()
	if err != nil {
		return 0, err
	}
	var seen error
	err = raw.Read(func(fd uintptr) bool {
		p := polled{fd: fd, events: pollReadable}
		count, _, failed := wsaPoll.Call(uintptr(unsafe.Pointer(&p)), 1, 0)
		switch {
		case int32(count) < 0:
			seen = failed
		case count == 0:
			return !wait
		default:
			n, seen = peek(windows.Handle(fd))
		}
		return true
	})
	if err == nil {
		err = seen
	}
	return n, err
}

// peek does so on a socket that has something.
func peek(fd windows.Handle) (int, error) {
	var (
		b     [1]byte
		n     uint32
		flags = uint32(windows.MSG_PEEK)
	)
	switch err := windows.WSARecv(fd, &windows.WSABuf{Len: 1, Buf: &b[0]}, 1, &n, &flags, nil, nil); {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return int(n), nil
}
