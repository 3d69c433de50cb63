package shm

import (
	"errors"
	"os"
)

// Memory is memory that processes share.
type Memory struct {
	File  *os.File
	Bytes []byte
}

var errWindows = errors.New("quantizer and backend plugins are not available on Windows; build them in")

// New fails: descriptors are not inherited on this system.
func New(int) (*Memory, error) { return nil, errWindows }

// Map fails.
func Map(*os.File, int) (*Memory, error) { return nil, errWindows }

// Close does nothing.
func (*Memory) Close() error { return nil }

// Dup fails.
func Dup(*os.File) (*os.File, error) { return nil, errWindows }

// Pair fails.
func Pair() (ours, theirs *os.File, err error) { return nil, nil, errWindows }

// Inherited returns nil.
func Inherited(int) *os.File { return nil }

// Release does nothing.
func Release([]byte) {}
