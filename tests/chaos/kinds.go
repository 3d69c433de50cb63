package main

import (
	"encoding/binary"
	"net"
	"slices"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// Streams of frames of our own (docs/spec/extensions.md, "Frames of our own").
const (
	probeStream = 1<<64 - 1
	eagerBit    = 1 << 61
	pieceBit    = 1 << 62
)

// kinds are what comes from the internet, by port: any, master, P2P, shared
// state, benchmark.
var kinds = slices.Concat(anyPort, masterPort, newcomers, dataPort, otherPorts)

var anyPort = []kind{
	{"silent", "connects to any port and says nothing", func(c *client) { c.with(c.port(), c.stay) }},
	{"brief", "connects and is gone", func(c *client) {
		for range 20 {
			c.with(c.port(), func(conn *listening) { _ = conn.tcp().SetLinger(0) })
		}
	}},
	{"http", "asks any port for a page", func(c *client) {
		c.with(c.port(), func(conn *listening) {
			_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: example\r\n\r\n"))
			c.linger(conn)
		})
	}},
	{"tls", "greets any port as TLS does", func(c *client) {
		c.with(c.port(), func(conn *listening) {
			_, _ = conn.Write([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3})
			c.linger(conn)
		})
	}},
	{"garbage", "sends random bytes to any port", func(c *client) {
		c.with(c.port(), func(conn *listening) {
			for range 1 + c.IntN(20) {
				if _, err := conn.Write(c.bytes(1 + c.IntN(4096))); err != nil {
					return
				}
			}
			c.linger(conn)
		})
	}},
	{"half", "sends half a packet to any port", func(c *client) {
		c.with(c.port(), func(conn *listening) {
			b := slices.Concat(wire.Append(nil, wire.C2MRequestSessionRegistration{}))
			_, _ = conn.Write(b[:1+c.IntN(len(b)-1)])
			c.linger(conn)
		})
	}},
	{"announced", "announces a large packet to any port and sends none of it", func(c *client) {
		c.with(c.port(), func(conn *listening) {
			b := binary.BigEndian.AppendUint64(nil, 1<<(10+c.IntN(17)))
			_, _ = conn.Write(append(b, 0, byte(1+c.IntN(11))))
			c.linger(conn)
		})
	}},
	{"lengths", "sends lengths that cannot be", func(c *client) {
		c.with(c.port(), func(conn *listening) {
			b := binary.BigEndian.AppendUint64(nil, []uint64{0, 1, 1 << 62, 1<<64 - 1}[c.IntN(4)])
			_, _ = conn.Write(append(b, c.bytes(16)...))
			c.linger(conn)
		})
	}},
	{"hoarder", "holds fifty connections to one port", func(c *client) {
		port := c.port()
		for range 50 {
			c.dial(port)
		}
		<-c.ctx.Done()
	}},
	{"drip", "sends a packet byte by byte", func(c *client) {
		c.with(c.port(), func(conn *listening) {
			for _, b := range wire.Append(nil, wire.P2PHello{UUID: c.uuid()}) {
				if _, err := conn.Write([]byte{b}); err != nil || !c.sleep(400*time.Millisecond) {
					return
				}
			}
			c.linger(conn)
		})
	}},
}

var masterPort = []kind{
	{"unregistered", "sends packets of every kind without being registered", func(c *client) {
		for range 10 {
			c.with(c.master, func(conn *listening) {
				for range 5 {
					c.send(conn, c.anything())
				}
				_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				c.linger(conn)
			})
		}
	}},
	{"out of turn", "registers and sends packets of every kind in any order", func(c *client) {
		c.with(c.master, func(conn *listening) {
			if _, ok := c.register(conn, 1, c.IntN(2) == 0); !ok {
				return
			}
			for range 30 {
				if !c.send(conn, c.anything()) || !c.sleep(20*time.Millisecond) {
					return
				}
			}
		})
	}},
	{"log flood", "registers and sends a thousand packets that are out of turn", func(c *client) {
		c.with(c.master, func(conn *listening) {
			c.register(conn, 1, true)
			var b []byte
			for range 1000 {
				b = append(b, raw(5, nil)...)
			}
			_, _ = conn.Write(b)
			c.linger(conn)
		})
	}},
	{"unknown", "registers and sends packets of unknown kinds", func(c *client) {
		c.with(c.master, func(conn *listening) {
			c.register(conn, 1, true)
			for range 100 {
				if _, err := conn.Write(raw(uint16(c.Uint32()), c.bytes(c.IntN(64)))); err != nil {
					return
				}
			}
			c.linger(conn)
		})
	}},
	{"curious", "registers and asks for the topology again and again, reading", func(c *client) {
		c.with(c.master, func(conn *listening) {
			c.register(conn, 1, true)
			go c.linger(conn)
			for range 200 {
				if !c.send(conn, wire.C2MAskTopology{}) || !c.sleep(10*time.Millisecond) {
					return
				}
			}
		})
	}},
	{"deaf", "registers and asks for the topology thousands of times, and reads nothing", func(c *client) {
		c.with(c.master, func(conn *listening) {
			_ = conn.tcp().SetReadBuffer(4 << 10)
			c.register(conn, 1, true)
			var b []byte
			for range 3000 {
				b = wire.Append(b, wire.C2MAskTopology{})
			}
			_, _ = conn.Write(b)
			<-c.ctx.Done()
		})
	}},
	{"unfinished", "registers, announces 64 MiB and sends 8 of them", func(c *client) {
		c.with(c.master, func(conn *listening) {
			c.register(conn, 1, false)
			_, _ = conn.Write(append(binary.BigEndian.AppendUint64(nil, wire.MaxPacket-16), 0, 8))
			zeros := make([]byte, 1<<20)
			for range 8 {
				if _, err := conn.Write(zeros); err != nil {
					return
				}
			}
			c.linger(conn)
		})
	}},
	{"registration flood", "registers a hundred times from one address", func(c *client) {
		c.from = net.IPv4(127, 66, 66, 66)
		for range 100 {
			c.with(c.master, func(conn *listening) { c.register(conn, uint16(1+c.IntN(60000)), false) })
			if c.ctx.Err() != nil {
				return
			}
		}
	}},
	{"twice", "registers again and again on one connection", func(c *client) {
		c.with(c.master, func(conn *listening) {
			for range 20 {
				if !c.send(conn, wire.C2MRequestSessionRegistration{P2PPort: 1, PeerGroup: uint32(c.IntN(3))}) {
					return
				}
			}
			c.linger(conn)
		})
	}},
	{"groups", "registers in a group of its own and stays", func(c *client) {
		c.with(c.master, func(conn *listening) {
			c.send(conn, wire.C2MRequestSessionRegistration{P2PPort: 1, PeerGroup: c.Uint32()})
			c.linger(conn)
		})
	}},
}

// newcomers register as peers do, and the run has to find out what they are.
var newcomers = []kind{
	{"never reports", "registers, is told its neighbours, and never says anything again", func(c *client) {
		c.newcomer(c.listener(func(net.Conn) {}), c.IntN(2) == 0, func(wire.M2CP2PConnectionInfo) wire.Packet { return nil })
	}},
	{"silent newcomer", "registers without heartbeats and falls silent at once", func(c *client) {
		c.with(c.master, func(conn *listening) {
			c.register(conn, 1, false)
			<-c.ctx.Done()
		})
	}},
	{"crash loop", "registers and ends when it hears of its neighbours, five times", func(c *client) {
		for range 5 {
			c.with(c.master, func(conn *listening) {
				if _, ok := c.register(conn, c.listener(func(net.Conn) {}), true); ok {
					_, _ = wire.Read(conn, wire.M2C, wire.MaxPacket)
				}
			})
			if !c.sleep(200 * time.Millisecond) {
				return
			}
		}
	}},
	{"closed ports", "joins with ports at which nobody listens, and is content itself", func(c *client) {
		c.newcomer(uint16(1+c.IntN(1000)), c.IntN(2) == 0, func(wire.M2CP2PConnectionInfo) wire.Packet {
			return wire.C2MP2PConnectionsEstablished{Success: true}
		})
	}},
	{"mute ports", "joins with a P2P port that takes connections and never answers", func(c *client) {
		c.newcomer(c.listener(func(net.Conn) {}), c.IntN(2) == 0, func(wire.M2CP2PConnectionInfo) wire.Packet {
			return wire.C2MP2PConnectionsEstablished{Success: true}
		})
	}},
	{"slow hellos", "joins and answers every hello after 4.5 s", func(c *client) {
		c.newcomer(c.listener(func(conn net.Conn) {
			if _, err := wire.Read(conn, wire.P2P, 1<<16); err == nil && c.sleep(4500*time.Millisecond) {
				c.send(conn, wire.P2PHelloAck{})
			}
		}), c.IntN(2) == 0, func(wire.M2CP2PConnectionInfo) wire.Packet { return wire.C2MP2PConnectionsEstablished{Success: true} })
	}},
	{"nonsense hellos", "joins and answers hellos with garbage", func(c *client) {
		c.newcomer(c.listener(func(conn net.Conn) { _, _ = conn.Write(c.bytes(100)) }), true, func(wire.M2CP2PConnectionInfo) wire.Packet {
			return wire.C2MP2PConnectionsEstablished{Success: true}
		})
	}},
	{"closes hellos", "joins and closes every P2P connection", func(c *client) {
		c.newcomer(c.listener(func(conn net.Conn) { conn.Close() }), true, func(wire.M2CP2PConnectionInfo) wire.Packet {
			return wire.C2MP2PConnectionsEstablished{Success: true}
		})
	}},
	{"slanderer", "joins and says that its neighbours cannot be reached", func(c *client) {
		c.newcomer(c.listener(func(conn net.Conn) {
			if _, err := wire.Read(conn, wire.P2P, 1<<16); err == nil {
				c.send(conn, wire.P2PHelloAck{})
			}
		}), c.IntN(2) == 0, func(p wire.M2CP2PConnectionInfo) wire.Packet {
			r := wire.C2MP2PConnectionsEstablished{}
			for _, e := range p.Peers {
				r.FailedPeers = append(r.FailedPeers, e.UUID)
			}
			return r
		})
	}},
	{"comes and goes", "joins as a peer should, and leaves as soon as it is in", func(c *client) {
		c.newcomer(c.listener(func(conn net.Conn) {
			if _, err := wire.Read(conn, wire.P2P, 1<<16); err == nil {
				c.send(conn, wire.P2PHelloAck{})
			}
			c.linger(conn)
		}), false, func(wire.M2CP2PConnectionInfo) wire.Packet { return wire.C2MP2PConnectionsEstablished{Success: true} })
	}},
}
