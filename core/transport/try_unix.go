//go:build unix

package transport

import (
	"net"
	"syscall"
)

type rawTry struct {
	raw syscall.RawConn
	fn  func(fd uintptr) bool
	p   []byte
	n   int
	err error
}

func nonBlocking(c net.Conn) TryWriter {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	r := &rawTry{raw: raw}
	r.fn = r.write // one closure for all calls: no allocation per write
	return r
}

// write is the single attempt; it always reports that it is done, so that the
// runtime never parks the goroutine.
func (t *rawTry) write(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), t.p)
		switch err {
		case nil:
			t.n = n
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
		default:
			t.err = err
		}
		return true
	}
}

func (t *rawTry) TryWrite(p []byte) (int, error) {
	t.p, t.n, t.err = p, 0, nil
	err := t.raw.Write(t.fn)
	t.p = nil
	if err == nil {
		err = t.err
	}
	return max(t.n, 0), err
}

// Resumable reports whether a write on c that a deadline interrupted says
// exactly how much it sent, so that the rest can follow later.
func Resumable(net.Conn) bool { return true }
