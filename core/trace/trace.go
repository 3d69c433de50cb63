// Package trace lets a listener follow the data path.
package trace

// Listener is a set of optional functions. They are called on the data path's
// own goroutines and must return at once; nil functions are skipped.
type Listener struct {
	// OpStarted: the data phase of an operation began.
	OpStarted func(tag, seq uint64)
	// OpEnded: it ended; err is nil if it is complete.
	OpEnded func(tag, seq uint64, err error)
	// ConnLost: a connection to (send) or from the peer broke.
	ConnLost func(peer string, number uint32, send bool, err error)
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
