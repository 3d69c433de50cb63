package shm

import (
	"os"

	"golang.org/x/sys/unix"
)

func anonymous() (*os.File, error) {
	fd, err := unix.MemfdCreate("gopccl-plugin", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "memfd"), nil
}

// seal fixes the size of f for everybody who has it. Without it a plugin could
// cut the file short, and the host's next access to what is gone would be a
// SIGBUS, which ends a Go program.
func seal(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	return err
}

func socketpair() ([2]int, error) {
	return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
}

// Release gives the pages of b, which starts at a page's border, back to the system.
func Release(b []byte) { _ = unix.Madvise(b, unix.MADV_REMOVE) }
