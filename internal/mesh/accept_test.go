package mesh

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hall is a listener whose connections the test makes.
type hall struct {
	come chan net.Conn
	once sync.Once
	over chan struct{}
}

func (h *hall) Accept() (net.Conn, error) {
	select {
	case c := <-h.come:
		return c, nil
	case <-h.over:
		return nil, net.ErrClosed
	}
}

func (h *hall) Close() error   { h.once.Do(func() { close(h.over) }); return nil }
func (h *hall) Addr() net.Addr { return &net.TCPAddr{} }

// guest is one end of a connection, which knows how often it was closed.
type guest struct {
	net.Conn
	mu    sync.Mutex
	times int
}

func (g *guest) Close() error {
	g.mu.Lock()
	g.times++
	g.mu.Unlock()
	return g.Conn.Close()
}

func (g *guest) closed() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.times
}

// Handshakes have a fixed number of slots: the oldest one that is silent makes
// room for a newcomer, a slot is free again when its handshake has succeeded or
// failed, and nothing that was accepted stays open behind the end.
// Quirk Q26.
func TestSlotsOfHandshakes(t *testing.T) {
	h := &hall{come: make(chan net.Conn), over: make(chan struct{})}
	served := make(chan net.Conn, maxPending+16)
	a := &acceptor{ln: h, over: make(chan struct{}), serve: func(c net.Conn) {
		served <- c
		var b [1]byte
		if _, err := c.Read(b[:]); err != nil || b[0] == 'x' {
			c.Close() // a handshake that fails
		}
	}}
	var ended sync.WaitGroup
	ended.Add(1)
	go func() { defer ended.Done(); a.run() }()
	var far []net.Conn
	var near []*guest
	enter := func() int {
		x, y := net.Pipe()
		far, near = append(far, x), append(near, &guest{Conn: y})
		h.come <- near[len(near)-1]
		require.Equal(t, net.Conn(near[len(near)-1]), <-served)
		return len(near) - 1
	}
	free := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(a.pending) == n
		}, 10*time.Second, time.Millisecond)
	}
	for range maxPending {
		enter()
	}
	const more = 9
	for range more {
		enter()
	}
	for i, g := range near {
		require.Equal(t, i < more, g.closed() > 0, "connection %d: the oldest make room", i)
	}
	free(maxPending)
	// Those that end, well or badly, leave their slots; nobody else is closed for newcomers then.
	for i := more; i < more+100; i++ {
		_, err := far[i].Write([]byte{"ox"[i%2]})
		require.NoError(t, err)
	}
	free(maxPending - 100)
	for range 100 {
		enter()
	}
	for i, g := range near[more:] {
		require.Equal(t, i < 100 && (i+more)%2 == 1, g.closed() > 0, "connection %d", i+more) // S4-17
	}
	a.close()
	a.wait()
	ended.Wait()
	for i, g := range near {
		if handed := i >= more && i < more+100 && i%2 == 0; handed {
			require.Zero(t, g.closed(), "connection %d is its taker's", i)
			g.Close()
		} else {
			require.Positive(t, g.closed(), "connection %d", i)
		}
	}
	require.Empty(t, a.pending)
	_, err := h.Accept()
	require.True(t, errors.Is(err, net.ErrClosed))
}

// Connections that say hello with a great number wait for those below, and keep
// nobody out: there is room for some of them, and they go before those who have
// said nothing yet.
func TestWaitingHandshakesMakeRoom(t *testing.T) {
	h := &hall{come: make(chan net.Conn), over: make(chan struct{})}
	served := make(chan net.Conn, 2*maxPending)
	var behave func(net.Conn)
	a := &acceptor{ln: h, over: make(chan struct{})}
	a.serve = func(c net.Conn) {
		behave(c)
		served <- c
		var b [1]byte
		c.Read(b[:])
		c.Close()
	}
	var ended sync.WaitGroup
	ended.Go(a.run)
	var far []net.Conn
	enter := func(f func(net.Conn)) *guest {
		behave = f
		x, y := net.Pipe()
		far = append(far, x)
		g := &guest{Conn: y}
		h.come <- g
		<-served
		return g
	}
	silent := func(net.Conn) {}
	honest := enter(silent)
	var waiting []*guest
	for range 2 * maxPending {
		waiting = append(waiting, enter(a.demote))
	}
	require.Zero(t, honest.closed(), "the oldest of all, and it only had no time yet")
	open := 0
	for _, g := range waiting {
		if g.closed() == 0 {
			open++
		}
	}
	require.Equal(t, maxWaiting, open)
	var newcomers []*guest
	for range maxPending - 1 {
		newcomers = append(newcomers, enter(silent))
	}
	for i, g := range append(newcomers, honest) {
		require.Zero(t, g.closed(), "connection %d", i)
	}
	for i, g := range waiting {
		require.Positive(t, g.closed(), "connection %d waits", i)
	}
	a.close()
	a.wait()
	ended.Wait()
	require.Empty(t, a.pending)
	require.Zero(t, a.waiting)
}
