package platform

import (
	"errors"
	"time"

	"github.com/gopccl/gopccl/platform/windows"
)

var native OS = system{}

type system struct{}

func (system) Name() string                                     { return "windows" }
func (system) Kind(err error) Class                             { return Class(windows.Kind(err)) }
func (system) SetUserTimeout(fd uintptr, d time.Duration) error { return windows.SetMaxRT(fd, d) }
func (system) SetQuickAck(uintptr) error                        { return errors.ErrUnsupported }
func (system) Congestion(uintptr) (string, error)               { return "", errors.ErrUnsupported }
func (system) SetCongestion(uintptr, string) error              { return errors.ErrUnsupported }
func (system) RTT(uintptr) (time.Duration, error)               { return 0, errors.ErrUnsupported }
func (system) PrepareListener(fd uintptr) error                 { return windows.SetExclusive(fd) }
func (system) OpenHandles() (int, error)                        { return windows.OpenHandles() }
