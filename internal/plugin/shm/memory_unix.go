//go:build unix

package shm

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Memory is memory that processes share. Pages exist from their first use on.
type Memory struct {
	File  *os.File
	Bytes []byte
}

// New makes memory of size bytes.
func New(size int) (*Memory, error) {
	f, err := anonymous()
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	if err := f.Truncate(int64(size)); err != nil {
		f.Close()
		return nil, fmt.Errorf("shared memory of %d bytes: %w", size, err)
	}
	if err := seal(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal %d bytes of shared memory: %w", size, err)
	}
	return Map(f, size)
}

// Map maps size bytes of f, which it takes over.
func Map(f *os.File, size int) (*Memory, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("map %d bytes of shared memory: %w", size, err)
	}
	return &Memory{f, b}, nil
}

// Close unmaps the memory: nobody may use it any more.
func (m *Memory) Close() error {
	m.File.Close()
	return unix.Munmap(m.Bytes)
}

// Dup returns another descriptor of f.
func Dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate a descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Pair returns two connected sockets: ours, to be used with deadlines, and that
// of the plugin.
func Pair() (ours, theirs *os.File, err error) {
	fds, err := socketpair()
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "plugin"), os.NewFile(uintptr(fds[1]), "host"), nil
}

// Inherited returns descriptor n, that of a plugin's start, as a file.
func Inherited(n int) *os.File {
	unix.CloseOnExec(n)
	return os.NewFile(uintptr(n), "host")
}
