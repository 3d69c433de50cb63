package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// greet answers one accepted P2P connection. The receiver is registered before
// the answer, so data that follows it finds its reader.
func (m *Mesh) greet(conn net.Conn) {
	refuse := func(err error) {
		m.cfg.Log.Warn("closed a P2P connection", "remote", conn.RemoteAddr(), "reason", err)
		conn.Close()
	}
	defer errs.Catch("accept peer", func(err *errs.Error) {
		conn.Close()
		m.cfg.Crash(err)
	})
	if err := platform.TuneP2P(conn, m.cfg.Tuning); err != nil {
		refuse(err)
		return
	}
	var p wire.Packet
	err := m.handshake(m.ctx, conn, func() (err error) {
		p, err = wire.Read(conn, wire.P2P, maxHello)
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
	if hello.Number >= MaxPool {
		refuse(fmt.Errorf("connection number %d is above %d", hello.Number, MaxPool-1))
		return
	}
	if hello.Ext.Session != 0 && hello.Ext.Session != m.number {
		refuse(errors.New("it is meant for another peer, which named this address as its own"))
		return
	}
	if !m.cfg.Pools.MayTake(hello.UUID, hello.Number) {
		m.accept.demote(conn)
		ctx, cancel := context.WithTimeout(m.ctx, m.cfg.HandshakeTimeout)
		ok := m.cfg.Pools.AwaitPlace(ctx, hello.UUID, hello.Number, hello.Ext.Native)
		cancel()
		if !ok {
			refuse(fmt.Errorf("connection number %d came without those before it, or would have taken the place of one that lives", hello.Number))
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
