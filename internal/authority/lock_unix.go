//go:build unix

package authority

import (
	"os"

	"golang.org/x/sys/unix"
)

// lock waits for the only right to change the directory whose lock file is named.
// It ends with the process at the latest.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

func private(mode os.FileMode) bool { return mode.Perm()&0o077 == 0 }

// syncDir brings what was renamed in a directory to the disk, where the system can.
func syncDir(path string) {
	if f, err := os.Open(path); err == nil {
		_ = f.Sync()
		f.Close()
	}
}
