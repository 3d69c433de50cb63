package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// meet makes the handshake of an accepted connection secure, and returns the name at
// the other end. false: it is a stranger's, and was closed.
func (m *Mesh) meet(conn net.Conn) (name string, known bool) {
	if m.cfg.Secure == nil {
		return "", true
	}
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.HandshakeTimeout)
	defer cancel()
	name, err := m.cfg.Secure.Greet(ctx, conn)
	if err == nil {
		return name, true
	}
	m.refuse(conn, "stranger", err)
	return "", false
}

// refuse closes a connection, and says why in the log, which has one line for an address,
// a kind and a minute.
func (m *Mesh) refuse(conn net.Conn, kind string, why error) {
	due, more := true, 0
	if m.cfg.Complain != nil {
		due, more = m.cfg.Complain(conn.RemoteAddr(), kind)
	}
	if due {
		m.cfg.Log.Warn("closed a P2P connection", "remote", conn.RemoteAddr(), "reason", why, "more", more)
	}
	conn.Close()
}

// is reports an error if name is not that of the peer that says hello. The master may have told the
// other one of a round earlier than this one: the connection waits for that.
func (m *Mesh) is(name string, hello wire.P2PHello, conn net.Conn) (err error) {
	if m.cfg.Secure == nil {
		return nil
	}
	at, stop := context.WithCancel(m.ctx)
	stop() // what is known already is not waited for
	if m.cfg.Secure.Is(at, name, hello.UUID) == nil {
		return nil
	}
	m.whileWanted(conn, hello, func(ctx context.Context) { err = m.cfg.Secure.Is(ctx, name, hello.UUID) })
	return err
}

// greet answers one accepted P2P connection. The receiver is registered before
// the answer, so data that follows it finds its reader.
func (m *Mesh) greet(conn net.Conn) {
	defer errs.Catch("accept peer", func(err *errs.Error) {
		conn.Close()
		m.cfg.Crash(err)
	})
	if err := platform.TuneP2P(conn, m.cfg.Tuning); err != nil {
		m.refuse(conn, "socket", err)
		return
	}
	name, known := m.meet(conn)
	if !known {
		return
	}
	var p wire.Packet
	err := m.handshake(m.ctx, conn, func() (err error) {
		p, err = wire.Read(conn, wire.P2P, maxHello)
		return err
	})
	if err != nil {
		m.refuse(conn, "hello", err)
		return
	}
	hello, ok := p.(wire.P2PHello)
	if !ok {
		m.refuse(conn, "hello", fmt.Errorf("expected a hello, got %T", p))
		return
	}
	if hello.Ext.Native && hello.Ext.Preflight {
		// It only wanted to know whether there is a way to here.
		conn.Write(wire.Append(nil, wire.P2PHelloAck{Ext: wire.Ext{Native: true, Preflight: true}}))
		conn.Close()
		return
	}
	if hello.Number >= MaxPool {
		m.refuse(conn, "number", fmt.Errorf("connection number %d is above %d", hello.Number, MaxPool-1))
		return
	}
	if hello.Ext.Session != 0 && hello.Ext.Session != m.number {
		m.refuse(conn, "session", errors.New("it is meant for another peer, which named this address as its own"))
		return
	}
	if err := m.is(name, hello, conn); err != nil {
		m.refuse(conn, "name", err)
		return
	}
	placed := m.cfg.Pools.MayTake(hello.UUID, hello.Number) || m.awaitPlace(conn, hello)
	if n, err := transport.Look(conn); parted(hello, n, err) {
		m.cfg.Log.Debug("a connection was given up before it was answered", "peer", hello.UUID.Short(), "number", hello.Number)
		conn.Close()
		return
	}
	if !placed {
		m.refuse(conn, "place", fmt.Errorf("connection number %d came without those before it, or would have taken the place of one that lives", hello.Number))
		return
	}
	if hello.Ext.Native && m.cfg.Watched != nil && m.cfg.Watched() {
		// The other end looks itself whether it is heard, and the master whether it lives.
		if err := platform.TuneP2P(conn, m.cfg.Tuning.Patient()); err != nil {
			m.refuse(conn, "socket", err)
			return
		}
	}
	m.cfg.Pools.AddReceiver(hello.UUID, hello.Number, conn)
	ack := wire.P2PHelloAck{}
	if hello.Ext.Native {
		ack.Ext = wire.Ext{Native: true, Flows: hello.Ext.Flows, Addresses: m.announcedAddresses(), Session: m.number}
		if hello.Ext.Collectives > 0 {
			ack.Ext.Collectives = wire.CollectivesVersion
		}
	}
	// Its reader belongs to the engine now; nobody writes before this.
	conn.SetWriteDeadline(time.Now().Add(m.cfg.HandshakeTimeout))
	_, err = conn.Write(wire.Append(nil, ack))
	conn.SetWriteDeadline(time.Time{})
	if err != nil {
		conn.Close() // the engine's reader sees the end
	}
}

// whileWanted has f wait for what a connection needs behind its hello, until the other end gives the
// connection up, for Config.HandshakeTimeout at most. It returns when f does.
func (m *Mesh) whileWanted(conn net.Conn, hello wire.P2PHello, f func(context.Context)) {
	m.accept.demote(conn)
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.HandshakeTimeout)
	var looks sync.WaitGroup
	defer looks.Wait()
	defer cancel()
	looks.Go(func() {
		defer errs.Catch("accept peer", m.cfg.Crash)
		if n, err := transport.AwaitLook(ctx, conn); parted(hello, n, err) {
			cancel()
		}
	})
	f(ctx)
}

// awaitPlace waits until there is a place for a connection in the pool of its peer. false: there was none
// in time.
func (m *Mesh) awaitPlace(conn net.Conn, hello wire.P2PHello) (ok bool) {
	m.whileWanted(conn, hello, func(ctx context.Context) {
		ok = m.cfg.Pools.AwaitPlace(ctx, hello.UUID, hello.Number, hello.Ext.Native)
	})
	return ok
}

// parted reports whether the other end has given a connection up (Mesh.part), by what a look behind its
// hello has found. That end dials its next pool then, and an end that stood still reads the hellos of both
// in any order. A gopccl peer says nothing before it is answered (nor does tlsconn, which makes keys new), so
// that a byte on its socket is the end of TLS, or an error.
func parted(hello wire.P2PHello, n int, err error) bool {
	return n > 0 && hello.Ext.Native || err != nil && !errors.Is(err, errors.ErrUnsupported)
}
