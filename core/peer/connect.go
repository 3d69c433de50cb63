package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/peer/fsm"
	"github.com/gopccl/gopccl/core/reduce"
	"github.com/gopccl/gopccl/core/transport"
	"github.com/gopccl/gopccl/core/wire"
	"github.com/gopccl/gopccl/platform"
)

// masterConn is the connection to the master. Whoever has the machine writes.
type masterConn struct {
	conn  net.Conn
	src   io.Reader
	try   transport.TryWriter // nil: a write may always wait
	out   []byte
	ack   func()
	quick atomic.Bool // re-arm TCP_QUICKACK after every read (quirk Q1)
}

func dialMaster(ctx context.Context, opt Options) (*masterConn, error) {
	dctx, cancel := context.WithTimeout(ctx, opt.DialTimeout)
	defer cancel()
	conn, err := opt.Dial(dctx, "tcp", opt.Master)
	if err != nil {
		return nil, err
	}
	if err := platform.TuneMaster(conn); err != nil {
		conn.Close()
		return nil, err
	}
	mc := &masterConn{conn: conn, src: transport.Source(conn), try: transport.NonBlocking(conn), ack: platform.QuickAcker(conn)}
	mc.quick.Store(true)
	return mc, nil
}

func (mc *masterConn) queue(p wire.Packet) { mc.out = wire.Append(mc.out, p) }

// flush writes what was queued in one piece (quirk Q2).
func (mc *masterConn) flush() error {
	if len(mc.out) == 0 {
		return nil
	}
	mc.conn.SetWriteDeadline(time.Now().Add(masterWriteTime))
	_, err := mc.conn.Write(mc.out)
	mc.out = mc.out[:0]
	mc.conn.SetWriteDeadline(time.Time{}) // it would end writes that do not wait
	return err
}

// tryFlush is flush as far as it need not wait; false: something is left.
func (mc *masterConn) tryFlush() (bool, error) {
	if len(mc.out) == 0 {
		return true, nil
	}
	if mc.try == nil {
		return false, nil
	}
	n, err := mc.try.TryWrite(mc.out)
	if err != nil {
		n = len(mc.out)
	}
	mc.out = mc.out[:copy(mc.out, mc.out[n:])]
	return len(mc.out) == 0, err
}

// close shuts the connection down first: where this process has forked, the
// child holds the socket, too, and closing alone would tell the master nothing.
func (mc *masterConn) close() {
	if c, ok := mc.conn.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	}
	mc.conn.Close()
}

// Read implements io.Reader on the connection.
func (mc *masterConn) Read(p []byte) (int, error) {
	n, err := mc.src.Read(p)
	if mc.quick.Load() {
		mc.ack()
	}
	return n, err
}

func (s *Session) readMaster() {
	r := bufio.NewReaderSize(s.master, 64<<10)
	for {
		p, err := wire.Read(r, wire.M2C, wire.MaxPacket)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				err = io.EOF
			}
			s.handle(fsm.MasterGone{Err: err})
			return
		}
		if reg, ok := p.(wire.M2CSessionRegistrationResponse); ok && reg.Ext.Native {
			s.master.quick.Store(false)
		}
		s.handle(fsm.PacketIn{Packet: p})
	}
}

// establish makes the send pools of a round, in parallel over peers and one
// connection after the other inside a pool (data spec, section 1.2).
func (s *Session) establish(e fsm.Establish) {
	s.engine.Between(true)
	failed := make([]bool, len(e.Peers))
	var wg sync.WaitGroup
	probing, stop := context.WithTimeout(s.ctx, min(probeTime, s.opt.HandshakeTimeout))
	defer stop()
	for i, p := range e.Peers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer errs.Catch("connect to a peer", s.crash)
			if s.engine.ProbeSenders(probing, p.UUID) >= s.opt.PoolSize {
				return
			}
			if err := s.dialPool(s.ctx, p); err != nil {
				s.log.Warn("cannot reach a ring neighbour", "peer", p.UUID.Short(), "addr", p.Addr, "error", err)
				failed[i] = true
			}
		}()
	}
	wg.Wait()
	listed := func(u wire.UUID) bool {
		for _, p := range e.Peers {
			if p.UUID == u {
				return true
			}
		}
		return false
	}
	s.engine.Retain(listed, listed)
	// The others may start the next operation as soon as this end has reported.
	s.engine.Between(false)
	ev := fsm.Established{Round: e.Round}
	for i, bad := range failed {
		if bad {
			ev.Failed = append(ev.Failed, e.Peers[i].UUID)
		}
	}
	s.box.post(ev)
}

// dialPool opens connections 0 .. PoolSize-1 to p. Starting at 0 again
// replaces what the other end still holds of a broken pool (quirk Q17). A PCCL
// end takes them one after the other; a gopccl end puts them in order, so that
// a large pool over a long way takes a few round trips and not two for each.
func (s *Session) dialPool(ctx context.Context, p wire.PeerEndpoint) error {
	s.engine.Retain(func(u wire.UUID) bool { return u != p.UUID }, nil)
	ack, err := s.dialNumber(ctx, p, 0, []*way{{to: p.Addr}}, nil)
	if err != nil {
		return err
	}
	ways := s.ways(p, ack)
	if !ack.Ext.Native {
		for n := 1; n < s.opt.PoolSize; n++ {
			if _, err := s.dialNumber(ctx, p, uint32(n), ways, nil); err != nil {
				return err
			}
		}
		return nil
	}
	var (
		next   atomic.Uint32
		wg     sync.WaitGroup
		turns  = make([]chan struct{}, s.opt.PoolSize+1) // closed when the one before is in place or failed
		failed atomic.Pointer[error]
	)
	for i := range turns {
		turns[i] = make(chan struct{})
	}
	close(turns[1])
	for range min(dialsAtOnce, s.opt.PoolSize-1) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer errs.Catch("connect to a peer", s.crash)
			for {
				n := next.Add(1)
				if int(n) >= s.opt.PoolSize {
					return
				}
				func() {
					defer close(turns[n+1])
					if failed.Load() == nil {
						if _, err := s.dialNumber(ctx, p, n, ways, turns[n]); err != nil {
							failed.CompareAndSwap(nil, &err)
						}
					}
				}()
			}
		}()
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// dialNumber opens one connection of a pool and hands it to the engine when it
// is its turn. A connection behind a gap is closed by the engine; the gap's
// error counts.
func (s *Session) dialNumber(ctx context.Context, p wire.PeerEndpoint, number uint32, ways []*way, turn <-chan struct{}) (ack wire.P2PHelloAck, err error) {
	conn, ack, err := s.dialWay(ctx, p, number, ways)
	if turn != nil {
		<-turn
	}
	if err == nil && s.opt.PoolSize > 1 && ack.Ext.Flows {
		if err = platform.LimitUnsent(conn, unsentBytes); err != nil {
			conn.Close()
		}
	}
	if err == nil {
		s.engine.AddSender(p.UUID, number, conn, reduce.Link{Native: ack.Ext.Native, Flows: ack.Ext.Flows})
	}
	return ack, err
}

// introduce exchanges the hellos of connection number, with nobody else than the
// session of that number, if it is not 0. The end of ctx cuts the wait short.
func (s *Session) introduce(ctx context.Context, conn net.Conn, number uint32, session uint64) (ack wire.P2PHelloAck, err error) {
	conn.SetDeadline(time.Now().Add(s.opt.HandshakeTimeout))
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	hello := wire.P2PHello{UUID: s.View().UUID, Number: number, Ext: wire.Ext{Native: true, Flows: true, Session: session}}
	if _, err = conn.Write(wire.Append(nil, hello)); err != nil {
		return ack, err
	}
	answer, err := wire.Read(conn, wire.P2P, 64<<10)
	if err != nil {
		return ack, err
	}
	ack, ok := answer.(wire.P2PHelloAck)
	if !ok {
		return ack, fmt.Errorf("answered a hello with %T", answer)
	}
	if !stop() {
		return ack, ctx.Err()
	}
	return ack, conn.SetDeadline(time.Time{})
}

// dialPeer opens and tunes a connection to another peer.
func (s *Session) dialPeer(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	return s.dialFrom(ctx, netip.Addr{}, addr)
}

// dialFrom is dialPeer from a local address, if it is valid and the dialer is ours.
func (s *Session) dialFrom(ctx context.Context, from netip.Addr, addr netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opt.DialTimeout)
	defer cancel()
	dial := s.opt.Dial
	if from.IsValid() && !s.opt.ownDial {
		dial = (&net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}).DialContext
	}
	conn, err := dial(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	if err := platform.TuneP2P(conn, s.tuning()); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func (s *Session) tuning() platform.Options {
	return platform.Options{UserTimeout: s.opt.UserTimeout, Congestion: s.opt.Congestion}
}

// greet answers one accepted P2P connection. The receiver is registered before
// the answer, so data that follows it finds its reader.
func (s *Session) greet(conn net.Conn) {
	refuse := func(err error) {
		s.log.Warn("closed a P2P connection", "remote", conn.RemoteAddr(), "reason", err)
		conn.Close()
	}
	defer errs.Catch("accept peer", func(err *errs.Error) {
		conn.Close()
		s.crash(err)
	})
	if err := platform.TuneP2P(conn, s.tuning()); err != nil {
		refuse(err)
		return
	}
	conn.SetDeadline(time.Now().Add(s.opt.HandshakeTimeout))
	p, err := wire.Read(conn, wire.P2P, 64<<10)
	if err != nil {
		refuse(err)
		return
	}
	hello, ok := p.(wire.P2PHello)
	if !ok {
		refuse(fmt.Errorf("expected a hello, got %T", p))
		return
	}
	if hello.Number > maxPoolNumber {
		refuse(fmt.Errorf("connection number %d is above %d", hello.Number, maxPoolNumber))
		return
	}
	if hello.Ext.Session != 0 && hello.Ext.Session != s.number {
		refuse(errors.New("it is meant for another peer, which named this address as its own"))
		return
	}
	if hello.Ext.Native && hello.Number > 0 {
		ctx, cancel := context.WithTimeout(s.ctx, s.opt.HandshakeTimeout)
		ok := s.engine.AwaitReceivers(ctx, hello.UUID, hello.Number)
		cancel()
		if !ok {
			refuse(fmt.Errorf("connection number %d came without those before it", hello.Number))
			return
		}
	}
	conn.SetDeadline(time.Time{})
	s.engine.AddReceiver(hello.UUID, hello.Number, conn)
	conn.SetWriteDeadline(time.Now().Add(s.opt.HandshakeTimeout))
	ack := wire.P2PHelloAck{}
	if hello.Ext.Native {
		ack.Ext = wire.Ext{Native: true, Flows: hello.Ext.Flows, Addresses: s.announcedAddresses(), Session: s.number}
	}
	if _, err := conn.Write(wire.Append(nil, ack)); err != nil {
		conn.Close() // the engine's reader sees the end
	}
}
