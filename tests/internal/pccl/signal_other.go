//go:build !unix

package pccl

import "errors"

// Stop freezes the child; this system cannot.
func (p *Process) Stop() error { return errors.ErrUnsupported }

// Cont lets a frozen child go on; this system cannot.
func (p *Process) Cont() error { return errors.ErrUnsupported }
