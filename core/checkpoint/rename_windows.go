package checkpoint

import "golang.org/x/sys/windows"

// rename moves a closed file to its final name and returns when the move is
// on the disk.
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
