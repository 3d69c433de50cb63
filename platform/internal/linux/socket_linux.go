package linux

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

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

// SetRetryWait sets TCP_RTO_MAX_MS, which Linux has since 6.15, and which takes a second
// to two minutes.
func SetRetryWait(fd uintptr, d time.Duration) error {
	ms := min(max(d.Milliseconds(), 1000), 120_000)
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, int(ms)))
}

// SetUnsentLimit sets TCP_NOTSENT_LOWAT.
func SetUnsentLimit(fd uintptr, bytes int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes))
}

// SetPacing sets SO_MAX_PACING_RATE; 0: none.
func SetPacing(fd uintptr, bytesPerSecond uint64) error {
	const none = 1<<32 - 1 // of 32 bits, which all kernels take
	if bytesPerSecond == 0 {
		bytesPerSecond = none
	}
	err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, int(uint32(min(bytesPerSecond, none))))
	return os.NewSyscallError("setsockopt", err)
}

// Unsent returns SIOCOUTQNSD.
func Unsent(fd uintptr) (int, error) {
	n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQNSD)
	return n, os.NewSyscallError("ioctl", err)
}

// TCPInfo is TCP_INFO as far as the kernel filled it in.
type TCPInfo struct {
	unix.TCPInfo
	Len uint32
}

// GetTCPInfo fills in info, without allocating. What the kernel does not know of
// is zero, and beyond Len.
func GetTCPInfo(fd uintptr, info *TCPInfo) error {
	*info = TCPInfo{Len: unix.SizeofTCPInfo}
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&info.TCPInfo)), uintptr(unsafe.Pointer(&info.Len)), 0)
	if errno != 0 {
		return os.NewSyscallError("getsockopt", errno)
	}
	return nil
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

// Retries returns after how many retries of what is not acknowledged a connection breaks.
var Retries = sync.OnceValue(func() int {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_retries2")
	if n, bad := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && bad == nil {
		return n
	}
	return 15 // as the kernel has it
})
