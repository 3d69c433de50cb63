// Package trace lets a listener follow the data path.
package trace

import "time"

// Listener is a set of optional functions. They are called on the data path's
// own goroutines and must return at once; nil functions are skipped.
type Listener struct {
	// OpStarted: the data phase of an operation began.
	OpStarted func(tag, seq uint64)
	// OpEnded: it ended; err is nil if it is complete.
	OpEnded func(tag, seq uint64, err error)
	// ConnLost: a connection to (send) or from the peer broke.
	ConnLost func(peer string, number uint32, send bool, err error)
	// BecameActive: an operation began while none was in its data phase.
	// BecameIdle: none is any more. They alternate, beginning with BecameActive,
	// which comes before the OpStarted of that operation; BecameIdle comes after
	// the OpEnded of the last one. Neither may start or end an operation.
	BecameActive, BecameIdle func()
	// Stuck: an operation has not moved for the time since; waits says what it
	// waits for and names the role and the peer.
	Stuck func(tag, seq uint64, since time.Duration, waits string)
}

// Started calls OpStarted if l and it are set.
func (l *Listener) Started(tag, seq uint64) {
	if l != nil && l.OpStarted != nil {
		l.OpStarted(tag, seq)
	}
}

// Ended calls OpEnded if l and it are set.
func (l *Listener) Ended(tag, seq uint64, err error) {
	if l != nil && l.OpEnded != nil {
		l.OpEnded(tag, seq, err)
	}
}

// Lost calls ConnLost if l and it are set.
func (l *Listener) Lost(peer string, number uint32, send bool, err error) {
	if l != nil && l.ConnLost != nil {
		l.ConnLost(peer, number, send, err)
	}
}

// Edges reports whether anybody listens to BecameActive or BecameIdle.
func (l *Listener) Edges() bool { return l != nil && (l.BecameActive != nil || l.BecameIdle != nil) }

// Active calls BecameActive if l and it are set.
func (l *Listener) Active() {
	if l != nil && l.BecameActive != nil {
		l.BecameActive()
	}
}

// Idle calls BecameIdle if l and it are set.
func (l *Listener) Idle() {
	if l != nil && l.BecameIdle != nil {
		l.BecameIdle()
	}
}

// Stands calls Stuck if l and it are set.
func (l *Listener) Stands(tag, seq uint64, since time.Duration, waits string) {
	if l != nil && l.Stuck != nil {
		l.Stuck(tag, seq, since, waits)
	}
}
