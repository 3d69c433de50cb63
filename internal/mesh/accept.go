package mesh

import (
	"net"
	"slices"
	"sync"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/platform"
)

// acceptor accepts connections and hands each to serve in a goroutine of its
// own. At most maxPending handshakes are in progress: the oldest is closed for
// a newcomer, first among those that only wait for others of their pool, so that
// neither silent connections nor those with great numbers keep a peer out.
type acceptor struct {
	ln     net.Listener
	secure Secure // may be nil
	serve  func(net.Conn)
	failed func(error)   // an error of accept, which is waited out
	over   chan struct{} // closed by close

	mu      sync.Mutex
	pending []net.Conn // oldest first, but that those which wait come before others
	waiting int        // of these, from the first on: they wait for others of their pool
	closed  bool
	wg      sync.WaitGroup
}

func (a *acceptor) run() { platform.AcceptLoop(a.ln, a.over, a.add, a.failed) }

// add begins the handshake of an accepted connection.
func (a *acceptor) add(c net.Conn) {
	c = transport.Quiet(c)
	if a.secure != nil {
		c = a.secure.Wrap(c)
	}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		c.Close()
		return
	}
	if len(a.pending) >= maxPending {
		a.pending[0].Close()
		a.drop(0)
	}
	a.pending = append(a.pending, c)
	a.wg.Add(1)
	a.mu.Unlock()
	go func() {
		defer a.wg.Done()
		defer a.ended(c)
		a.serve(c)
	}()
}

// ended ends the pending state of c: its handshake succeeded or failed.
func (a *acceptor) ended(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(a.pending, c); i >= 0 {
		a.drop(i)
	}
}

// drop takes the connection at i off the list. a.mu is held.
func (a *acceptor) drop(i int) {
	a.pending = slices.Delete(a.pending, i, i+1)
	if i < a.waiting {
		a.waiting--
	}
}

// demote notes that c has said hello and waits for the other connections of its
// pool. Anybody can wait like that, so it is the first to go for a newcomer, and there
// is room for a few of them only.
func (a *acceptor) demote(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.Index(a.pending, c)
	if i < a.waiting {
		return
	}
	a.drop(i)
	a.pending = slices.Insert(a.pending, a.waiting, c)
	if a.waiting++; a.waiting > maxWaiting {
		a.pending[0].Close()
		a.drop(0)
	}
}

// close lets nobody in any more and ends the handshakes in progress. It waits
// for none of them: it may be one of them that calls it.
func (a *acceptor) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ln.Close()
	if !a.closed {
		a.closed = true
		close(a.over)
	}
	for _, c := range a.pending {
		c.Close()
	}
}

// wait waits until every handshake has ended; close comes before.
func (a *acceptor) wait() { a.wg.Wait() }
