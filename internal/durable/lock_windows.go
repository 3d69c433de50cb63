package durable

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lock locks a file, and does not wait.
func lock(f *os.File) error {
	const how = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, &windows.Overlapped{})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING):
		return ErrTaken
	}
	return &os.PathError{Op: "lock", Path: f.Name(), Err: err}
}
