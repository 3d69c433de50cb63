package lead

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
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
	const how = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	if err = windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, &windows.Overlapped{}); err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		err = ErrTaken
	}
	return nil, err
}

// rename moves a closed file to its final name and returns when the move is on the disk.
func rename(from, to string) error {
	f, err := windows.UTF16PtrFromString(from)
	if err != nil {
		return err
	}
	t, err := windows.UTF16PtrFromString(to)
	if err != nil {
		return err
	}
	return windows.MoveFileEx(f, t, windows.MOVEFILE_REPLACE_EXISTING|windows.MOVEFILE_WRITE_THROUGH)
}

// syncDir does nothing: Windows has no way to sync a directory, rename waited.
func syncDir(string) error { return nil }
