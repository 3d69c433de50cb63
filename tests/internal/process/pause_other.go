//go:build !unix

package process

import (
	"errors"
	"os"
)

// CanPause says whether Pause and Resume work on this system.
const CanPause = false

var errSignal = errors.New("this system has no such signal")

// Pause stops a process until Resume.
func Pause(*os.Process) error { return errSignal }

// Resume lets a paused process go on.
func Resume(*os.Process) error { return errSignal }

// Dump asks a Go program to print what its goroutines wait for, and to end.
func Dump(*os.Process) error { return errSignal }
