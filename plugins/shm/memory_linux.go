package shm

import (
	"os"

	"golang.org/x/sys/unix"
)

func anonymous() (*os.File, error) {
	fd, err := unix.MemfdCreate("gopccl-plugin", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "memfd"), nil
}

func socketpair() ([2]int, error) {
	return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
}

// Release gives the pages of b, which starts at a page's border, back to the system.
func Release(b []byte) { _ = unix.Madvise(b, unix.MADV_REMOVE) }
