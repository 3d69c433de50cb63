package peer

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/platform"
)

// listenSlots is how far the first P2P port is moved at random, so that a peer
// that rejoins rarely gets the port of its predecessor (quirk Q7).
const listenSlots = 16

// listenTries is how many ports are tried from each base on.
const listenTries = 8192

// listeners are the three listen sockets of a peer (control spec, section 1.1).
type listeners struct{ p2p, state, bench net.Listener }

func (l *listeners) close() {
	for _, x := range []net.Listener{l.p2p, l.state, l.bench} {
		if x != nil {
			x.Close()
		}
	}
}

// listenAll listens on addr, or on all addresses of the network's family if it
// is the zero Addr; on the exact ports (state, P2P, benchmark) if there are
// any, else from base on.
func listenAll(ctx context.Context, network string, addr netip.Addr, base int, exact []int) (l listeners, err error) {
	if !addr.IsValid() {
		addr = netip.IPv4Unspecified()
		if network != "tcp4" {
			addr = netip.IPv6Unspecified()
		}
	}
	ports, tries := []int{base, base + 1 + 3*rand.IntN(listenSlots), base + 2}, listenTries
	if exact != nil {
		ports, tries = exact, 1
	} else if base < 0 {
		ports = []int{0, 0, 0}
	}
	listen := func(i int) (net.Listener, error) {
		return platform.ListenFrom(ctx, network, netip.AddrPortFrom(addr, uint16(ports[i])), tries)
	}
	if l.p2p, err = listen(1); err == nil {
		if l.state, err = listen(0); err == nil {
			l.bench, err = listen(2)
		}
	}
	if err != nil {
		l.close()
	}
	return l, err
}

// announced returns the ports that others are told: of state, P2P, benchmark.
func (l *listeners) announced(ports []int) (state, p2p, bench uint16) {
	if ports != nil {
		return uint16(ports[0]), uint16(ports[1]), uint16(ports[2])
	}
	return portOf(l.state), portOf(l.p2p), portOf(l.bench)
}

func portOf(ln net.Listener) uint16 { return uint16(ln.Addr().(*net.TCPAddr).Port) }

// acceptor accepts connections and hands each to serve in a goroutine of its
// own. At most maxPending handshakes are in progress: the oldest is closed for
// a newcomer, first among those that only wait for others of their pool, so that
// neither silent connections nor those with great numbers keep a peer out.
type acceptor struct {
	ln     net.Listener
	serve  func(net.Conn)
	failed func(error)   // an error of accept, which is waited out
	over   chan struct{} // closed by close

	mu      sync.Mutex
	pending []net.Conn // oldest first, but that those which wait come before others
	waiting int        // of these, from the first on: they wait for others of their pool
	closed  bool
	wg      sync.WaitGroup
}

func (a *acceptor) run() { platform.AcceptLoop(a.ln, a.over, a.take, a.failed) }

// take begins the handshake of an accepted connection.
func (a *acceptor) take(c net.Conn) {
	c = transport.Quiet(c)
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
		defer a.settled(c)
		a.serve(c)
	}()
}

// settled ends the pending state of c: its handshake succeeded or failed.
func (a *acceptor) settled(c net.Conn) {
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

// waits says that c has said hello and waits for the other connections of its
// pool. Whoever wants can wait like that, so it is the first to go for a newcomer,
// and there is room for a few of them only.
func (a *acceptor) waits(c net.Conn) {
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
