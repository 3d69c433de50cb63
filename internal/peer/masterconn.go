package peer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

const (
	// masterWriteTime is how long the master may read nothing at all.
	masterWriteTime = 10 * time.Second
	// farewell bounds how long a session that is over tries to send its last packets.
	farewell = time.Second
)

// masterConn is the connection to the master. The holder of the machine queues,
// and writes as far as the connection takes it at once; the rest is left to
// its writer, which may wait.
type masterConn struct {
	addr   string // that was dialled
	conn   net.Conn
	src    io.Reader
	try    transport.TryWriter // nil: only the writer writes
	ack    func()              // re-arms TCP_QUICKACK
	native atomic.Bool         // it is known to be a gopccl master

	mu     sync.Mutex
	out    []byte
	spare  []byte
	writes bool // the writer has taken something that comes before out
	last   bool // nothing comes after out
	ready  chan struct{}
	ended  chan struct{}  // closed when the writer has ended
	work   sync.WaitGroup // of its reader and its writer
}

func newMasterConn(conn net.Conn) *masterConn {
	return &masterConn{
		conn: conn, src: transport.Source(conn), try: transport.NonBlocking(conn), ack: platform.QuickAcker(conn),
		ready: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

func (mc *masterConn) queue(p wire.Packet) {
	mc.mu.Lock()
	defer mc.mu.Unlock()
	mc.out = wire.Append(mc.out, p)
}

// distant reports whether the master is far away.
func (mc *masterConn) distant() bool {
	return !platform.SameHost(mc.conn) && link.Distant(mc.conn) // the system is not asked for nothing
}

// push sends what was queued, in one piece (quirk Q2) if the connection takes it
// at once, and leaves the rest to the writer.
func (mc *masterConn) push() error {
	mc.mu.Lock()
	defer mc.mu.Unlock()
	if mc.writes || len(mc.out) == 0 {
		return nil
	}
	if mc.try != nil {
		n, err := mc.try.TryWrite(mc.out)
		if err != nil {
			mc.out = nil
			return err
		}
		mc.out = mc.out[:copy(mc.out, mc.out[n:])]
	}
	if len(mc.out) > 0 || transport.Keeps(mc.try) {
		mc.wake()
	}
	return nil
}

func (mc *masterConn) wake() {
	select {
	case mc.ready <- struct{}{}:
	default:
	}
}

// take returns what the writer is to write, nil if there is nothing, and whether
// nothing comes behind it. What is empty goes behind what the connection keeps. b is what it returned before.
func (mc *masterConn) take(b []byte) ([]byte, bool) {
	mc.mu.Lock()
	defer mc.mu.Unlock()
	if b != nil {
		mc.spare = b[:0]
	}
	if mc.writes = len(mc.out) > 0 || transport.Keeps(mc.try); !mc.writes {
		return nil, mc.last
	}
	b, mc.out, mc.spare = mc.out, mc.spare, nil
	if b == nil {
		b = []byte{}
	}
	mc.bound()
	return b, mc.last
}

// bound bounds the write that is or will be under way. mc.mu is held.
func (mc *masterConn) bound() {
	d := masterWriteTime
	if mc.last {
		d = farewell
	}
	mc.conn.SetWriteDeadline(time.Now().Add(d))
}

// write writes what push has left until the end of the connection, which it
// closes.
func (mc *masterConn) write(gone func(error)) {
	defer close(mc.ended)
	defer mc.close()
	for b, last := mc.take(nil); ; b, last = mc.take(b) {
		if b == nil {
			if last {
				return
			}
			mc.conn.SetWriteDeadline(time.Time{}) // it would end writes that do not wait
			<-mc.ready
			continue
		}
		if _, err := mc.conn.Write(b); err != nil {
			gone(err)
			return
		}
	}
}

// drain lets the writer send what was queued and close the connection; it does
// not wait for it.
func (mc *masterConn) drain() {
	mc.mu.Lock()
	mc.last = true
	if mc.writes {
		mc.bound()
	}
	mc.mu.Unlock()
	mc.wake()
}

// close shuts the connection down first: where this process has forked, the
// child holds the socket, too, and closing alone would tell the master nothing.
func (mc *masterConn) close() {
	mc.drain()
	mc.conn.SetWriteDeadline(time.Now().Add(farewell)) // in TLS the end is written, too
	if c, ok := mc.conn.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	}
	mc.conn.Close()
}

// Read implements io.Reader on the connection.
func (mc *masterConn) Read(p []byte) (int, error) {
	n, err := mc.src.Read(p)
	if !mc.native.Load() { // quirk Q1
		mc.ack()
	}
	return n, err
}

// lifeSigns reads a large packet, and tells the machine now and then that it is coming in.
type lifeSigns struct {
	r    io.Reader
	s    *Session
	next time.Time
}

const (
	largePacket = 64 << 10
	aliveEvery  = 500 * time.Millisecond
)

func (l *lifeSigns) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if now := time.Now(); n > 0 && now.After(l.next) {
		l.next = now.Add(aliveEvery)
		l.s.handle(fsm.Alive{})
	}
	return n, err
}

// readPacket reads the next packet of the master.
func (s *Session) readPacket(r *bufio.Reader) (wire.Packet, error) {
	n, err := wire.ReadLength(r, wire.MaxPacket)
	switch {
	case err != nil:
		return nil, err
	case n > largePacket:
		return wire.ReadBody(&lifeSigns{r: r, s: s}, wire.M2C, n)
	}
	return wire.ReadBody(r, wire.M2C, n)
}

// readMaster hands the packets of the master to the machine, those in r first.
func (s *Session) readMaster(mc *masterConn, r *bufio.Reader) {
	for {
		p, err := s.readPacket(r)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				err = io.EOF
			}
			if guard.Remote(err) {
				err = fmt.Errorf("the master refuses the certificate of this peer, its log says why: %w", err)
			}
			s.handle(fsm.MasterGone{Err: err})
			return
		}
		if reg, ok := p.(wire.M2CSessionRegistrationResponse); ok {
			mc.native.Store(reg.Ext.Native)
			s.master.note(reg)
		}
		s.handle(fsm.PacketIn{Packet: p})
	}
}
