//go:build unix

package fenced

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func reserve(n int) (m []byte, free func() error, err error) {
	page := os.Getpagesize()
	size := max(1, (n+page-1)/page) * page
	all, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, err
	}
	free = func() error { return unix.Munmap(all) }
	err = errors.Join(unix.Mprotect(all[:page], unix.PROT_NONE), unix.Mprotect(all[page+size:], unix.PROT_NONE))
	if err != nil {
		return nil, nil, errors.Join(err, free())
	}
	return all[page : page+size : page+size], free, nil
}
