package master

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

const (
	// strangerLimit bounds the packets of connections that did not register,
	// waitingLimit those of clients that were not let in.
	strangerLimit = 4 << 10
	waitingLimit  = 64 << 10
	// burst bounds one write (quirk Q2).
	burst = 64 << 10
	// readBuffer is small because thousands of connections may be silent.
	readBuffer = 2 << 10
	// aliveEvery is how often an unfinished packet counts as a sign of life.
	aliveEvery = 100 * time.Millisecond
	// farewell bounds how long a closed client may take to read its last packets.
	farewell = 2 * time.Second
)

// conn is one accepted connection.
type conn struct {
	id       fsm.ClientID
	nc       net.Conn
	remote   netip.AddrPort
	began    time.Time
	standing atomic.Int32           // stranger, waiting or member
	why      atomic.Pointer[string] // why we broke it, if we did
	try      transport.TryWriter    // nil: only its writer writes
	out      queue
	dirty    bool          // guarded by machine.mu
	over     chan struct{} // closed when nothing is read any more
	once     sync.Once     // of over
	pccl     bool          // it came where PCCL peers do
	leaving  bool          // it was evicted; guarded by crowd.mu
}

// The standing of a connection.
const (
	stranger int32 = iota // did not register
	waiting               // registered, and was not let in
	member
)

// accepted carries the conn to where the machine is stepped.
type accepted struct {
	fsm.Connected
	conn *conn
}

// fail breaks the connection; its reader tells the machine.
func (c *conn) fail(why string) {
	c.why.CompareAndSwap(nil, &why)
	c.nc.Close()
	c.deafen()
}

// deafen ends the wait for leave to read.
func (c *conn) deafen() { c.once.Do(func() { close(c.over) }) }

func (s *Server) begin(ctx context.Context, id fsm.ClientID, nc net.Conn, remote netip.AddrPort, pccl bool) {
	if nc = transport.Quiet(nc); !pccl {
		nc = s.door.guard.Wrap(nc, secure.Control)
	}
	c := &conn{pccl: pccl, id: id, nc: nc, remote: remote, try: transport.NonBlocking(nc), began: time.Now(), over: make(chan struct{})}
	c.out.ready, c.out.book = make(chan struct{}, 1), &s.others.queued
	if err := platform.TuneMaster(nc); err != nil {
		s.log.Warn("connection could not be tuned", "remote", remote.String(), "error", err)
	}
	s.live.mu.Lock()
	s.live.conns[c] = struct{}{}
	if ctx.Err() != nil {
		nc.Close() // Serve has closed the others already
	}
	s.live.mu.Unlock()
	s.wg.Add(2)
	done := make(chan struct{})
	go func() {
		defer s.wg.Done()
		defer close(done)
		defer errs.Catch(opRun, s.crash)
		s.read(ctx, c)
	}()
	go func() {
		defer s.wg.Done()
		func() {
			defer errs.Catch(opRun, s.crash)
			s.write(ctx, c, done)
		}()
		// The connection is closed here in every case, so that "closed after
		// what was sent" holds and nothing stays open.
		nc.Close()
		<-done
		s.live.mu.Lock()
		delete(s.live.conns, c)
		s.live.mu.Unlock()
	}()
}

// read turns the bytes of c into events until the connection ends.
func (s *Server) read(ctx context.Context, c *conn) {
	who, ok := s.greet(ctx, c)
	if ok && !s.leads() {
		s.listen(ctx, c)
		return
	}
	if !ok || !s.post(ctx, accepted{fsm.Connected{Client: c.id, Remote: c.remote, Who: who}, c}, false) {
		return
	}
	p := &pulse{c: c, src: transport.Source(c.nc), post: func() { s.post(ctx, fsm.Alive{Client: c.id}, false) }}
	r := bufio.NewReaderSize(p, readBuffer)
	err := foreign(r)
	for err == nil {
		var pkt wire.Packet
		pkt, err = s.next(ctx, c, r, p)
		if err != nil {
			break
		}
		p.last = time.Now()
		switch pkt.(type) {
		case wire.C2MAskStatus, wire.C2MAskTopology:
			if c.pccl {
				s.post(ctx, fsm.Malformed{Client: c.id, Err: errAsks}, false)
				return
			}
		}
		if _, asks := pkt.(wire.C2MAskStatus); asks {
			s.publish(ctx, c)
			continue
		}
		if _, asks := pkt.(wire.C2MAskTopology); asks && !c.out.mayAsk() {
			continue // the writer asks when it has sent the answer that waits
		}
		if !s.post(ctx, fsm.PacketIn{Client: c.id, Packet: pkt}, wire.Waits(r)) {
			return
		}
	}
	if errors.Is(err, errs.Protocol) {
		s.post(ctx, fsm.Malformed{Client: c.id, Err: err}, false)
		return
	}
	s.post(ctx, fsm.Gone{Client: c.id, Reason: c.reason(err)}, false)
}

// errAsks refuses questions whose answers are about groups in TLS.
var errAsks = errors.New("it asks about the run in plaintext, where only PCCL peers come: ask at the port in TLS")

// reason says in words why the connection ended.
func (c *conn) reason(err error) string {
	if why := c.why.Load(); why != nil {
		return *why
	}
	switch {
	case errors.Is(err, io.EOF):
		return "closed by the peer"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "closed by the peer inside a packet"
	case errors.Is(err, net.ErrClosed):
		return "closed"
	}
	switch platform.Classify(err) {
	case platform.ClassReset:
		return "reset by the peer"
	case platform.ClassTimeout:
		return "the other end no longer answers"
	}
	return err.Error()
}

// foreign names the protocol of a connection that begins with the first bytes
// of another one. It waits for the first eight bytes.
func foreign(r *bufio.Reader) error {
	b, err := r.Peek(8)
	if len(b) < 3 {
		return err
	}
	name := ""
	switch string(b[:3]) {
	case "GET", "POS", "PUT", "HEA", "OPT", "CON", "DEL", "PRI":
		name = "HTTP"
	case "SSH":
		name = "SSH"
	case "\x16\x03\x00", "\x16\x03\x01", "\x16\x03\x02", "\x16\x03\x03":
		name = "TLS"
	}
	if name != "" {
		return errs.New(errs.Protocol, "read packet", fmt.Errorf("the other end speaks %s", name))
	}
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// pulse passes reads through and reports life while a packet is unfinished.
type pulse struct {
	src   io.Reader
	c     *conn
	post  func()
	last  time.Time
	pace  time.Duration // if positive: in which a large packet that is being read has to grow by paceStep
	grown int           // bytes since the deadline was set
}

func (p *pulse) Read(b []byte) (int, error) {
	n, err := p.src.Read(b)
	if p.pace > 0 {
		if p.grown += n; p.grown >= paceStep {
			p.grown = 0
			p.c.nc.SetReadDeadline(time.Now().Add(p.pace))
		}
	}
	if n > 0 && p.c.standing.Load() != stranger {
		if now := time.Now(); now.Sub(p.last) > aliveEvery {
			p.last = now
			p.post()
		}
	}
	return n, err
}

// flushRest writes what the connection has taken and the system has not. false: the
// client does not read.
func (s *Server) flushRest(ctx context.Context, c *conn, done <-chan struct{}) bool {
	c.out.hold(true)
	defer c.out.hold(false)
	bound := c.out.arm(c.nc, s.opt.WriteTimeout)
	if _, err := c.nc.Write(nil); err != nil {
		c.broke(ctx, err, bound, done)
		return false
	}
	c.nc.SetWriteDeadline(time.Time{}) // it would end writes that do not wait
	return true
}

// unread says why a write that was bounded has failed.
func (c *conn) unread(err error, bound time.Duration) string {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Sprintf("does not read: nothing could be sent for %v", bound)
	}
	return c.reason(err)
}

// linger ends a member's connection in the direction of the member, and lets it end the
// other one. A socket that is closed with unread bytes says so with a reset, and then the
// other end may not read any more why it has to go.
func (c *conn) linger(ctx context.Context, done <-chan struct{}) {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || c.standing.Load() != member {
		return
	}
	c.out.arm(c.nc, farewell)
	if half.CloseWrite() == nil {
		awaitReader(ctx, done)
	}
}

// broke ends the connection after a write that was bounded has failed. If that is because the
// other end has closed, the reader reads to the end before: what was said last, a farewell above
// all, may not have been read.
func (c *conn) broke(ctx context.Context, err error, bound time.Duration, done <-chan struct{}) {
	if platform.Classify(err) == platform.ClassReset {
		awaitReader(ctx, done)
	}
	c.fail(c.unread(err, bound))
}

// awaitReader waits until a reader is done, for farewell at most.
func awaitReader(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(farewell):
	}
}

// write empties the queue until it is finished, the reader is done or the
// client does not read for WriteTimeout.
func (s *Server) write(ctx context.Context, c *conn, done <-chan struct{}) {
	defer c.out.discard()
	var buf []byte
	for {
		var last, again bool
		buf, last, again = c.out.take(buf)
		for b := buf; len(b) > 0; {
			n := min(len(b), burst)
			bound := c.out.arm(c.nc, s.opt.WriteTimeout)
			if _, err := c.nc.Write(b[:n]); err != nil {
				c.broke(ctx, err, bound, done)
				return
			}
			c.out.wrote(n)
			b = b[n:]
		}
		if len(buf) == 0 && transport.Keeps(c.try) && !s.flushRest(ctx, c, done) {
			return
		}
		switch {
		case last:
			c.linger(ctx, done)
			return
		case len(buf) > 0:
			c.nc.SetWriteDeadline(time.Time{}) // it would end writes that do not wait
			continue
		case again:
			if !s.post(ctx, fsm.PacketIn{Client: c.id, Packet: wire.C2MAskTopology{}}, false) {
				return
			}
			continue
		}
		select {
		case <-c.out.ready:
		case <-done:
			return
		}
	}
}
