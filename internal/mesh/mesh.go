// Package mesh makes the connections between peers: it listens, dials the pools
// to the neighbours, exchanges hellos and hands what has passed to the data path.
// Which peers are dialled, and when, the machine of the session decides; which
// connection may take a place in a pool, the data path. A transport other than TCP
// has its place here: Config.Dial for what it opens, Accept for what it lets in.
//
// A handshake is a hello of the peer that dials, with its uuid and the number of
// the connection in the pool, and an answer (data spec, section 1). Its order has
// rules:
//
//   - Connection 0 is first, and everything that this peer still sends to the other
//     one is closed before: what PCCL finds at a number that it knows already
//     replaces what was there, and it never checks what is left (quirk Q17). Hellos
//     that were given up come before it, too: a late one would replace a living pool.
//     So over TCP one whose other end has ended already is not answered, and gets no place.
//   - A PCCL peer is told the numbers one after the other, without a hole, because
//     it makes room for number+1 connections at each hello (quirk Q25). A gopccl
//     peer puts them in order itself, so that a large pool over a long way takes a
//     few round trips and not two for each; it gets the connections here in order.
//   - Numbers that nobody needs are refused before anything is allocated for them
//     (quirk Q25). A gopccl peer that is early waits for its place, a PCCL peer with
//     a hole is left to the data path, which refuses it.
//   - The reader is in place before the answer leaves: the first data frame may
//     come right behind it. Nobody writes to a connection before the answer.
//   - The first P2P port is moved at random, so that a peer that rejoins rarely
//     gets the port of its predecessor, on which PCCL neighbours fail (quirk Q7).
//   - A hello that names a session is for that session alone: an address that a
//     neighbour has in its networks may be somebody else's here.
//   - A hello of the preflight leaves nothing behind (docs/spec/extensions.md,
//     "Preflight").
//
// Every handshake has a deadline and ends with the session. At most maxPending are
// in progress; a silent one makes room for a newcomer (quirk Q26).
package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/link"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// MaxPool is the largest number of connections in a pool (quirk Q25).
const MaxPool = link.MaxPool

const (
	maxHello    = 64 << 10 // bytes of a packet of the handshake
	maxPending  = 512      // handshakes in progress on one listener
	maxWaiting  = 256      // of these, those that wait for others of their pool
	dialsAtOnce = 16       // handshakes in progress with one peer
	mostMesh    = 48       // connections to members that are not neighbours, from the start
	// widenTime bounds how long all connections to such a member may take: the master
	// waits for 10 s for everybody's.
	widenTime = 5 * time.Second
	// unsentBytes is how much of what was written to one of several connections
	// may wait to be sent.
	unsentBytes = 64 << 10
	// probeTime bounds the wait for answers on the connections of a pool before
	// they are made anew.
	probeTime = 2 * time.Second
	// tryTime bounds the trial whether a peer can be reached: a TCP connect and one
	// handshake.
	tryTime = 4 * time.Second
	// slowHandshake is what one connection may take where many have to be made
	// one after the other.
	slowHandshake = time.Second
)

// Pools are the connections of the data path, of which link.Hub says what each
// method does.
type Pools interface {
	AddSender(peer wire.UUID, number uint32, conn net.Conn, features link.Features) error
	AddReceiver(peer wire.UUID, number uint32, conn net.Conn)
	MayTake(peer wire.UUID, number uint32) bool
	AwaitPlace(ctx context.Context, peer wire.UUID, number uint32, fill bool) bool
	PingSenders(ctx context.Context, peer wire.UUID) int
	LiveSenders(peer wire.UUID) int
	Sends(peer wire.UUID) bool
	Wanted(peer wire.UUID) int
	Announce(peer wire.UUID) int
	Refused(peer wire.UUID, n int)
	Retain(send, recv func(wire.UUID) bool)
}

// Secure makes the connections of a mesh secure, and says who is at the other end.
type Secure interface {
	// Dial makes a connection that was dialled secure, and closes it if it fails. The
	// peer of a trial need not be a member yet.
	Dial(ctx context.Context, conn net.Conn, peer wire.UUID, trial bool) (net.Conn, error)
	// Wrap returns an accepted connection as one whose handshake is to come.
	Wrap(conn net.Conn) net.Conn
	// Greet makes the handshake of a connection that Wrap has returned, and returns
	// the name at the other end.
	Greet(ctx context.Context, conn net.Conn) (name string, err error)
	// Is reports an error if the peer at the other end is not of that name. It may
	// wait for the master to say.
	Is(ctx context.Context, name string, peer wire.UUID) error
}

// Config of a Mesh. All fields but Addresses, Complain, Dial and Secure are needed.
type Config struct {
	Pools Pools
	// Between is told when a time begins and ends in which no operation can run or
	// start.
	Between func(on bool)
	// Self is the uuid that the master has given this peer.
	Self func() wire.UUID
	// Listener is where neighbours connect; the mesh closes it.
	Listener net.Listener
	// Addresses of this machine, one for each network that leads to the neighbours.
	Addresses []netip.Addr
	// PoolSize is the number of connections to each neighbour, at most MaxPool. 0: one
	// to a near peer or a PCCL peer, and to others as many as help.
	PoolSize int
	// Secure makes connections secure; nil: they are in plaintext.
	Secure Secure
	// Complain reports whether the log may have a line of a kind about what comes from
	// an address; nil: it always may.
	Complain func(remote net.Addr, kind string) (due bool, more int)
	// Dial opens a connection, from a local address of its choice; nil: TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// DialTimeout bounds the opening of a connection, HandshakeTimeout what
	// follows until it is in a pool.
	DialTimeout, HandshakeTimeout time.Duration
	// Tuning is for every connection; those that are received from a gopccl peer are patient with it
	// (platform.Options.Patient), if Watched says when they come that the master misses a peer whose machine is gone.
	// nil: it does not.
	Tuning  platform.Options
	Watched func() bool
	Log     *slog.Logger
	// Crash is told of a panic in a goroutine of the mesh. It must not wait for one.
	Crash func(*errs.Error)
}

// Mesh makes the connections of one session with its neighbours. Methods may be
// called from any goroutine, but no two at a time that open the pool to one peer.
type Mesh struct {
	cfg    Config
	ctx    context.Context // of all handshakes
	accept *acceptor
	number uint64 // by which neighbours know this session at another address
	// sizes are of pools that have another number of connections than PoolSize: those
	// that grow, and those for which there was no time for more.
	sizes sync.Map
	// single are the ways to peers to which connection 0 was opened alone.
	single sync.Map
	// growing is what opens more connections of a pool, and may not meet what opens
	// all of them.
	growing growing
	// parting are handshakes that were given up, and of which the other end may not know.
	parting parting
}

// New returns a mesh whose handshakes end with ctx. Nothing is accepted before Run.
func New(ctx context.Context, cfg Config) *Mesh {
	m := &Mesh{cfg: cfg, ctx: ctx}
	for m.number == 0 {
		m.number = rand.Uint64()
	}
	m.accept = &acceptor{ln: cfg.Listener, secure: cfg.Secure, serve: m.greet, over: make(chan struct{}), failed: func(err error) {
		cfg.Log.Warn("no P2P connection could be accepted", "error", err)
	}}
	return m
}

// Run accepts neighbours until Close, or until the listener fails.
func (m *Mesh) Run() { m.accept.run() }

// Accept begins the handshake of a connection that was accepted, and returns.
func (m *Mesh) Accept(conn net.Conn) { m.accept.add(conn) }

// Close closes the listener and ends the handshakes in progress that neighbours
// have begun, without waiting for them: one of them may call it.
func (m *Mesh) Close() {
	m.growing.close()
	m.accept.close()
}

// Wait waits until the handshakes that neighbours have begun, pools that grow, and
// connections that were given up have ended; Close and the end of New's ctx come before.
func (m *Mesh) Wait() {
	m.growing.wg.Wait()
	m.accept.wait()
}

// Dial opens and tunes a connection to another peer, without a hello.
func (m *Mesh) Dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	return m.dialFrom(ctx, netip.Addr{}, addr)
}

// dialFrom is Dial from a local address, if it is valid and Config.Dial chooses none.
func (m *Mesh) dialFrom(ctx context.Context, from netip.Addr, addr netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.DialTimeout)
	defer cancel()
	var conn net.Conn
	var err error
	if dial := m.cfg.Dial; dial != nil {
		conn, err = dial(ctx, "tcp", addr.String())
	} else {
		conn, err = transport.DialFrom(ctx, "tcp", addr.String(), from)
	}
	if err != nil {
		return nil, err
	}
	conn = transport.Quiet(conn)
	if err := platform.TuneP2P(conn, m.cfg.Tuning); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// handshake runs f, which reads from conn and writes to it, for at most
// HandshakeTimeout or until ctx ends. Afterwards conn has no deadline: one that
// outlived its handshake would end a healthy connection much later.
func (m *Mesh) handshake(ctx context.Context, conn net.Conn, f func() error) error {
	if err := conn.SetDeadline(time.Now().Add(m.cfg.HandshakeTimeout)); err != nil {
		return err
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		conn.SetDeadline(time.Unix(1, 0))
	})
	err := f()
	if !stop() {
		<-cut // its deadline must not be set later, when conn is used for something else
		if err == nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// ask says hello on conn and returns the answer.
func ask(conn net.Conn, hello wire.P2PHello) (ack wire.P2PHelloAck, err error) {
	if _, err := conn.Write(wire.Append(nil, hello)); err != nil {
		return ack, err
	}
	answer, err := wire.Read(conn, wire.P2P, maxHello)
	if err != nil {
		return ack, err
	}
	ack, ok := answer.(wire.P2PHelloAck)
	if !ok {
		return ack, fmt.Errorf("answered a hello with %T", answer)
	}
	return ack, nil
}
