package world

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// behind is where a trainer listens whose announced ports belong to a relay.
const behind = "127.0.0.2"

// Relay stands between one peer and everybody else: what the peer listens at is
// reached through it, and it dials for the peer. So it can do to the peer's
// links what networks do: close them, or let nothing through any more.
type Relay struct {
	Ports []int  // of both sides: others connect to these, the relay to the same ones of the peer
	Via   string // whom the peer asks to dial

	master string
	lns    []net.Listener

	mu     sync.Mutex
	closed bool
	held   map[bool]chan struct{} // by whether it is the link to the master; closed to go on
	conns  map[net.Conn]bool      // likewise
}

// NewRelay makes the relay of one peer in the run of a master.
func NewRelay(master string) (*Relay, error) {
	r := &Relay{master: master, held: map[bool]chan struct{}{}, conns: map[net.Conn]bool{}}
	for len(r.Ports) < 3 {
		ln, err := r.listen(func(c net.Conn) {
			r.splice(c, net.JoinHostPort(behind, fmt.Sprint(c.LocalAddr().(*net.TCPAddr).Port)))
		})
		if err != nil {
			r.Close()
			return nil, err
		}
		r.Ports = append(r.Ports, ln.Addr().(*net.TCPAddr).Port)
	}
	ln, err := r.listen(r.dial)
	if err != nil {
		r.Close()
		return nil, err
	}
	r.Via = ln.Addr().String()
	return r, nil
}

// CanRelay reports whether this system has the addresses that a relay needs.
func CanRelay() bool {
	ln, err := net.Listen("tcp", net.JoinHostPort(behind, "0"))
	if err != nil {
		return false
	}
	return ln.Close() == nil
}

func (r *Relay) listen(serve func(net.Conn)) (net.Listener, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r.lns = append(r.lns, ln)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return ln, nil
}

// dialVia has a relay dial an address.
func dialVia(ctx context.Context, via, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", via)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintln(c, addr); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// dial reads where the peer wants to go, and goes there.
func (r *Relay) dial(c net.Conn) {
	in := bufio.NewReaderSize(c, 128)
	addr, err := in.ReadString('\n')
	if err != nil {
		c.Close()
		return
	}
	early, _ := in.Peek(in.Buffered())
	r.splice(&ahead{Conn: c, bytes: early}, strings.TrimSpace(addr))
}

// ahead is a connection of which some bytes have been read.
type ahead struct {
	net.Conn
	bytes []byte
}

func (a *ahead) Read(p []byte) (int, error) {
	if len(a.bytes) > 0 {
		n := copy(p, a.bytes)
		a.bytes = a.bytes[n:]
		return n, nil
	}
	return a.Conn.Read(p)
}

func (r *Relay) splice(a net.Conn, to string) {
	b, err := (&net.Dialer{Timeout: 5 * time.Second}).Dial("tcp", to)
	if err != nil {
		a.Close()
		return
	}
	isMaster := to == r.master
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		a.Close()
		b.Close()
		return
	}
	r.conns[a], r.conns[b] = isMaster, isMaster
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Add(2)
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			defer both.Done()
			r.pump(way[0], way[1], isMaster)
		}()
	}
	both.Wait()
	r.mu.Lock()
	delete(r.conns, a)
	delete(r.conns, b)
	r.mu.Unlock()
	a.Close()
	b.Close()
}

// pump moves bytes until one end is through, and closes what nobody writes to
// any more.
func (r *Relay) pump(dst, src net.Conn, isMaster bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if hold := r.hold(isMaster); hold != nil {
			<-hold
		}
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				src.Close()
				return
			}
		}
		if err != nil {
			half, ok := dst.(interface{ CloseWrite() error })
			if ok && err == io.EOF {
				_ = half.CloseWrite()
			} else {
				dst.Close()
			}
			return
		}
	}
}

func (a *ahead) CloseWrite() error { return a.Conn.(*net.TCPConn).CloseWrite() }

func (r *Relay) hold(isMaster bool) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held[isMaster]
}

// Hold lets nothing through from now on, neither on the links to other peers
// nor, if master is set, on the one to the master; everything stays open.
func (r *Relay) Hold(master bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range []bool{false, true} {
		if (master || !m) && r.held[m] == nil {
			r.held[m] = make(chan struct{})
		}
	}
}

// Release lets everything through again that Hold has held back.
func (r *Relay) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for m, held := range r.held {
		close(held)
		delete(r.held, m)
	}
}

// Cut closes the connections to other peers and, if master is set, the one to
// the master.
func (r *Relay) Cut(master bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, isMaster := range r.conns {
		if master || !isMaster {
			c.Close()
		}
	}
}

// Close ends the relay and all connections through it.
func (r *Relay) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	for _, ln := range r.lns {
		ln.Close()
	}
	r.Cut(true)
	r.Release()
}
