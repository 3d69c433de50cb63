package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/peer/fsm"
	"github.com/gopccl/gopccl/internal/reduce"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

func dialMaster(ctx context.Context, opt Options) (*masterConn, error) {
	dctx, cancel := context.WithTimeout(ctx, opt.DialTimeout)
	defer cancel()
	conn, err := opt.dialer(netip.Addr{})(dctx, "tcp", opt.Master)
	if err != nil {
		return nil, err
	}
	conn = transport.Quiet(conn)
	if err := platform.TuneMaster(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return newMasterConn(conn), nil
}

// establishTime is how long the connecting of a round may take: the report has
// to be there in time and name the slow ones, or this peer is the slow one.
func (s *Session) establishTime() time.Duration {
	if bound := s.View().RoundBound; bound > 0 {
		return bound / 4 * 3
	}
	return roundTime
}

// establish makes the send pools of a round, in parallel over peers and one
// connection after the other inside a pool (data spec, section 1.2).
func (s *Session) establish(e fsm.Establish) {
	ctx, cancel := context.WithTimeout(s.ctx, s.establishTime())
	defer cancel()
	s.engine.Between(true)
	failed := make([]bool, len(e.Peers))
	var wg sync.WaitGroup
	probing, stop := context.WithTimeout(ctx, min(probeTime, s.opt.HandshakeTimeout))
	defer stop()
	for i, p := range e.Peers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer errs.Catch("connect to a peer", s.crash)
			if s.engine.PingSenders(probing, p.UUID) >= s.poolSize(p.UUID) {
				return
			}
			if err := s.dialPool(ctx, p); err != nil {
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
	s.smaller.Range(func(u, _ any) bool {
		if !listed(u.(wire.UUID)) {
			s.smaller.Delete(u)
		}
		return true
	})
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

// poolSize returns of how many connections the pool to a peer is.
func (s *Session) poolSize(u wire.UUID) int {
	if n, ok := s.smaller.Load(u); ok {
		return n.(int)
	}
	return s.opt.PoolSize
}

// dialPool opens connections 0 .. PoolSize-1 to p. Starting at 0 again
// replaces what the other end still holds of a broken pool (quirk Q17). A PCCL
// end takes them one after the other; a gopccl end puts them in order, so that
// a large pool over a long way takes a few round trips and not two for each.
func (s *Session) dialPool(ctx context.Context, p wire.PeerEndpoint) error {
	s.engine.Retain(func(u wire.UUID) bool { return u != p.UUID }, nil)
	began := time.Now()
	ack, err := s.dialNumber(ctx, p, 0, []*way{{to: p.Addr}}, nil)
	if err != nil {
		return err
	}
	ways := s.ways(p, ack)
	if !ack.Ext.Native {
		return s.dialInTurn(ctx, p, ways, began)
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

// dialInTurn opens connections 1 .. PoolSize-1 of a pool that was begun at began
// one after the other. Where the time does not suffice for all, the pool stays
// smaller as long as p is a neighbour: the last handshake must not be cut off,
// because the other end counts it (data spec, section 1.2). Who takes its time
// with every single one is too slow for a neighbour.
func (s *Session) dialInTurn(ctx context.Context, p wire.PeerEndpoint, ways []*way, began time.Time) error {
	s.smaller.Delete(p.UUID)
	for n := 1; n < s.opt.PoolSize; n++ {
		each := time.Since(began) / time.Duration(n)
		if end, bounded := ctx.Deadline(); bounded {
			left := time.Until(end)
			if each > slowHandshake && each*time.Duration(s.opt.PoolSize-n) > left {
				return fmt.Errorf("it takes %v for each of %d connections", each.Round(time.Millisecond), s.opt.PoolSize)
			}
			if each <= slowHandshake && left < 3*each+slowHandshake {
				s.log.Warn("a pool has fewer connections than it should: they take too long", "peer", p.UUID.Short(), "connections", n, "each", each)
				s.smaller.Store(p.UUID, n)
				return nil
			}
		}
		if _, err := s.dialNumber(ctx, p, uint32(n), ways, nil); err != nil {
			return err
		}
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
	err = s.handshake(ctx, conn, func() error {
		hello := wire.P2PHello{UUID: s.View().UUID, Number: number, Ext: wire.Ext{Native: true, Flows: true, Session: session}}
		if _, err := conn.Write(wire.Append(nil, hello)); err != nil {
			return err
		}
		answer, err := wire.Read(conn, wire.P2P, 64<<10)
		if err != nil {
			return err
		}
		var ok bool
		if ack, ok = answer.(wire.P2PHelloAck); !ok {
			return fmt.Errorf("answered a hello with %T", answer)
		}
		return nil
	})
	return ack, err
}

// handshake runs f, which reads from conn and writes to it, for at most
// Options.HandshakeTimeout or until ctx ends. Afterwards conn has no deadline:
// one that outlived its handshake would end a healthy connection much later.
func (s *Session) handshake(ctx context.Context, conn net.Conn, f func() error) error {
	if err := conn.SetDeadline(time.Now().Add(s.opt.HandshakeTimeout)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := f(); err != nil {
		return err
	}
	if !stop() {
		return ctx.Err()
	}
	return conn.SetDeadline(time.Time{})
}

// dialPeer opens and tunes a connection to another peer.
func (s *Session) dialPeer(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	return s.dialFrom(ctx, netip.Addr{}, addr)
}

// dialFrom is dialPeer from a local address, if it is valid and the dialer is ours.
func (s *Session) dialFrom(ctx context.Context, from netip.Addr, addr netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opt.DialTimeout)
	defer cancel()
	conn, err := s.opt.dialer(from)(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	conn = transport.Quiet(conn)
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
	var p wire.Packet
	err := s.handshake(s.ctx, conn, func() (err error) {
		p, err = wire.Read(conn, wire.P2P, 64<<10)
		return err
	})
	if err != nil {
		refuse(err)
		return
	}
	hello, ok := p.(wire.P2PHello)
	if !ok {
		refuse(fmt.Errorf("expected a hello, got %T", p))
		return
	}
	if hello.Ext.Native && hello.Ext.Preflight {
		// It only wanted to know whether there is a way to here.
		conn.Write(wire.Append(nil, wire.P2PHelloAck{Ext: wire.Ext{Native: true, Preflight: true}}))
		conn.Close()
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
	// A PCCL peer that leaves a hole in its pool is refused below, as PCCL does.
	if !s.engine.MayTake(hello.UUID, hello.Number) && (hello.Ext.Native || hello.Number == 0) {
		s.accept.waits(conn)
		ctx, cancel := context.WithTimeout(s.ctx, s.opt.HandshakeTimeout)
		ok := s.engine.AwaitPlace(ctx, hello.UUID, hello.Number)
		cancel()
		if !ok {
			refuse(fmt.Errorf("connection number %d came without those before it, or would have taken the place of one that lives", hello.Number))
			return
		}
	}
	s.engine.AddReceiver(hello.UUID, hello.Number, conn)
	ack := wire.P2PHelloAck{}
	if hello.Ext.Native {
		ack.Ext = wire.Ext{Native: true, Flows: hello.Ext.Flows, Addresses: s.announcedAddresses(), Session: s.number}
	}
	// Its reader belongs to the engine now; nobody writes before this.
	conn.SetWriteDeadline(time.Now().Add(s.opt.HandshakeTimeout))
	_, err = conn.Write(wire.Append(nil, ack))
	conn.SetWriteDeadline(time.Time{})
	if err != nil {
		conn.Close() // the engine's reader sees the end
	}
}
