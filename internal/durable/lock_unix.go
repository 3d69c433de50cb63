//go:build unix

package durable

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// lock locks a file for this process, and does not wait. Unlike flock this is not passed on
// to processes that are forked: one that outlives a master would keep its directory.
func lock(f *os.File) error {
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES):
			return ErrTaken
		case !errors.Is(err, unix.EINTR):
			return &os.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
	}
}
