package platform

import (
	"errors"
	"time"

	"github.com/gopccl/gopccl/platform/darwin"
)

var native OS = system{}

type system struct{}

func (system) Name() string                                     { return "darwin" }
func (system) Kind(err error) Class                             { return Class(darwin.Kind(err)) }
func (system) SetUserTimeout(fd uintptr, d time.Duration) error { return darwin.SetDropTime(fd, d) }
func (system) SetQuickAck(uintptr) error                        { return errors.ErrUnsupported }
func (system) Congestion(uintptr) (string, error)               { return "", errors.ErrUnsupported }
func (system) SetCongestion(uintptr, string) error              { return errors.ErrUnsupported }
func (system) RTT(uintptr) (time.Duration, error)               { return 0, errors.ErrUnsupported }
func (system) PrepareListener(uintptr) error                    { return nil }
func (system) OpenHandles() (int, error)                        { return darwin.OpenDescriptors() }
