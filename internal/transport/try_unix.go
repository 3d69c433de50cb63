//go:build unix

package transport

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

type rawTry struct {
	raw  syscall.RawConn
	fn   func(fd uintptr) bool
	p    []byte
	vec  [][]byte // in place of p
	wait bool     // until all of vec is written
	room vecRoom
	n    int
	err  error
}

func nonBlocking(c net.Conn) TryWriter {
	t := tcpOf(c)
	if t == nil {
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

// write makes attempts. It reports that it is done, so that the runtime does
// not park the goroutine, unless it is to wait.
func (t *rawTry) write(fd uintptr) bool {
	for {
		var n int
		var errno syscall.Errno
		if t.vec != nil {
			n, errno = rawWritev(int(fd), t.vec, &t.room)
		} else {
			n, errno = rawWrite(int(fd), t.p)
		}
		switch errno {
		case 0:
			t.n += n
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return !t.wait
		default:
			t.err = errno
			return true
		}
		if !t.wait {
			return true
		}
		if t.vec = behind(t.vec, n); len(t.vec) == 0 {
			return true
		}
	}
}

// behind returns what follows the first n bytes of vec, and changes vec for it.
func behind(vec [][]byte, n int) [][]byte {
	for len(vec) > 0 && n >= len(vec[0]) {
		n -= len(vec[0])
		vec = vec[1:]
	}
	if n > 0 {
		vec[0] = vec[0][n:]
	}
	return vec
}

func (t *rawTry) TryWrite(p []byte) (int, error) {
	t.p = p
	return t.run()
}

// TryWriteAll implements VecWriter.
func (t *rawTry) TryWriteAll(vec [][]byte) (int, error) {
	t.vec = vec
	return t.run()
}

// WriteAll implements VecWriter.
func (t *rawTry) WriteAll(vec [][]byte) (int, error) {
	t.vec, t.wait = vec, true
	return t.run()
}

func (t *rawTry) run() (int, error) {
	t.n, t.err = 0, nil
	err := t.raw.Write(t.fn)
	t.p, t.vec, t.wait = nil, nil, false
	if err == nil {
		err = t.err
	}
	return t.n, err
}

func resumable(net.Conn) bool { return true }
