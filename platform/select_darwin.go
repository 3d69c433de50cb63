package platform

import (
	"errors"
	"time"

	"github.com/gopccl/gopccl/platform/internal/darwin"
	"github.com/gopccl/gopccl/platform/internal/unix"
)

var native OS = system{}

type system struct{}

func (system) Name() string         { return "darwin" }
func (system) Kind(err error) Class { return Class(unix.Kind(err)) }

func (system) SetUserTimeout(fd uintptr, d time.Duration) error { return darwin.SetDropTime(fd, d) }
func (system) SetRetryWait(uintptr, time.Duration) error        { return errors.ErrUnsupported }
func (system) SetQuickAck(uintptr) error                        { return errors.ErrUnsupported }
func (system) Congestion(uintptr) (string, error)               { return "", errors.ErrUnsupported }
func (system) SetCongestion(uintptr, string) error              { return errors.ErrUnsupported }
func (system) SetPacing(uintptr, uint64) error                  { return errors.ErrUnsupported }
func (system) Unsent(uintptr) (int, error)                      { return 0, errors.ErrUnsupported }

func (system) SetUnsentLimit(fd uintptr, n int) error { return darwin.SetUnsentLimit(fd, n) }
func (system) PrepareListener(uintptr) error          { return nil }
func (system) OpenHandles() (int, error)              { return darwin.OpenDescriptors() }

func (system) Wait(addr *uint32, old uint32, d time.Duration) error { return darwin.Wait(addr, old, d) }
func (system) Wake(addr *uint32)                                    { darwin.Wake(addr) }
func (system) SetAffinity([]int) error                              { return errors.ErrUnsupported }
func (system) Affinity() ([]int, error)                             { return nil, errors.ErrUnsupported }
func (system) SetThreadName(string) error                           { return errors.ErrUnsupported }
func (system) ThreadName() (string, error)                          { return "", errors.ErrUnsupported }
func (system) ThreadID() int                                        { return 0 }
func (system) Node(int) (int, error)                                { return 0, errors.ErrUnsupported }
