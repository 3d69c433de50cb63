//go:build unix

package durable

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// replace moves a closed file to a path, in place of what is there.
func replace(from, to string) error { return os.Rename(from, to) }

// appear moves a closed file to a path where nothing is.
func appear(from, to string) error {
	err := os.Link(from, to)
	if err == nil {
		_ = os.Remove(from) // both are the same file
	}
	return err
}

// syncDir passes over directories that this process may write to and not read, and file
// systems that say with EINVAL or ENOTSUP that they cannot: there is no more to be had.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}
