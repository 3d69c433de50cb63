package platform

import (
	"errors"
	"time"

	"github.com/gopccl/gopccl/platform/internal/windows"
)

var native OS = system{}

type system struct{}

func (system) Name() string                                     { return "windows" }
func (system) Kind(err error) Class                             { return Class(windows.Kind(err)) }
func (system) SetUserTimeout(fd uintptr, d time.Duration) error { return windows.SetMaxRT(fd, d) }
func (system) SetRetryWait(uintptr, time.Duration) error        { return errors.ErrUnsupported }
func (system) SetQuickAck(uintptr) error                        { return errors.ErrUnsupported }
func (system) Congestion(uintptr) (string, error)               { return "", errors.ErrUnsupported }
func (system) SetCongestion(uintptr, string) error              { return errors.ErrUnsupported }
func (system) SetPacing(uintptr, uint64) error                  { return errors.ErrUnsupported }
func (system) Unsent(uintptr) (int, error)                      { return 0, errors.ErrUnsupported }
func (system) SetUnsentLimit(uintptr, int) error                { return errors.ErrUnsupported }
func (system) PrepareListener(fd uintptr) error                 { return windows.SetExclusive(fd) }
func (system) OpenHandles() (int, error)                        { return windows.OpenHandles() }
func (system) Wait(addr *uint32, old uint32, d time.Duration) error {
	return windows.Wait(addr, old, d)
}
func (system) Wake(addr *uint32)               { windows.Wake(addr) }
func (system) SetAffinity(cpus []int) error    { return windows.SetAffinity(cpus) }
func (system) Affinity() ([]int, error)        { return windows.Affinity() }
func (system) SetThreadName(name string) error { return windows.SetThreadName(name) }
func (system) ThreadName() (string, error)     { return windows.ThreadName() }
func (system) ThreadID() int                   { return windows.ThreadID() }
func (system) Node(int) (int, error)           { return 0, errors.ErrUnsupported }
