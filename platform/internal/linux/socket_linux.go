package linux

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SetUserTimeout sets TCP_USER_TIMEOUT: the connection breaks when sent data
// stays unacknowledged for d (rounded up to whole milliseconds).
func SetUserTimeout(fd uintptr, d time.Duration) error {
	ms := (d + time.Millisecond - 1) / time.Millisecond
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ms)))
}

// UserTimeout returns TCP_USER_TIMEOUT.
func UserTimeout(fd uintptr) (time.Duration, error) {
	ms, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	return time.Duration(ms) * time.Millisecond, os.NewSyscallError("getsockopt", err)
}

// SetQuickAck sets TCP_QUICKACK, which the kernel takes back when it pleases.
func SetQuickAck(fd uintptr) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1))
}

// Congestion returns TCP_CONGESTION.
func Congestion(fd uintptr) (string, error) {
	name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	return name, os.NewSyscallError("getsockopt", err)
}

// SetCongestion sets TCP_CONGESTION.
func SetCongestion(fd uintptr, name string) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name))
}

// SetUnsentLimit sets TCP_NOTSENT_LOWAT.
func SetUnsentLimit(fd uintptr, bytes int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes))
}

// RTT returns the smoothed round trip time of TCP_INFO.
func RTT(fd uintptr) (time.Duration, error) {
	info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt", err)
	}
	return time.Duration(info.Rtt) * time.Microsecond, nil
}

// OpenDescriptors counts the open descriptors of this process, without the
// one that the counting itself needs.
func OpenDescriptors() (int, error) {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	return len(names) - 1, nil
}
