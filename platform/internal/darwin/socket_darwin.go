package darwin

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SetDropTime sets TCP_RXT_CONNDROPTIME: the connection breaks when sent data
// had to be repeated for d (rounded up to whole seconds).
func SetDropTime(fd uintptr, d time.Duration) error {
	s := (d + time.Second - 1) / time.Second
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RXT_CONNDROPTIME, int(s)))
}

// notSentLowat is TCP_NOTSENT_LOWAT of netinet/tcp.h.
const notSentLowat = 0x201

// SetUnsentLimit sets TCP_NOTSENT_LOWAT.
func SetUnsentLimit(fd uintptr, bytes int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, notSentLowat, bytes))
}

// TCPConnectionInfo returns TCP_CONNECTION_INFO.
func TCPConnectionInfo(fd uintptr) (*unix.TCPConnectionInfo, error) {
	info, err := unix.GetsockoptTCPConnectionInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_CONNECTION_INFO)
	return info, os.NewSyscallError("getsockopt", err)
}

// OpenDescriptors counts the open descriptors of this process, without the
// one that the counting itself needs.
func OpenDescriptors() (int, error) {
	names, err := os.ReadDir("/dev/fd")
	if err != nil {
		return 0, err
	}
	return len(names) - 1, nil
}
