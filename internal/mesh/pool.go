package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/pace"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// each calls f for every peer, in parallel, and returns those for which it failed.
func (m *Mesh) each(peers []wire.PeerEndpoint, what string, f func(wire.PeerEndpoint) error) (failed []wire.UUID) {
	bad := make([]bool, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			bad[i] = true
			defer errs.Catch(what, m.cfg.Crash)
			bad[i] = f(p) != nil
		})
	}
	wg.Wait()
	for i, p := range peers {
		if bad[i] {
			failed = append(failed, p.UUID)
		}
	}
	return failed
}

// Establish makes the send pools of a round until ctx ends, in parallel over
// peers and one connection after the other inside a pool (data spec, section 1.2),
// drops those of all other peers but keep's, and returns who could not be reached.
func (m *Mesh) Establish(ctx context.Context, peers []wire.PeerEndpoint, keep []wire.UUID) (failed []wire.UUID) {
	defer m.growing.hold()()
	m.cfg.Between(true)
	probing, stop := context.WithTimeout(ctx, min(probeTime, m.cfg.HandshakeTimeout))
	defer stop()
	failed = m.each(peers, "connect to a peer", func(p wire.PeerEndpoint) error {
		if m.cfg.Pools.PingSenders(probing, p.UUID) >= m.poolSize(p.UUID) {
			return nil
		}
		err := m.dialPool(ctx, p)
		if err != nil {
			m.cfg.Log.Warn("cannot reach a ring neighbour", "peer", p.UUID.Short(), "addr", p.Addr, "error", err)
		}
		return err
	})
	stays := func(u wire.UUID) bool {
		return slices.ContainsFunc(peers, func(p wire.PeerEndpoint) bool { return p.UUID == u }) || slices.Contains(keep, u)
	}
	m.cfg.Pools.Retain(stays, stays)
	for _, known := range []*sync.Map{&m.sizes, &m.single} {
		known.Range(func(u, _ any) bool {
			if !stays(u.(wire.UUID)) {
				known.Delete(u)
			}
			return true
		})
	}
	// The others may start the next operation as soon as this end has reported.
	m.cfg.Between(false)
	return failed
}

// Prepare makes the pools to the neighbours of a ring to come, beside everything
// that runs, and returns who could not be reached.
func (m *Mesh) Prepare(ctx context.Context, peers []wire.PeerEndpoint) (failed []wire.UUID) {
	return m.each(peers, "connect to a peer", func(p wire.PeerEndpoint) error { return m.prepare(ctx, p) })
}

// prepare makes the pool to p. If an operation of an older ring sends to it,
// the pool stays as it is: what that operation uses is neither asked nor made
// anew. One that has a gap then makes this attempt fail, and the ring in force
// stays. Of a mesh there is one connection, and the rest is opened beside it.
func (m *Mesh) prepare(ctx context.Context, p wire.PeerEndpoint) error {
	defer m.growing.hold()()
	if ways, ok := m.single.Load(p.UUID); ok && m.alone(ctx, p.UUID) {
		err := m.awaitParted(ctx, p.UUID)
		if err == nil {
			err = m.dialRest(ctx, p, ways.([]*way), 1, m.poolSize(p.UUID))
		}
		if err == nil {
			m.single.Delete(p.UUID)
		}
		return err
	}
	if m.cfg.Pools.Sends(p.UUID) {
		if m.cfg.Pools.LiveSenders(p.UUID) >= m.poolSize(p.UUID) {
			return nil
		}
		return errors.New("an operation uses the connections that are left")
	}
	probing, stop := context.WithTimeout(ctx, min(probeTime, m.cfg.HandshakeTimeout))
	defer stop()
	if m.cfg.Pools.PingSenders(probing, p.UUID) >= m.poolSize(p.UUID) {
		return nil
	}
	err := m.dialPool(ctx, p)
	if err != nil && ctx.Err() == nil {
		m.cfg.Log.Warn("cannot reach a neighbour of a better ring", "peer", p.UUID.Short(), "addr", p.Addr, "error", err)
	}
	return err
}

// alone reports whether there is one connection to a peer, and it lives.
func (m *Mesh) alone(ctx context.Context, u wire.UUID) bool {
	return m.cfg.Pools.LiveSenders(u) == 1 && m.answers(ctx, u)
}

// answers reports whether connections to a peer live. What an operation uses is not
// asked.
func (m *Mesh) answers(ctx context.Context, u wire.UUID) bool {
	if m.cfg.Pools.Sends(u) {
		return m.cfg.Pools.LiveSenders(u) > 0
	}
	probing, stop := context.WithTimeout(ctx, min(probeTime, m.cfg.HandshakeTimeout))
	defer stop()
	return m.cfg.Pools.PingSenders(probing, u) > 0
}

// Connect makes connection 0 to those of peers to whom none lives, beside everything
// that runs, and returns who could not be reached. To distant ones it makes some more.
func (m *Mesh) Connect(ctx context.Context, peers []wire.PeerEndpoint) (failed []wire.UUID) {
	defer m.growing.hold()()
	return m.each(peers, "connect to a peer", func(p wire.PeerEndpoint) error {
		if m.answers(ctx, p.UUID) {
			return nil
		}
		if err := m.awaitParted(ctx, p.UUID); err != nil {
			return err
		}
		began := time.Now()
		first, err := m.dialFirst(ctx, p, m.cfg.Pools.Wanted(p.UUID))
		switch {
		case err == nil:
			m.growing.learn(p, first.ways)
			m.single.Store(p.UUID, first.ways)
			if first.distant {
				m.widen(ctx, p, first.ways, len(peers), time.Since(began))
			}
		case ctx.Err() == nil:
			m.cfg.Log.Warn("cannot reach a member of the group", "peer", p.UUID.Short(), "addr", p.Addr, "error", err)
		}
		return err
	})
}

// widen makes as many connections to p, one of so many members, as a distant peer gets
// from the start, or as were chosen, if there may be as many. The first one took so long. What cannot be
// had is done without.
func (m *Mesh) widen(ctx context.Context, p wire.PeerEndpoint, ways []*way, members int, took time.Duration) {
	n := min(m.poolSize(p.UUID), mostMesh/members)
	if n < max(m.cfg.PoolSize, 2) || took >= widenTime {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(3*took+time.Second, widenTime-took))
	defer cancel()
	if err := m.dialRest(ctx, p, ways, 1, n); err != nil {
		n = m.cfg.Pools.LiveSenders(p.UUID)
		m.cfg.Log.Debug("a member of the group has fewer connections than it could", "peer", p.UUID.Short(), "connections", n, "error", err)
	}
	if n > 1 {
		if m.cfg.PoolSize == 0 { // else what lacks is made good where it is a neighbour, when nothing is sent to it
			m.sizes.Store(p.UUID, n)
		}
		m.single.Delete(p.UUID)
	}
}

// Try exchanges hellos with each of the peers that leave nothing behind, and
// returns who could not be reached. self is this peer, which Config.Self may not
// know yet.
func (m *Mesh) Try(self wire.UUID, peers []wire.PeerEndpoint) (failed []wire.UUID) {
	ctx, cancel := context.WithTimeout(m.ctx, tryTime)
	defer cancel()
	return m.each(peers, "try a peer", func(p wire.PeerEndpoint) error {
		err := m.try(ctx, self, p)
		if err != nil {
			m.cfg.Log.Warn("cannot reach a peer", "peer", p.UUID.Short(), "addr", p.Addr, "error", err)
		}
		return err
	})
}

func (m *Mesh) try(ctx context.Context, self wire.UUID, p wire.PeerEndpoint) error {
	conn, err := m.dialSecure(ctx, netip.Addr{}, p.Addr, p.UUID, true)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	_, err = ask(conn, wire.P2PHello{UUID: self, Ext: wire.Ext{Native: true, Preflight: true}})
	return err
}

// poolSize returns of how many connections the pool to a peer is.
func (m *Mesh) poolSize(u wire.UUID) int {
	if n, ok := m.sizes.Load(u); ok {
		return n.(int)
	}
	return max(m.cfg.PoolSize, 1)
}

// begin decides how many connections the pool to a peer gets that begins with conn, and returns whether
// several suit one operation: the peer is distant, and takes them. Unless a number is chosen it gets as
// many then as operations wanted before, or as suit the round trip, and enough for all of its ways.
func (m *Mesh) begin(u wire.UUID, conn net.Conn, ack wire.P2PHelloAck, ways, wanted int) (distant bool) {
	n := max(m.cfg.PoolSize, 1)
	rtt, distant := link.Distance(conn)
	if distant = distant && ack.Ext.Flows > 0; distant && m.cfg.PoolSize == 0 {
		n = firstSize(rtt, wanted, ways)
	}
	m.sizes.Store(u, n)
	return distant
}

// firstSize returns how many connections a distant peer gets from the start.
func firstSize(rtt time.Duration, wanted, ways int) int {
	if ways > 1 {
		return max(pace.FirstCount, wanted)
	}
	return max(pace.First(rtt), wanted)
}

// dialPool opens connections 0 .. size-1 to p. Starting at 0 again
// replaces what the other end still holds of a broken pool (quirk Q17). A PCCL
// peer takes them one after the other; a gopccl peer puts them in order, so that
// a large pool over a long way takes a few round trips and not two for each.
func (m *Mesh) dialPool(ctx context.Context, p wire.PeerEndpoint) error {
	wanted := m.cfg.Pools.Wanted(p.UUID) // before Retain: it is forgotten with the connections
	m.cfg.Pools.Retain(func(u wire.UUID) bool { return u != p.UUID }, nil)
	if err := m.awaitParted(ctx, p.UUID); err != nil {
		return err
	}
	began := time.Now()
	m.sizes.Delete(p.UUID)
	m.single.Delete(p.UUID)
	first, err := m.dialFirst(ctx, p, wanted)
	if err != nil {
		return err
	}
	if !first.native {
		return m.dialInTurn(ctx, p, first.ways, began)
	}
	m.growing.learn(p, first.ways)
	return m.dialRest(ctx, p, first.ways, 1, m.poolSize(p.UUID))
}

// dialRest opens connections from to size-1 to p, a gopccl peer, over ways.
func (m *Mesh) dialRest(ctx context.Context, p wire.PeerEndpoint, ways []*way, from, size int) error {
	var (
		next   atomic.Uint32
		wg     sync.WaitGroup
		turns  = make([]chan struct{}, size+1) // closed when the one before is in place or failed
		failed atomic.Pointer[error]
	)
	next.Store(uint32(from - 1))
	for i := range turns {
		turns[i] = make(chan struct{})
	}
	close(turns[from])
	for range min(dialsAtOnce, size-from) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer errs.Catch("connect to a peer", m.cfg.Crash)
			for {
				n := next.Add(1)
				if int(n) >= size {
					return
				}
				func() {
					defer close(turns[n+1])
					if failed.Load() == nil {
						inTurn := func() error {
							<-turns[n]
							if gap := failed.Load(); gap != nil {
								return *gap
							}
							return nil
						}
						if err := m.dialNumber(ctx, p, n, ways, inTurn); err != nil {
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

// dialInTurn opens connections 1 .. size-1 of a pool that was begun at began
// one after the other. Where the time does not suffice for all, the pool stays
// smaller as long as p is a neighbour: the last handshake must not be cut off,
// because the other end counts it (data spec, section 1.2). Who takes its time
// with every single one is too slow for a neighbour.
func (m *Mesh) dialInTurn(ctx context.Context, p wire.PeerEndpoint, ways []*way, began time.Time) error {
	size := m.poolSize(p.UUID)
	for n := 1; n < size; n++ {
		each := time.Since(began) / time.Duration(n)
		if end, bounded := ctx.Deadline(); bounded {
			left := time.Until(end)
			if each > slowHandshake && each*time.Duration(size-n) > left {
				return fmt.Errorf("it takes %v for each of %d connections", each.Round(time.Millisecond), size)
			}
			if each <= slowHandshake && left < 3*each+slowHandshake {
				m.cfg.Log.Warn("a pool has fewer connections than it should: they take too long", "peer", p.UUID.Short(), "connections", n, "each", each)
				m.sizes.Store(p.UUID, n)
				return nil
			}
		}
		if err := m.dialNumber(ctx, p, uint32(n), ways, nil); err != nil {
			return err
		}
	}
	return nil
}

// dialFirst opens connection 0 of a pool, hands it to the engine, and returns what it shows. wanted is
// how many connections operations wanted before; 0: nothing is known.
func (m *Mesh) dialFirst(ctx context.Context, p wire.PeerEndpoint, wanted int) (first, error) {
	conn, ack, err := m.dialWay(ctx, p, 0, []*way{{to: p.Addr}})
	if err != nil {
		return first{}, err
	}
	ways := m.ways(p, ack)
	distant := m.begin(p.UUID, conn, ack, len(ways), wanted)
	return first{ways, ack.Ext.Native, distant}, m.add(p, 0, conn, ack)
}

// first is what the first connection to a peer shows.
type first struct {
	ways    []*way // for the other ones
	native  bool   // a gopccl peer
	distant bool   // several suit one operation
}

// dialNumber opens another connection of a pool and hands it to the engine. inTurn, if there is one, waits
// until those before it are there, and returns why one is not: a connection behind a gap is of no use.
func (m *Mesh) dialNumber(ctx context.Context, p wire.PeerEndpoint, number uint32, ways []*way, inTurn func() error) error {
	conn, ack, err := m.dialWay(ctx, p, number, ways)
	if inTurn != nil {
		if gap := inTurn(); gap != nil {
			if err == nil {
				conn.Close()
			}
			return gap
		}
	}
	if err == nil {
		err = m.add(p, number, conn, ack)
	}
	return err
}

// add hands a connection to the engine. If it returns an error the connection is closed.
func (m *Mesh) add(p wire.PeerEndpoint, number uint32, conn net.Conn, ack wire.P2PHelloAck) error {
	if m.poolSize(p.UUID) > 1 && ack.Ext.Flows > 0 {
		if err := platform.LimitUnsent(conn, unsentBytes); err != nil {
			conn.Close()
			return err
		}
	}
	return m.cfg.Pools.AddSender(p.UUID, number, conn, link.Features{Native: ack.Ext.Native, Flows: ack.Ext.Flows > 0, Ahead: ack.Ext.Flows >= wire.FlowsAhead, Spares: ack.Ext.Flows >= wire.FlowsSpares})
}

// errOther: an address that a neighbour has in its networks is somebody else's
// in the networks here. Peers of gopccl refuse such a hello themselves.
var errOther = errors.New("another peer answers there")

// dialWay opens connection number of a pool over its way or, if that leads
// nowhere, over the one that the master told.
func (m *Mesh) dialWay(ctx context.Context, p wire.PeerEndpoint, number uint32, ways []*way) (net.Conn, wire.P2PHelloAck, error) {
	w := wayOf(ways, number)
	conn, ack, err := m.hello(ctx, p, w, number)
	if err == nil || w == ways[0] || ctx.Err() != nil {
		return conn, ack, err
	}
	if !w.dead.Swap(true) {
		m.cfg.Log.Warn("an address of a neighbour cannot be reached", "peer", p.UUID.Short(), "from", w.from, "to", w.to, "error", err)
	}
	return m.hello(ctx, p, ways[0], number)
}

// dialSecure is dialFrom, and makes the connection secure.
func (m *Mesh) dialSecure(ctx context.Context, from netip.Addr, to netip.AddrPort, peer wire.UUID, trial bool) (net.Conn, error) {
	conn, err := m.dialFrom(ctx, from, to)
	if err != nil || m.cfg.Secure == nil {
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.HandshakeTimeout)
	defer cancel()
	return m.cfg.Secure.Dial(ctx, conn, peer, trial)
}

// hello connects to p over w and introduces this peer.
func (m *Mesh) hello(ctx context.Context, p wire.PeerEndpoint, w *way, number uint32) (net.Conn, wire.P2PHelloAck, error) {
	conn, err := m.dialSecure(ctx, w.from, w.to, p.UUID, false)
	if err != nil {
		return nil, wire.P2PHelloAck{}, err
	}
	ack, err := m.introduce(ctx, conn, number, w.session)
	switch {
	case err != nil:
		m.part(conn, p.UUID)
	case w.session != 0 && ack.Ext.Session != w.session:
		conn.Close()
		err = errOther
	}
	return conn, ack, err
}

// introduce exchanges the hellos of connection number, with nobody else than the
// session of that number, if it is not 0. The end of ctx cuts the wait short.
func (m *Mesh) introduce(ctx context.Context, conn net.Conn, number uint32, session uint64) (ack wire.P2PHelloAck, err error) {
	err = m.handshake(ctx, conn, func() (err error) {
		ack, err = ask(conn, wire.P2PHello{UUID: m.cfg.Self(), Number: number, Ext: wire.Ext{Native: true, Flows: wire.FlowsSpares, Session: session, Collectives: wire.CollectivesVersion}})
		return err
	})
	return ack, err
}
