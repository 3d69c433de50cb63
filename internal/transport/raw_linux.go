//go:build !race

package transport

import (
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Calls that never wait need not tell the scheduler that they might. What they
// do tell it wakes the runtime's monitor thread whenever the process had nothing
// to do before, which is in front of nearly every packet of a small operation;
// and a processor is never taken from a goroutine that copies into or out of a
// socket. The monitor still wakes for every timer, and by every other call. The
// race detector wants to see the memory that is read and written: with it, the
// ordinary calls are made.

func rawRead(fd int, p []byte) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return int(n), errno
}

func rawWrite(fd int, p []byte) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), noSignal, 0, 0)
	return int(n), errno
}

// maxVec is the most buffers of one call (IOV_MAX).
const maxVec = 1024

// vecRoom is room for the description of several buffers.
type vecRoom struct {
	iov []unix.Iovec
	msg unix.Msghdr
}

// rawWritev writes the buffers of vec.
func rawWritev(fd int, vec [][]byte, room *vecRoom) (int, syscall.Errno) {
	v := room.iov[:0]
	for _, b := range vec[:min(len(vec), maxVec)] {
		if len(b) > 0 {
			x := unix.Iovec{Base: unsafe.SliceData(b)}
			x.SetLen(len(b))
			v = append(v, x)
		}
	}
	room.iov = v
	if len(v) == 0 {
		return 0, 0
	}
	room.msg.Iov = unsafe.SliceData(v)
	room.msg.SetIovlen(len(v))
	n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&room.msg)), noSignal)
	clear(v) // they keep nothing alive
	return int(n), errno
}

// source reads a connection.
type source struct {
	raw syscall.RawConn
	fn  func(fd uintptr) bool
	p   []byte
	n   int
	err error

	least, set int // bytes that a wait is for, and those that the system knows of
}

func newSource(c net.Conn) io.Reader {
	t := tcpOf(c)
	if t == nil {
		return c
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return c
	}
	s := &source{raw: raw, least: 1, set: 1}
	s.fn = s.read // one closure for all calls: no allocation per read
	return s
}

// read is one attempt; false: it would have to wait.
func (s *source) read(fd uintptr) bool {
	for {
		n, errno := rawRead(int(fd), s.p)
		switch errno {
		case 0:
			if s.n = n; n == 0 {
				s.err = io.EOF
			}
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			if s.announce(int(fd)) {
				continue
			}
			return false
		default:
			s.err = errno
		}
		return true
	}
}

// WaitFor implements Patient.
func (s *source) WaitFor(bytes int) { s.least = bytes }

// announce tells the system what the wait that follows is for. less: it was for more until now, so
// that enough may have come already; before 4.18 Linux does not wake the reader for that. A system
// that cannot be told wakes the reader for each packet, as without it.
func (s *source) announce(fd int) (less bool) {
	if s.least == s.set {
		return false
	}
	less = s.least < s.set
	s.set = s.least
	v := int32(s.least)
	_, _, _ = unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v), 0)
	return less
}

func (s *source) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.p, s.n, s.err = p, 0, nil
	err := s.raw.Read(s.fn)
	s.p = nil
	if err == nil {
		err = s.err
	}
	return s.n, err
}
