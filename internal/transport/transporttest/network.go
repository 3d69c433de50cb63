// Package transporttest is a network in memory for tests: connections with
// real buffering, deadlines, delay and limited rate that can be cut, stalled
// and made to corrupt bytes.
package transporttest

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Options of a connection; the zero value is a fast and reliable one.
type Options struct {
	Buffer int           // bytes in flight per direction, 0: 64 KiB
	Delay  time.Duration // from write to read
	Rate   int           // bytes per second, 0: unlimited
	Piece  int           // most bytes per Read, 0: unlimited
}

// Conn is one end of a connection. It implements net.Conn and
// transport.TryWriter.
type Conn struct {
	in, out *pipe
	name    addr
	peer    addr
}

type addr string

func (addr) Network() string  { return "memory" }
func (a addr) String() string { return string(a) }

// Pair returns the two ends of a new connection.
func Pair(o Options) (a, b *Conn) {
	if o.Buffer <= 0 {
		o.Buffer = 64 << 10
	}
	mu := new(sync.Mutex)
	x, y := newPipe(o, mu), newPipe(o, mu)
	return &Conn{in: x, out: y, name: "a", peer: "b"}, &Conn{in: y, out: x, name: "b", peer: "a"}
}

// pipe is one direction.
type pipe struct {
	o    Options
	mu   *sync.Mutex // of both directions, which end at once
	cond *sync.Cond

	segs    []segment
	held    int   // bytes in segs
	written int64 // bytes ever accepted
	free    time.Time

	closedW, closedR bool
	cutErr           error
	cutAt            int64 // cut when this many bytes were accepted; 0: never
	stalled          bool
	flips            map[int64]byte
	rDead, wDead     deadline
}

type segment struct {
	b     []byte
	ready time.Time
}

func newPipe(o Options, mu *sync.Mutex) *pipe {
	return &pipe{o: o, mu: mu, cond: sync.NewCond(mu), flips: map[int64]byte{}}
}

// deadline is guarded by the pipes' mutex.
type deadline struct {
	at time.Time
	t  *time.Timer
}

func (p *pipe) setDeadline(d *deadline, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.t != nil {
		d.t.Stop()
		d.t = nil
	}
	d.at = at
	if !at.IsZero() {
		if wait := time.Until(at); wait > 0 {
			d.t = time.AfterFunc(wait, p.wake)
		}
	}
	p.cond.Broadcast()
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (p *pipe) wake() {
	p.mu.Lock()
	p.cond.Broadcast()
	p.mu.Unlock()
}

func (p *pipe) write(b []byte, wait bool) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		switch {
		case p.closedW:
			return n, net.ErrClosed
		case p.cutErr != nil:
			return n, p.cutErr
		case p.closedR:
			return n, syscall.EPIPE
		case p.wDead.passed():
			return n, os.ErrDeadlineExceeded
		}
		room := p.o.Buffer - p.held
		if room <= 0 {
			if !wait {
				return n, nil
			}
			p.cond.Wait()
			continue
		}
		k := min(room, len(b))
		if p.cutAt > 0 {
			k = int(min(int64(k), p.cutAt-p.written))
		}
		p.accept(b[:k])
		b, n = b[k:], n+k
		if p.cutAt > 0 && p.written >= p.cutAt {
			p.cutErr = syscall.ECONNRESET
			p.cond.Broadcast()
		}
	}
	return n, nil
}

func (p *pipe) accept(b []byte) {
	c := append([]byte(nil), b...)
	for at, x := range p.flips {
		if at >= p.written && at < p.written+int64(len(c)) {
			c[at-p.written] ^= x
		}
	}
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	if p.o.Rate > 0 {
		p.free = p.free.Add(time.Duration(len(c)) * time.Second / time.Duration(p.o.Rate))
	}
	ready := p.free.Add(p.o.Delay)
	p.segs = append(p.segs, segment{c, ready})
	p.held += len(c)
	p.written += int64(len(c))
	if wait := ready.Sub(now); wait > 0 {
		time.AfterFunc(wait, p.wake)
	}
	p.cond.Broadcast()
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.closedR:
			return 0, net.ErrClosed
		case p.rDead.passed():
			return 0, os.ErrDeadlineExceeded
		case len(p.segs) > 0 && !p.stalled && !time.Now().Before(p.segs[0].ready):
			if p.o.Piece > 0 {
				b = b[:min(len(b), p.o.Piece)]
			}
			n := 0
			for n < len(b) && len(p.segs) > 0 && !time.Now().Before(p.segs[0].ready) {
				k := copy(b[n:], p.segs[0].b)
				n += k
				if p.segs[0].b = p.segs[0].b[k:]; len(p.segs[0].b) == 0 {
					p.segs = p.segs[1:]
				}
			}
			p.held -= n
			p.cond.Broadcast()
			return n, nil
		case p.cutErr != nil && (len(p.segs) == 0 || p.stalled):
			return 0, p.cutErr
		case p.closedW && len(p.segs) == 0:
			return 0, io.EOF
		}
		p.cond.Wait()
	}
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return c.in.read(b)
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) { return c.out.write(b, true) }

// TryWrite implements transport.TryWriter.
func (c *Conn) TryWrite(b []byte) (int, error) { return c.out.write(b, false) }

// Close implements net.Conn. What was written before can still be read.
func (c *Conn) Close() error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.out.closedW, c.in.closedR = true, true
	c.out.cond.Broadcast()
	c.in.cond.Broadcast()
	return nil
}

// Cut breaks both directions at once, as a reset does: bytes that were not
// read are lost.
func (c *Conn) Cut() {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	for _, p := range []*pipe{c.in, c.out} {
		p.cutErr = syscall.ECONNRESET
		p.segs, p.held = nil, 0
		p.cond.Broadcast()
	}
}

// CutAfter breaks the outgoing direction once n bytes were written; they arrive.
func (c *Conn) CutAfter(n int64) {
	c.out.mu.Lock()
	c.out.cutAt = n
	c.out.mu.Unlock()
}

// Stall stops (or resumes) delivery of what this end writes, without a sign to
// either end: a half-open connection.
func (c *Conn) Stall(on bool) {
	c.out.mu.Lock()
	c.out.stalled = on
	c.out.cond.Broadcast()
	c.out.mu.Unlock()
}

// Corrupt flips the bits of mask in byte at (counted from the first) of what
// this end writes.
func (c *Conn) Corrupt(at int64, mask byte) {
	c.out.mu.Lock()
	c.out.flips[at] = mask
	c.out.mu.Unlock()
}

// Written returns how many bytes the connection has taken from this end.
func (c *Conn) Written() int64 {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.written
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.name }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.peer }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.rDead, t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.wDead, t)
	return nil
}
