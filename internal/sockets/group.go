// Package sockets keeps the connections of a server that strangers may connect
// to: it accepts them, bounds their number, runs each in a goroutine, and ends
// them all. It also dials for those that move bulk data.
package sockets

import (
	"container/list"
	"log/slog"
	"net"
	"sync"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// Config configures a Group. All fields but Evict are needed.
type Config struct {
	// Name is what the connections are for, as in "no benchmark connection
	// could be accepted".
	Name string
	Log  *slog.Logger
	// Max bounds the open connections.
	Max int
	// Evict says that the connection which has been silent for longest makes
	// room for a further one; else further ones are closed at once.
	Evict bool
	// Security makes connections secure.
	Security Security
	// Handle runs one connection to its end. It is closed afterwards, and
	// before that by Stop.
	Handle func(net.Conn)
}

// Security makes accepted connections secure. The zero value leaves them as they are.
type Security struct {
	// Wrap returns a connection as one whose handshake is to come, and reads nothing.
	Wrap func(net.Conn) net.Conn
	// Greet makes the handshake of a connection that Wrap has returned, and returns the
	// name at the other end; an error says that it is a stranger's. It has a bound of
	// its own.
	Greet func(net.Conn) (name string, err error)
	// Is reports an error if the peer of that name is known to be another one.
	Is func(name string, peer wire.UUID) error
	// Complain reports whether the log may have a line of a kind about what comes from
	// an address; nil: it always may.
	Complain func(remote net.Addr, kind string) (due bool, more int)
}

// Group is the listeners and connections of a server. Its methods are safe for
// concurrent use.
type Group struct {
	cfg Config

	mu     sync.Mutex
	conns  map[net.Conn]*list.Element // where it is, or was, in silent
	names  map[net.Conn]string        // at the other ends, where Security says them
	silent *list.List                 // of net.Conn that have said nothing yet, oldest first
	lns    map[net.Listener]struct{}
	closed bool
	done   chan struct{} // closed by Stop
	wg     sync.WaitGroup
}

// NewGroup returns a group without listeners and connections.
func NewGroup(cfg Config) *Group {
	return &Group{
		cfg:    cfg,
		conns:  make(map[net.Conn]*list.Element),
		names:  make(map[net.Conn]string),
		silent: list.New(),
		lns:    make(map[net.Listener]struct{}),
		done:   make(chan struct{}),
	}
}

// Serve accepts connections on ln until ln is closed or the group stopped; see
// platform.AcceptLoop for errors. It closes ln.
func (g *Group) Serve(ln net.Listener) {
	defer ln.Close()
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return
	}
	g.lns[ln] = struct{}{}
	g.wg.Add(1)
	g.mu.Unlock()
	defer g.wg.Done()
	defer func() {
		g.mu.Lock()
		delete(g.lns, ln)
		g.mu.Unlock()
	}()
	platform.AcceptLoop(ln, g.done, g.Adopt, func(err error) {
		g.cfg.Log.Warn("no "+g.cfg.Name+" connection could be accepted", "err", err)
	})
}

// Adopt takes a connection as Serve takes those that it accepts. It never waits.
func (g *Group) Adopt(conn net.Conn) {
	conn = transport.Quiet(conn)
	if g.cfg.Security.Wrap != nil {
		conn = g.cfg.Security.Wrap(conn)
	}
	g.mu.Lock()
	full := len(g.conns) >= g.cfg.Max
	if g.closed || full && !(g.cfg.Evict && g.silent.Len() > 0) {
		g.mu.Unlock()
		conn.Close()
		return
	}
	if full {
		g.silent.Remove(g.silent.Front()).(net.Conn).Close()
	}
	g.conns[conn] = g.silent.PushBack(conn)
	g.wg.Add(1)
	g.mu.Unlock()
	go func() {
		defer g.wg.Done()
		defer func() {
			conn.Close()
			g.mu.Lock()
			g.silent.Remove(g.conns[conn])
			delete(g.conns, conn)
			delete(g.names, conn)
			g.mu.Unlock()
		}()
		defer errs.Catch("serve "+g.cfg.Name, func(err *errs.Error) {
			g.cfg.Log.Error("panic", "error", err, "stack", errs.StackOf(err))
		})
		if g.knows(conn) {
			g.cfg.Handle(conn)
		}
	}()
}

// knows makes the handshake of a connection, if it has one. false: it is a stranger's.
func (g *Group) knows(conn net.Conn) bool {
	s := &g.cfg.Security
	if s.Greet == nil {
		return true
	}
	name, err := s.Greet(conn)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.names[conn] = name
		return true
	}
	if due, more := g.Complain(conn, "stranger"); due && !g.Stopped() {
		g.cfg.Log.Warn("closed a "+g.cfg.Name+" connection", "remote", conn.RemoteAddr(), "reason", err, "more", more)
	}
	return false
}

// Complain reports whether the log may have a line of a kind about a connection of the
// group, and how many were left out.
func (g *Group) Complain(conn net.Conn, kind string) (due bool, more int) {
	if g.cfg.Security.Complain == nil {
		return true, 0
	}
	return g.cfg.Security.Complain(conn.RemoteAddr(), g.cfg.Name+" "+kind)
}

// Is reports an error if a connection of the group, which says that it is a peer's, is
// known to be another one's.
func (g *Group) Is(conn net.Conn, peer wire.UUID) error {
	if g.cfg.Security.Is == nil {
		return nil
	}
	g.mu.Lock()
	name := g.names[conn]
	g.mu.Unlock()
	return g.cfg.Security.Is(name, peer)
}

// Spoke says that a connection of the group has said something sensible, so
// that it no longer makes room for others.
func (g *Group) Spoke(conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.silent.Remove(g.conns[conn])
}

// Len returns the number of open connections.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}

// Done is closed when the group is stopped.
func (g *Group) Done() <-chan struct{} { return g.done }

// Stopped reports whether the group is stopped.
func (g *Group) Stopped() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// Stop closes all listeners and connections, and takes no more. It may be
// called again.
func (g *Group) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for ln := range g.lns {
		ln.Close()
	}
	if !g.closed {
		g.closed = true
		close(g.done)
	}
	for c := range g.conns {
		c.Close()
	}
}

// Wait waits for the goroutines of Serve and of the connections to end, after
// Stop.
func (g *Group) Wait() { g.wg.Wait() }
