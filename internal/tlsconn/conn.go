package tlsconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/internal/buf"
	"github.com/gopccl/gopccl/internal/transport"
)

// ErrCut means that the stream ended without its end being said. It is an
// io.ErrUnexpectedEOF.
var ErrCut = fmt.Errorf("the connection was cut: %w", io.ErrUnexpectedEOF)

// past is a deadline that wakes at once.
var past = time.Unix(1, 0)

// Conn is one end of a connection in TLS. Reads may run beside writes, and Close
// and deadlines beside both; two writes wait for each other.
type Conn struct {
	net.Conn // the socket: addresses and deadlines

	tls    atomic.Pointer[tls.Conn] // of the last handshake that has begun, or has replaced it
	pump   pump
	writer writer
	closed atomic.Bool
	clear  atomic.Bool           // TLS is over: Clear
	cause  atomic.Pointer[error] // of End
	over   func()                // of OnClose; may be nil

	renewals renewals
	readBy   deadline
	writeBy  deadline

	reading sync.Mutex // held while Read runs
	in      *tls.Conn  // that is read
}

// Client returns the end of sock that begins the handshake. config is not changed,
// nor may it be. Buffers come from pool.
func Client(sock net.Conn, config *tls.Config, pool *buf.Pool) *Conn {
	c := newConn(sock, pool)
	return c.begin(tls.Client(&c.pump, config))
}

// Server returns the end of sock that answers the handshake.
func Server(sock net.Conn, config *tls.Config, pool *buf.Pool) *Conn {
	c := newConn(sock, pool)
	return c.begin(tls.Server(&c.pump, config))
}

func (c *Conn) begin(t *tls.Conn) *Conn {
	c.tls.Store(t)
	c.in, c.writer.tls = t, t
	return c
}

func newConn(sock net.Conn, pool *buf.Pool) *Conn {
	c := &Conn{Conn: sock, readBy: deadline{sock: sock.SetReadDeadline}, writeBy: deadline{sock: sock.SetWriteDeadline}}
	c.pump = pump{c: c, pool: pool, src: transport.Source(sock)}
	c.writer = writer{c: c, try: transport.NonBlocking(sock), most: maxRecords, turn: make(turn, 1)}
	c.writer.turn.Unlock()
	c.writer.all, _ = c.writer.try.(transport.VecWriter)
	return c
}

// Handshake makes the connection ready; until then nothing else may be called but
// Close, and what says deadlines and addresses. It ends with ctx, or with the deadlines of the connection. A client is not
// believed yet when its handshake has succeeded: the first bytes that it reads say so.
func (c *Conn) Handshake(ctx context.Context) error {
	defer func() {
		if c.closed.Load() {
			c.release()
		}
	}()
	c.reading.Lock()
	defer c.reading.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) })
	c.pump.shaking = true
	err := c.in.HandshakeContext(context.Background())
	c.pump.rests() // what follows may wait for the other end
	// What is left is the last flight, or an alert.
	if rest := c.pump.flush(); err == nil {
		err = rest
	}
	c.pump.shaking = false
	if !stop() {
		return context.Cause(ctx)
	}
	if c.pump.tooLarge {
		return errTooLarge
	}
	return err
}

// Bound has begin called before a handshake computes, which may wait, and end when it waits
// for the other end again. An error of begin is that of the handshake. It comes before
// Handshake.
func (c *Conn) Bound(begin func() error, end func()) { c.pump.begin, c.pump.end = begin, end }

// OnClose has f called once, when the connection is closed. It comes before anything
// else is called.
func (c *Conn) OnClose(f func()) { c.over = f }

// Closed reports whether the connection was closed at this end.
func (c *Conn) Closed() bool { return c.closed.Load() }

// End is Close, and says why: reads and writes fail with cause from now on.
func (c *Conn) End(cause error) {
	c.cause.CompareAndSwap(nil, &cause)
	_ = c.Close()
}

// gone is the error of calls on a connection that was closed here.
func (c *Conn) gone() error {
	if cause := c.cause.Load(); cause != nil {
		return *cause
	}
	return net.ErrClosed
}

// ConnectionState returns what the handshake has agreed on.
func (c *Conn) ConnectionState() tls.ConnectionState { return c.tls.Load().ConnectionState() }

// Source implements transport.Layered.
func (c *Conn) Source() io.Reader { return c }

// NonBlocking implements transport.Layered.
func (c *Conn) NonBlocking() transport.TryWriter {
	if c.writer.try == nil {
		return nil
	}
	return &c.writer
}

// Resumable implements transport.Layered.
func (c *Conn) Resumable() bool { return transport.Resumable(c.Conn) }

// WaitFor implements transport.Patient. What is sealed comes in records, so that no read waits for
// more than one.
func (c *Conn) WaitFor(bytes int) { c.pump.patience.Store(int32(bytes)) }

// Read returns at most one record.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	if c.closed.Load() {
		c.reading.Unlock()
		return 0, c.gone()
	}
	var n int
	var err error
	if c.clear.Load() {
		c.pump.waitFor(int(c.pump.patience.Load()))
		n, err = c.pump.src.Read(p)
	} else {
		n, err = c.readTLS(p)
	}
	c.reading.Unlock()
	if err != nil && !c.clear.Load() {
		// crypto/tls does not say that it could not answer, and trips over what follows.
		if fail := c.pump.failed(); fail != nil {
			err = fail
		}
	}
	if c.closed.Load() {
		c.release()
		switch {
		case err == nil:
		case c.cause.Load() != nil:
			err = c.gone()
		case !errors.Is(err, net.ErrClosed) && err != io.EOF:
			err = net.ErrClosed
		}
	}
	return n, err
}

// readTLS reads what was sealed, with one key or the next.
func (c *Conn) readTLS(p []byte) (int, error) {
	for {
		n, err := c.in.Read(p)
		if err == nil && n > 0 {
			c.worn()
		}
		if err == nil || n > 0 || c.renewals.how.Load() == nil {
			return n, err
		}
		if err == io.EOF {
			if err = c.follow(); err == nil {
				continue
			}
		}
		if !transport.IsTimeout(err) {
			c.deafen(err)
		}
		return 0, err
	}
}

// Write waits until the system has all of p.
func (c *Conn) Write(p []byte) (int, error) {
	return c.writer.write(p, nil, true)
}

// CloseWrite says that nothing more will be written, waits until the system has
// that, or for the deadline of writes, and shuts that side of the socket down, which counts
// where another process holds it, too.
func (c *Conn) CloseWrite() error {
	if c.renewals.now.Load() != nil { // without keys nothing can be said
		return c.shut()
	}
	if err := c.await(c.writer.turn, &c.writeBy); err != nil {
		return errors.Join(err, c.shut())
	}
	defer c.writer.end()
	c.writer.ended = true
	var err error
	if !c.clear.Load() {
		if err = c.writer.tls.CloseWrite(); err == nil {
			err = c.writer.push(true)
		}
	}
	return errors.Join(err, c.shut())
}

// shut ends one side of the socket.
func (c *Conn) shut() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// TCP returns the TCP connection below, for options of the socket; nil: it is
// something else.
func (c *Conn) TCP() *net.TCPConn {
	switch below := c.Conn.(type) {
	case *net.TCPConn:
		return below
	case interface{ TCP() *net.TCPConn }:
		return below.TCP()
	}
	return nil
}

// SetLinger is that of the TCP connection below.
func (c *Conn) SetLinger(sec int) error {
	if t := c.TCP(); t != nil {
		return t.SetLinger(sec)
	}
	return nil
}

// farewell bounds how long Close waits, where a write cannot be tried, for the system to
// take the word that the stream has ended.
const farewell = 20 * time.Millisecond

// Close ends the connection without waiting. What the system did not have yet is
// lost.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	if r := c.renewals.now.Load(); r != nil {
		r.stop(net.ErrClosed)
	}
	if c.writer.turn.TryLock() {
		if !c.clear.Load() && c.writer.tls.CloseWrite() == nil {
			c.sayEnd()
		}
		c.writer.turn.Unlock()
	}
	_ = c.shut() // first: another process may hold the socket, and the other end waits for its end
	err := c.Conn.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	c.readBy.wake()
	c.writeBy.wake()
	c.release()
	if c.over != nil {
		c.over()
	}
	return err
}

// sayEnd writes the word that the stream has ended, if the system takes it soon. The caller
// has the turn to write.
func (c *Conn) sayEnd() {
	wait := c.writer.try == nil
	if wait { // the connection below may be a program's, which need not know of deadlines
		defer time.AfterFunc(farewell, func() { _, _ = c.shut(), c.Conn.Close() }).Stop()
	}
	_ = c.writer.push(wait)
}

// release gives the buffers of a closed connection back, unless they are in use:
// then the call that uses them comes here after it.
func (c *Conn) release() {
	if c.reading.TryLock() {
		c.pump.releaseIn()
		c.pump.in = nil // it may be another connection's by now
		c.reading.Unlock()
	}
	if c.writer.turn.TryLock() {
		c.pump.releaseOut()
		c.writer.turn.Unlock()
	}
}
