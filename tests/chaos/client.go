package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/wire"
)

// targets are the addresses of a run, and the uuids that it tells all who ask.
type targets struct {
	master            string
	p2p, state, bench []string
	uuids             []wire.UUID
}

// client is one hostile or mistaken client.
type client struct {
	*rand.Rand
	targets
	ctx   context.Context
	from  net.IP // nil: any
	life  time.Duration
	who   guise
	heard *heard
}

// kind is what a client does. It returns when it is through; what it opened
// is closed then.
type kind struct {
	name string
	does string
	run  func(*client)
}

// dial opens a connection that is closed when the client's life is over.
func (c *client) dial(addr string) *listening {
	d := net.Dialer{Timeout: 2 * time.Second}
	if c.from != nil {
		d.LocalAddr = &net.TCPAddr{IP: c.from}
	}
	conn, err := d.DialContext(c.ctx, "tcp", addr)
	if err != nil {
		return nil
	}
	context.AfterFunc(c.ctx, func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(c.life))
	p := c.purpose(addr)
	l := &listening{Conn: conn, count: func(n int64) { c.heard.add(c.who.name, p, n) }}
	if !c.who.tls {
		l.records = &records{}
		return l
	}
	in := tls.Client(conn, c.who.config(p))
	if c.IntN(4) > 0 { // else with the first write, if there is one
		_ = in.HandshakeContext(c.ctx)
	}
	l.Conn = in
	return l
}

// with calls f with a connection, if it can be had, and closes it.
func (c *client) with(addr string, f func(*listening)) {
	if conn := c.dial(addr); conn != nil {
		f(conn)
		conn.Close()
	}
}

func (c *client) any(addrs []string) string { return addrs[c.IntN(len(addrs))] }

// port is one of all ports of the run.
func (c *client) port() string {
	all := append(append(append([]string{c.master}, c.p2p...), c.state...), c.bench...)
	return c.any(all)
}

// linger keeps what is open until the client's life ends, or the other end closes.
func (c *client) linger(conn io.Reader) { _, _ = io.Copy(io.Discard, conn) }

// stay is linger for the connections of with and greeted.
func (c *client) stay(conn *listening) { c.linger(conn) }

// sleep waits at most until the client's life ends.
func (c *client) sleep(d time.Duration) bool {
	select {
	case <-c.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (c *client) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(c.Uint32())
	}
	return b
}

func (c *client) uuid() (u wire.UUID) {
	copy(u[:], c.bytes(len(u)))
	return u
}

// known is the uuid of a peer of the run, or one that nobody has.
func (c *client) known() wire.UUID {
	if len(c.uuids) == 0 {
		return c.uuid()
	}
	return c.uuids[c.IntN(len(c.uuids))]
}

// send writes packets and reports whether they could be written.
func (c *client) send(conn net.Conn, ps ...wire.Packet) bool {
	var b []byte
	for _, p := range ps {
		b = wire.Append(b, p)
	}
	_, err := conn.Write(b)
	return err == nil
}

// raw is a packet with any id and body.
func raw(id uint16, body []byte) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(len(body)+2))
	return append(binary.BigEndian.AppendUint16(b, id), body...)
}

// frame is a frame on a P2P connection whose payload need not be there.
func frame(announced int, tag, stream uint64, payload []byte) []byte {
	var head [wire.FrameHeaderSize]byte
	wire.PutFrameHeader(&head, announced, tag, stream)
	return append(head[:], payload...)
}

// listener opens a P2P port that serves connections in a way of its own.
func (c *client) listener(serve func(net.Conn)) uint16 {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1
	}
	context.AfterFunc(c.ctx, func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(c.ctx, func() { conn.Close() })
			go serve(conn)
		}
	}()
	return uint16(ln.Addr().(*net.TCPAddr).Port)
}

// register registers with a P2P port and returns the uuid that the master gave.
func (c *client) register(conn net.Conn, port uint16, native bool) (wire.UUID, bool) {
	p := wire.C2MRequestSessionRegistration{P2PPort: port, SharedStatePort: port, BenchmarkPort: port, PeerGroup: c.group()}
	if native {
		p.Ext = wire.Ext{
			Native: true, Topology: true, Switch: true, Early: wire.Early{Eager: true},
			HeartbeatInterval: time.Second, HeartbeatTimeout: 8 * time.Second,
		}
	}
	if !c.send(conn, p) {
		return wire.UUID{}, false
	}
	answer, err := wire.Read(conn, wire.M2C, wire.MaxPacket)
	r, ok := answer.(wire.M2CSessionRegistrationResponse)
	return r.UUID, err == nil && ok && r.Accepted
}

// newcomer registers and answers the rounds as report says, until it is in the
// run, where it would hold up others by right: then it leaves. A peer that fails
// votes again, as PCCL does.
func (c *client) newcomer(port uint16, native bool, report func(wire.M2CP2PConnectionInfo) wire.Packet) {
	c.with(c.master, func(conn *listening) {
		if _, ok := c.register(conn, port, native); !ok {
			return
		}
		if native {
			go func() {
				for c.sleep(time.Second) && c.send(conn, wire.C2MHeartbeat{}) {
				}
			}()
		}
		for {
			p, err := wire.Read(conn, wire.M2C, wire.MaxPacket)
			if err != nil {
				return
			}
			switch p := p.(type) {
			case wire.M2CP2PConnectionInfo:
				answer := report(p)
				if answer != nil && !c.send(conn, answer) {
					return
				}
			case wire.M2CP2PConnectionsEstablished:
				if p.Success {
					return
				}
				c.send(conn, wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: true})
			}
		}
	})
}

// anything is a well-formed packet to the master with anything in it.
func (c *client) anything() wire.Packet {
	number := func() uint64 { return c.Uint64() >> c.IntN(64) }
	all := []func() wire.Packet{
		func() wire.Packet {
			return wire.C2MRequestSessionRegistration{P2PPort: uint16(c.Uint32()), PeerGroup: uint32(number())}
		},
		func() wire.Packet { return wire.C2MRequestEstablishP2PConnections{AcceptNewPeers: c.IntN(2) == 0} },
		func() wire.Packet {
			return wire.C2MP2PConnectionsEstablished{Success: c.IntN(2) == 0, FailedPeers: []wire.UUID{c.known(), c.uuid()}}
		},
		func() wire.Packet { return wire.C2MCheckPeersPending{} },
		func() wire.Packet { return wire.C2MOptimizeTopology{} },
		func() wire.Packet { return wire.C2MReportPeerBandwidth{To: c.known(), Mbps: c.Float64() * 1e6} },
		func() wire.Packet { return wire.C2MOptimizeTopologyWorkComplete{} },
		func() wire.Packet {
			return wire.C2MSyncSharedState{Revision: number(), Strategy: wire.Strategy(c.IntN(3)), Entries: []wire.StateEntry{{Key: "params", Hash: number(), DType: dtype.Float64}}}
		},
		func() wire.Packet { return wire.C2MDistSharedStateComplete{Ext: wire.Ext{Failed: c.IntN(2) == 0}} },
		func() wire.Packet {
			return wire.C2MCollectiveCommsInitiate{Tag: uint64(c.IntN(8)), Count: number(), DType: dtype.Float64, Op: dtype.Sum}
		},
		func() wire.Packet {
			return wire.C2MCollectiveCommsComplete{Tag: uint64(c.IntN(8)), WasAborted: c.IntN(2) == 0}
		},
		func() wire.Packet { return wire.C2MHeartbeat{} },
		func() wire.Packet {
			return wire.C2MLinkReport{To: c.known(), Mbps: c.Float64() * 1e5, Busy: c.Float64()}
		},
		func() wire.Packet {
			return wire.C2MRates{Up: c.Float64() * 1e5, Down: c.Float64() * 1e5, Pairs: []wire.PathRate{{To: c.known(), Mbps: c.Float64() * 1e5}}}
		},
		func() wire.Packet { return wire.C2MProbeState{Round: number(), State: wire.ProbeMeasured, Mbps: 1} },
		func() wire.Packet { return wire.C2MAskTopology{} },
		func() wire.Packet { return wire.C2MRingPrepared{Change: number()} },
	}
	return all[c.IntN(len(all))]()
}

func (k kind) String() string { return fmt.Sprintf("%s: %s", k.name, k.does) }
