package platform

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
)

// Class says what an error of the network or the system means, whatever its
// number is on this system. The zero value is ClassNone.
type Class string

// Classes of errors.
const (
	// ClassNone is the class of a nil error.
	ClassNone Class = ""
	// ClassOther is every error that fits no other class.
	ClassOther Class = "other"
	// ClassRefused means that nothing listens there.
	ClassRefused Class = "refused"
	// ClassReset means that the other end broke the connection, or it broke on the way.
	ClassReset Class = "reset"
	// ClassEnded means that the other end closed the connection in good order.
	ClassEnded Class = "ended"
	// ClassTimeout means that a deadline passed, or the other end stopped answering.
	ClassTimeout Class = "timeout"
	// ClassUnreachable means that there is no route to the host or network.
	ClassUnreachable Class = "unreachable"
	// ClassAddrInUse means that another socket holds the address.
	ClassAddrInUse Class = "address in use"
	// ClassAddrUnavailable means that the address is not one of this host.
	ClassAddrUnavailable Class = "address unavailable"
	// ClassTooManyFiles means that the process or the system has no descriptor left.
	ClassTooManyFiles Class = "too many files"
	// ClassNoMemory means that the system has no buffers left.
	ClassNoMemory Class = "no memory"
	// ClassInterrupted means that a signal came in between: try again.
	ClassInterrupted Class = "interrupted"
	// ClassWouldBlock means not now: wait until the socket is ready.
	ClassWouldBlock Class = "would block"
	// ClassPermission means that the system forbids it.
	ClassPermission Class = "permission"
	// ClassUnsupported means that the system does not know the option or operation.
	ClassUnsupported Class = "unsupported"
	// ClassClosed means that this side closed the connection, or it was never open.
	ClassClosed Class = "closed"
	// ClassCanceled means that a context was canceled.
	ClassCanceled Class = "canceled"
)

// Classify returns the class of err, looking through every wrapper. No number
// of an operating system leaves this package.
func Classify(err error) Class {
	if err == nil {
		return ClassNone
	}
	// Go's own errors first: a deadline, a closed connection and a canceled
	// context look the same on every system.
	switch {
	case errors.Is(err, context.Canceled):
		return ClassCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return ClassTimeout
	case errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe):
		return ClassClosed
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ClassEnded
	}
	if c := native.Kind(err); c != ClassNone {
		return c
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return ClassTimeout
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		return ClassPermission
	case errors.Is(err, errors.ErrUnsupported):
		return ClassUnsupported
	}
	return ClassOther
}
