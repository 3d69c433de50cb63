package sockets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// maxWaiting is how many connections at a port may wait until it is known what they
// are for.
const maxWaiting = 512

// PortConfig configures a Port. Log and Bound are needed.
type PortConfig struct {
	Log *slog.Logger
	// Bound is how long a connection may take to say what it is for, all of it.
	Bound time.Duration
	// Meet makes the handshake of an accepted connection, and returns what it is for;
	// it closes conn if it fails. nil: what a connection is for is told by its first
	// packet, in plaintext.
	Meet func(ctx context.Context, conn net.Conn) (net.Conn, wire.Proto, error)
	// Plain judges a connection in plaintext where Meet is for those in TLS; nil: there
	// are none.
	Plain func(ctx context.Context, conn net.Conn) error
	// Complain reports whether the log may have a line of a kind about what comes from
	// an address.
	Complain func(remote net.Addr, kind string) (due bool, more int)
	// Home reports whether there are members in a network; nil: it is not known.
	Home func(netip.Prefix) bool
}

// Port tells connections of every purpose apart that peers open to one listener, and
// hands each to the server of its purpose (For). Before that at most maxWaiting of
// them wait, in a Crowd. Behind it each server has bounds of its own. Methods are safe for concurrent use.
type Port struct {
	cfg   PortConfig
	ctx   context.Context // of all that wait
	over  context.CancelFunc
	doors map[wire.Proto]*door

	waiting *Crowd

	mu  sync.Mutex
	lns map[net.Listener]struct{}
	wg  sync.WaitGroup
}

// NewPort returns a Port without listeners.
func NewPort(cfg PortConfig) *Port {
	p := &Port{cfg: cfg, waiting: NewCrowd(maxWaiting, cfg.Home), lns: map[net.Listener]struct{}{}, doors: map[wire.Proto]*door{}}
	p.ctx, p.over = context.WithCancel(context.Background())
	for _, proto := range []wire.Proto{wire.P2P, wire.C2S, wire.C2B} {
		p.doors[proto] = &door{conns: make(chan net.Conn), closed: make(chan struct{})}
	}
	return p
}

// For returns the listener that connections for P2P, C2S or C2B come out of. Its address
// is at. It is closed with the port.
func (p *Port) For(proto wire.Proto, at net.Addr) net.Listener { return server{p.doors[proto], at} }

// Serve accepts connections on ln until ln or the port is closed; see
// platform.AcceptLoop for errors. It closes ln.
func (p *Port) Serve(ln net.Listener) {
	defer ln.Close()
	p.mu.Lock()
	if p.ctx.Err() != nil {
		p.mu.Unlock()
		return
	}
	p.lns[ln] = struct{}{}
	p.mu.Unlock()
	platform.AcceptLoop(ln, p.ctx.Done(), p.take, func(err error) {
		p.cfg.Log.Warn("no connection of a peer could be accepted", "error", err)
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.lns, ln)
}

// Close closes listeners, doors, and what waits. It may be called again.
func (p *Port) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over()
	for ln := range p.lns {
		ln.Close()
	}
	for _, d := range p.doors {
		d.close()
	}
	p.waiting.End()
}

// Wait waits until nothing waits any more; Close comes before.
func (p *Port) Wait() { p.wg.Wait() }

// take lets a connection wait until it has said what it is for.
func (p *Port) take(conn net.Conn) {
	conn = transport.Quiet(conn)
	p.mu.Lock()
	if p.ctx.Err() != nil {
		p.mu.Unlock()
		conn.Close()
		return
	}
	p.wg.Add(1)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.Bound)
	place := p.waiting.Enter(conn.RemoteAddr(), func() {
		cancel()
		conn.Close()
	})
	go func() {
		defer p.wg.Done()
		defer errs.Catch("accept peer", func(err *errs.Error) {
			conn.Close()
			p.cfg.Log.Error("panic", "error", err, "stack", errs.StackOf(err))
		})
		defer cancel()
		defer place.Leave()
		p.admit(ctx, conn, place)
	}()
}

// admit finds out what a connection is for, and hands it on.
func (p *Port) admit(ctx context.Context, conn net.Conn, place *Place) {
	meet := p.cfg.Meet
	if meet == nil {
		meet = first
	}
	met, proto, err := p.tell(ctx, conn, meet)
	if place.Leave() {
		if err == nil {
			met.Close()
		}
		err = errRoom
	}
	if err == nil {
		p.doors[proto].give(met)
		return
	}
	conn.Close()
	if errors.Is(err, errSilent) {
		p.cfg.Log.Debug("closed a connection to the port of this peer", "remote", conn.RemoteAddr(), "reason", err)
		return
	}
	if due, more := p.cfg.Complain(conn.RemoteAddr(), "stranger"); due && p.ctx.Err() == nil {
		p.cfg.Log.Warn("closed a connection to the port of this peer", "remote", conn.RemoteAddr(), "reason", err, "more", more)
	}
}

// tell is meet, but for connections in plaintext that Plain lets in.
func (p *Port) tell(ctx context.Context, conn net.Conn, meet func(context.Context, net.Conn) (net.Conn, wire.Proto, error)) (net.Conn, wire.Proto, error) {
	if p.cfg.Plain == nil {
		return meet(ctx, conn)
	}
	begun, tls, err := peek(ctx, conn)
	switch {
	case err != nil:
		return nil, 0, err
	case tls:
		return meet(ctx, begun)
	}
	met, proto, err := first(ctx, begun)
	if err == nil {
		err = p.cfg.Plain(ctx, met)
	}
	return met, proto, err
}

// peek reports whether what comes on a connection begins as TLS does.
func peek(ctx context.Context, conn net.Conn) (net.Conn, bool, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	var b [1]byte
	if _, err := conn.Read(b[:]); err != nil {
		stop()
		switch {
		case ctx.Err() != nil:
			err = errLate
		case errors.Is(err, io.EOF):
			err = errSilent
		}
		return nil, false, err
	}
	if !stop() {
		return nil, false, errLate
	}
	return transport.Replay(conn, b[:]), b[0] == transport.RecordTLS, nil
}

// first reads as much of the first packet of a connection as tells what it is for.
func first(ctx context.Context, conn net.Conn) (net.Conn, wire.Proto, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var b [wire.FirstSize]byte
	have := 0
	for {
		proto, need, ok := wire.First(b[:have])
		switch {
		case !ok:
			return nil, 0, stranger(b[:have])
		case need == 0 && !stop():
			return nil, 0, errLate
		case need == 0:
			return transport.Replay(conn, slices.Clone(b[:have])), proto, nil
		}
		n, err := conn.Read(b[have:need])
		if have += n; err == nil || n > 0 {
			continue
		}
		switch {
		case ctx.Err() != nil:
			return nil, 0, errLate
		case errors.Is(err, io.EOF) && have == 0:
			return nil, 0, errSilent
		}
		return nil, 0, err
	}
}

// errSilent is the end of a connection that was opened beside another one, which came first, or for a ring
// that will not be, and of one that only asks if a port is open, as those of load balancers do.
var errSilent = errors.New("it was closed before it said anything")

var errRoom = errors.New("too many connections at a time: it made room for another one")

var errLate = errors.New("it did not say in time what it is for")

// spoken are protocols that are named, by their first bytes.
var spoken = map[string]string{
	"\x16\x03": "TLS, and this peer has no credential", "SSH-": "SSH", "GET ": "HTTP", "POST": "HTTP", "HEAD": "HTTP", "PRI ": "HTTP",
}

func stranger(b []byte) error {
	for begin, name := range spoken {
		if len(b) >= len(begin) && string(b[:len(begin)]) == begin {
			return fmt.Errorf("it speaks %s", name)
		}
	}
	return fmt.Errorf("it is not a peer's: it begins with %q", b)
}

// door is where connections of one purpose come out of a port.
type door struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (d *door) close() { d.once.Do(func() { close(d.closed) }) }

// give hands a connection on, or closes it if nobody takes any.
func (d *door) give(conn net.Conn) {
	select {
	case d.conns <- conn:
	case <-d.closed:
		conn.Close()
	}
}

// server is a door as the listener of a server.
type server struct {
	*door
	at net.Addr
}

func (s server) Accept() (net.Conn, error) {
	select {
	case conn := <-s.conns:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s server) Addr() net.Addr { return s.at }

func (s server) Close() error {
	s.close()
	return nil
}
