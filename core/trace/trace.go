package trace

import "time"

// Listener is a set of optional functions; nil ones are skipped. A communicator
// calls them one at a time, in the order of what they tell, on a goroutine that
// does nothing else (see Queue), so they may take their time and call the
// communicator, and a little after the fact. One that does not return stops
// nothing: what it has missed is dropped, and the log says how much. A panic
// ends the communicator with an internal error. Close waits a second for calls
// that are due; inside one of these functions it waits for itself that long.
// An engine that is used by itself calls them where it stands; there they must
// return at once.
type Listener struct {
	// OpStarted is called when the data phase of an operation begins.
	OpStarted func(tag, seq uint64)
	// OpEnded is called when it has ended; err is nil if it is complete.
	OpEnded func(tag, seq uint64, err error)
	// ConnLost is called when a connection to (send) or from the peer breaks.
	ConnLost func(peer string, number uint32, send bool, err error)
	// BecameActive is called when an operation begins while none is in its data
	// phase, BecameIdle when none is any more. They alternate, beginning with BecameActive,
	// which comes before the OpStarted of that operation; BecameIdle comes after
	// the OpEnded of the last one. Neither may start or end an operation.
	BecameActive, BecameIdle func()
	// Stuck is called when an operation has not moved for the time since; waits says what it
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

// Edges reports whether any listener hears of BecameActive or BecameIdle.
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

// Queued returns a listener that calls l through q, nil if l is. Of the edges
// those that no longer alternate, because some were dropped, are left out.
func (l *Listener) Queued(q *Queue) *Listener {
	if l == nil {
		return nil
	}
	var to Listener
	if f := l.OpStarted; f != nil {
		to.OpStarted = func(tag, seq uint64) { q.Put(func() { f(tag, seq) }) }
	}
	if f := l.OpEnded; f != nil {
		to.OpEnded = func(tag, seq uint64, err error) { q.Put(func() { f(tag, seq, err) }) }
	}
	if f := l.ConnLost; f != nil {
		to.ConnLost = func(peer string, number uint32, send bool, err error) { q.Put(func() { f(peer, number, send, err) }) }
	}
	if f := l.Stuck; f != nil {
		to.Stuck = func(tag, seq uint64, since time.Duration, waits string) { q.Put(func() { f(tag, seq, since, waits) }) }
	}
	if l.Edges() {
		active := false // of the goroutine of q
		to.BecameActive = func() {
			q.Put(func() {
				if !active {
					active = true
					l.Active()
				}
			})
		}
		to.BecameIdle = func() {
			q.Put(func() {
				if active {
					active = false
					l.Idle()
				}
			})
		}
	}
	return &to
}
