//go:build !windows

package checkpoint

import (
	"errors"
	"os"
	"syscall"
)

// rename moves a closed file to its final name.
func rename(from, to string) error { return os.Rename(from, to) }

// syncDir makes a rename in dir survive a crash. File systems that cannot
// sync a directory say so with EINVAL or ENOTSUP; there is no more to be had.
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
