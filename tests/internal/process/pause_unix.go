//go:build unix

package process

import (
	"os"
	"syscall"
)

// CanPause says whether Pause and Resume work on this system.
const CanPause = true

// Pause stops a process until Resume.
func Pause(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func Resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// Dump asks a Go program to print what its goroutines wait for, and to end.
func Dump(p *os.Process) error { return p.Signal(syscall.SIGQUIT) }
