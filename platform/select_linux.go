package platform

import (
	"time"

	"github.com/gopccl/gopccl/platform/linux"
)

var native OS = system{}

type system struct{}

func (system) Name() string                                     { return "linux" }
func (system) Kind(err error) Class                             { return Class(linux.Kind(err)) }
func (system) SetUserTimeout(fd uintptr, d time.Duration) error { return linux.SetUserTimeout(fd, d) }
func (system) SetQuickAck(fd uintptr) error                     { return linux.SetQuickAck(fd) }
func (system) Congestion(fd uintptr) (string, error)            { return linux.Congestion(fd) }
func (system) SetCongestion(fd uintptr, name string) error      { return linux.SetCongestion(fd, name) }
func (system) RTT(fd uintptr) (time.Duration, error)            { return linux.RTT(fd) }
func (system) PrepareListener(fd uintptr) error                 { return nil }
func (system) OpenHandles() (int, error)                        { return linux.OpenDescriptors() }
