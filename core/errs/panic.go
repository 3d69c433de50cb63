package errs

import (
	"fmt"
	"runtime/debug"
)

// Panic is the cause of an error with code Internal that was a panic.
type Panic struct {
	Value any
	Stack []byte // of the goroutine that panicked
}

// Error returns the value; the stack belongs into a log.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Catch is deferred at the start of a goroutine or of a piece of work: a panic
// of op becomes an error with code Internal and a *Panic as its cause, for
// which to is called. The process goes on. A value that is such an error already
// stays what it is.
func Catch(op string, to func(err *Error)) {
	if v := recover(); v != nil {
		if e, ok := v.(*Error); ok && StackOf(e) != "" {
			to(e) // passed on by another goroutine
			return
		}
		to(New(Internal, op, &Panic{Value: v, Stack: debug.Stack()}).
			WithHint("this is a bug: report it with the log line that has the stack"))
	}
}

// StackOf returns the stack of the panic that err comes from, "" if it does not come from one.
func StackOf(err *Error) string {
	if p, ok := err.Err.(*Panic); ok {
		return string(p.Stack)
	}
	return ""
}
