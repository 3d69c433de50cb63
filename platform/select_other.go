//go:build !linux && !darwin && !windows

package platform

import (
	"errors"
	"time"
)

var native OS = system{}

// system is the portable fallback: Classify knows the errors of the standard
// library, every option is left as it is.
type system struct{}

func (system) Name() string                                { return "portable" }
func (system) Kind(error) Class                            { return ClassNone }
func (system) SetUserTimeout(uintptr, time.Duration) error { return errors.ErrUnsupported }
func (system) SetRetryWait(uintptr, time.Duration) error   { return errors.ErrUnsupported }
func (system) SetQuickAck(uintptr) error                   { return errors.ErrUnsupported }
func (system) Congestion(uintptr) (string, error)          { return "", errors.ErrUnsupported }
func (system) SetCongestion(uintptr, string) error         { return errors.ErrUnsupported }
func (system) SetPacing(uintptr, uint64) error             { return errors.ErrUnsupported }
func (system) Unsent(uintptr) (int, error)                 { return 0, errors.ErrUnsupported }
func (system) SetUnsentLimit(uintptr, int) error           { return errors.ErrUnsupported }
func (system) PrepareListener(uintptr) error               { return nil }
func (system) OpenHandles() (int, error)                   { return 0, errors.ErrUnsupported }
func (system) Wait(*uint32, uint32, time.Duration) error   { return errors.ErrUnsupported }
func (system) Wake(*uint32)                                {}
func (system) SetAffinity([]int) error                     { return errors.ErrUnsupported }
func (system) Affinity() ([]int, error)                    { return nil, errors.ErrUnsupported }
func (system) SetThreadName(string) error                  { return errors.ErrUnsupported }
func (system) ThreadName() (string, error)                 { return "", errors.ErrUnsupported }
func (system) ThreadID() int                               { return 0 }
func (system) Node(int) (int, error)                       { return 0, errors.ErrUnsupported }
