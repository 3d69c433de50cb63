package sharedstate

import (
	"net"
	"sync"
	"time"
)

const (
	// devicePlaces is how many tensors are read from devices at a time: each needs
	// pinned memory for as long as its reader takes.
	devicePlaces = 64
	// deviceIdle is how long a reader may take nothing while others wait for its place.
	deviceIdle = 5 * time.Second
)

// places are what readers of tensors on devices need. A reader that takes nothing
// gives way to those that wait, so that strangers cannot keep them from peers.
type places struct {
	mu    sync.Mutex
	held  map[net.Conn]time.Time // when it last took something
	freed chan struct{}          // closed and replaced when a place is given back
}

func newPlaces() *places {
	return &places{held: make(map[net.Conn]time.Time), freed: make(chan struct{})}
}

// take waits until conn has a place, or end is closed.
func (p *places) take(conn net.Conn, end <-chan struct{}) error {
	for {
		p.mu.Lock()
		if len(p.held) < devicePlaces {
			p.held[conn] = time.Now()
			p.mu.Unlock()
			return nil
		}
		slowest, since := net.Conn(nil), time.Time{}
		for c, at := range p.held {
			if slowest == nil || at.Before(since) {
				slowest, since = c, at
			}
		}
		wait := deviceIdle - time.Since(since)
		if wait <= 0 {
			p.held[slowest] = time.Now() // it is on its way out
			slowest.Close()
			wait = deviceIdle
		}
		freed := p.freed
		p.mu.Unlock()
		bell := time.NewTimer(wait)
		select {
		case <-freed:
		case <-bell.C:
		case <-end:
			bell.Stop()
			return net.ErrClosed
		}
		bell.Stop()
	}
}

// moved notes that conn has taken something.
func (p *places) moved(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[conn] = time.Now()
}

// give gives the place of conn back.
func (p *places) give(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.held, conn)
	close(p.freed)
	p.freed = make(chan struct{})
}
