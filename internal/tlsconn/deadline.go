package tlsconn

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// deadline is one of the socket, which can be waited for, too.
type deadline struct {
	sock func(time.Time) error // sets it

	mu      sync.Mutex
	at      time.Time
	changed chan struct{} // nil: nobody waits
	lent    bool          // a renewal writes to the socket, and waits as long as it takes
}

func (d *deadline) set(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = t
	d.tell()
	if d.lent {
		return nil
	}
	return d.sock(t)
}

// lend takes the deadline from the socket.
func (d *deadline) lend() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lent = true
	_ = d.sock(time.Time{}) // a socket that is closed says so when it is used
}

// interrupt ends what waits while the deadline is lent.
func (d *deadline) interrupt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lent {
		_ = d.sock(past)
	}
}

// giveBack is for when what lend was for is over.
func (d *deadline) giveBack() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lent {
		d.lent = false
		_ = d.sock(d.at)
	}
}

// wake has those that wait look again.
func (d *deadline) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tell()
}

// tell is wake with d.mu held.
func (d *deadline) tell() {
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

func (d *deadline) get() (time.Time, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
	return d.at, d.changed
}

// await waits for over, but no longer than by says, and until the connection is closed.
func (c *Conn) await(over <-chan struct{}, by *deadline) error {
	for {
		at, changed := by.get()
		if c.closed.Load() {
			return net.ErrClosed
		}
		if err := wait(over, changed, at); err != errChanged {
			return err
		}
	}
}

var errChanged = errors.New("the deadline has changed")

// wait is await for one deadline; errChanged: there is another one.
func wait(over, changed <-chan struct{}, at time.Time) error {
	var late <-chan time.Time
	if !at.IsZero() {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-over:
		return nil
	case <-changed:
		return errChanged
	case <-late:
		return os.ErrDeadlineExceeded
	}
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.readBy.set(t), c.writeBy.set(t))
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.readBy.set(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.writeBy.set(t) }
