package platform

import (
	"time"

	"github.com/gopccl/gopccl/platform/internal/linux"
	"github.com/gopccl/gopccl/platform/internal/unix"
)

var native OS = system{}

type system struct{}

func (system) Name() string         { return "linux" }
func (system) Kind(err error) Class { return Class(unix.Kind(err)) }

func (system) SetUserTimeout(fd uintptr, d time.Duration) error { return linux.SetUserTimeout(fd, d) }
func (system) SetRetryWait(fd uintptr, d time.Duration) error   { return linux.SetRetryWait(fd, d) }
func (system) SetQuickAck(fd uintptr) error                     { return linux.SetQuickAck(fd) }
func (system) Congestion(fd uintptr) (string, error)            { return linux.Congestion(fd) }
func (system) SetCongestion(fd uintptr, name string) error      { return linux.SetCongestion(fd, name) }
func (system) SetPacing(fd uintptr, rate uint64) error          { return linux.SetPacing(fd, rate) }
func (system) Unsent(fd uintptr) (int, error)                   { return linux.Unsent(fd) }
func (system) SetUnsentLimit(fd uintptr, n int) error           { return linux.SetUnsentLimit(fd, n) }
func (system) PrepareListener(fd uintptr) error                 { return nil }
func (system) OpenHandles() (int, error)                        { return linux.OpenDescriptors() }

func (system) Wait(addr *uint32, old uint32, d time.Duration) error { return linux.Wait(addr, old, d) }
func (system) Wake(addr *uint32)                                    { linux.Wake(addr) }
func (system) SetAffinity(cpus []int) error                         { return linux.SetAffinity(cpus) }
func (system) Affinity() ([]int, error)                             { return linux.Affinity() }
func (system) SetThreadName(name string) error                      { return linux.SetThreadName(name) }
func (system) ThreadName() (string, error)                          { return linux.ThreadName() }
func (system) ThreadID() int                                        { return linux.ThreadID() }
func (system) Node(cpu int) (int, error)                            { return linux.Node(cpu) }
