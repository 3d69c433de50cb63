package authority

import (
	"os"

	"golang.org/x/sys/windows"
)

// lock waits for the only right to change the directory whose lock file is named.
// It ends with the process at the latest.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, &windows.Overlapped{}); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// The mode of a file says nothing here about other users.
func private(os.FileMode) bool { return true }

// syncDir does nothing: renames are in the journal of the file system.
func syncDir(string) {}
