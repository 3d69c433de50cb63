package durable

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// A file that somebody reads cannot be replaced, so it is tried again for a while.
const (
	tries = 50
	pause = 20 * time.Millisecond
)

// replace moves a closed file to a path, in place of what is there. It returns when the
// move is on the disk.
func replace(from, to string) (err error) {
	for i := range tries {
		if i > 0 {
			time.Sleep(pause)
		}
		err = move(from, to, windows.MOVEFILE_REPLACE_EXISTING)
		if !errors.Is(err, windows.ERROR_SHARING_VIOLATION) && !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			break
		}
	}
	return err
}

// appear is replace to a path where nothing is.
func appear(from, to string) error { return move(from, to, 0) }

func move(from, to string, how uint32) error {
	f, err := windows.UTF16PtrFromString(from)
	if err != nil {
		return err
	}
	t, err := windows.UTF16PtrFromString(to)
	if err != nil {
		return err
	}
	if err := windows.MoveFileEx(f, t, how|windows.MOVEFILE_WRITE_THROUGH); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// syncDir does nothing: Windows has no way to sync a directory, and the moves have waited.
func syncDir(string) error { return nil }
