//go:build unix

package lead

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrTaken says that another process has the lock.
var ErrTaken = errors.New("locked")

// Lock takes the lock of a file, which is made if it does not exist. The lock ends with the
// returned file, or with the process. It does not wait: ErrTaken.
func Lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EINTR {
			break
		}
	}
	if err == nil {
		return f, nil
	}
	f.Close()
	if err == unix.EWOULDBLOCK {
		err = ErrTaken
	}
	return nil, err
}

// rename moves a closed file to its final name.
func rename(from, to string) error { return os.Rename(from, to) }

// syncDir makes a rename in dir survive a crash. File systems that cannot sync a
// directory say so with EINVAL or ENOTSUP; there is no more to be had.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}
