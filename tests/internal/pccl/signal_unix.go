//go:build unix

package pccl

import "syscall"

// Stop freezes the child (SIGSTOP): it stays connected and says nothing.
func (p *Process) Stop() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Cont lets a frozen child go on (SIGCONT).
func (p *Process) Cont() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
