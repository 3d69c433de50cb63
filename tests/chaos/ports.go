package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// greeted says hello to a P2P port, as a native end or not, and calls f.
func (c *client) greeted(u wire.UUID, number uint32, native bool, f func(*listening)) {
	c.with(c.any(c.p2p), func(conn *listening) {
		hello := wire.P2PHello{UUID: u, Number: number}
		if native {
			hello.Ext = wire.Ext{Native: true, Flows: wire.FlowsAhead}
		}
		if !c.send(conn, hello) {
			return
		}
		if _, err := wire.Read(conn, wire.P2P, 1<<16); err == nil {
			f(conn)
		}
	})
}

// write writes until something fails, and then stays.
func (c *client) write(conn net.Conn, chunks ...[]byte) {
	for _, b := range chunks {
		if _, err := conn.Write(b); err != nil {
			return
		}
	}
	c.linger(conn)
}

// dataPort are strangers at P2P ports: none of them is in the ring.
var dataPort = []kind{
	{"stranger", "says hello with any uuid and stays", func(c *client) {
		c.greeted(c.uuid(), 0, c.IntN(2) == 0, c.stay)
	}},
	{"pool", "opens a pool of 32 connections with any uuid", func(c *client) {
		u := c.uuid()
		for n := range uint32(32) {
			go c.greeted(u, n, true, c.stay)
		}
		<-c.ctx.Done()
	}},
	{"hole in the pool", "opens connections whose predecessors never come", func(c *client) {
		for range 8 {
			go c.greeted(c.uuid(), 1+c.Uint32N(1000), true, c.stay)
		}
		<-c.ctx.Done()
	}},
	{"namesake", "says hello with the uuid of a peer of the run and sends nothing", func(c *client) {
		c.greeted(c.known(), 0, c.IntN(2) == 0, c.stay)
	}},
	{"impostor", "says hello with the uuid of a peer of the run and sends frames", func(c *client) {
		c.greeted(c.known(), 0, true, func(conn *listening) {
			for seq := range uint64(50) {
				if _, err := conn.Write(frame(64, c.Uint64N(8), seq+c.Uint64N(10000), make([]byte, 64))); err != nil {
					return
				}
			}
			c.linger(conn)
		})
	}},
	{"frames", "sends frames of random operations", func(c *client) {
		c.greeted(c.uuid(), 0, true, func(conn *listening) {
			for range 50 {
				n := 1 + c.IntN(5000)
				if _, err := conn.Write(frame(n, c.Uint64N(8), c.Uint64()>>c.IntN(64), c.bytes(n))); err != nil {
					return
				}
			}
			c.linger(conn)
		})
	}},
	{"far epochs", "sends a mebibyte of eager frames of an epoch that is far away", func(c *client) {
		c.greeted(c.uuid(), 0, true, func(conn *listening) {
			payload := make([]byte, 64<<10)
			for tag := range uint64(16) {
				if _, err := conn.Write(frame(len(payload), tag, eagerBit|(1<<60+tag), payload)); err != nil {
					return
				}
			}
			c.linger(conn)
		})
	}},
	{"tiny eager frames", "sends tens of thousands of eager frames of one byte", func(c *client) {
		c.greeted(c.uuid(), 0, true, func(conn *listening) {
			var b []byte
			for tag := range uint64(20_000) {
				b = append(b, frame(1, tag%64, eagerBit|1<<60, []byte{1})...)
			}
			c.write(conn, b)
		})
	}},
	{"announced frames", "announces frames of many mebibytes and sends a few bytes of them", func(c *client) {
		stream := []uint64{1, eagerBit | 1, eagerBit | 1<<60, pieceBit | 1}[c.IntN(4)]
		c.greeted(c.uuid(), 0, true, func(conn *listening) {
			c.write(conn, frame(wire.MaxFramePayload>>c.IntN(9), 1, stream, make([]byte, 10)))
		})
	}},
	{"pieces", "sends pieces of operations that never were, out of order", func(c *client) {
		c.greeted(c.uuid(), 0, true, func(conn *listening) {
			for range 50 {
				body := binary.BigEndian.AppendUint32(nil, 64)
				body = binary.BigEndian.AppendUint32(body, c.Uint32()>>c.IntN(32))
				body = append(body, make([]byte, 64)...)
				if _, err := conn.Write(frame(len(body), c.Uint64N(8), pieceBit|c.Uint64N(100000), body)); err != nil {
					return
				}
			}
			c.linger(conn)
		})
	}},
	{"probe flood", "sends probes and does not read the answers", func(c *client) {
		c.greeted(c.uuid(), 0, true, func(conn *listening) {
			_ = conn.tcp().SetReadBuffer(4 << 10)
			var b []byte
			for tag := range uint64(20_000) {
				b = append(b, frame(1, tag, probeStream, []byte{0})...)
			}
			_, _ = conn.Write(b)
			<-c.ctx.Done()
		})
	}},
	{"wild numbers", "says hello with numbers that no pool has", func(c *client) {
		for range 5 {
			c.with(c.any(c.p2p), func(conn *listening) {
				c.send(conn, wire.P2PHello{UUID: c.uuid(), Number: 1023 + c.Uint32N(1<<20)})
				_ = conn.SetReadDeadline(time.Now().Add(time.Second))
				c.linger(conn)
			})
		}
	}},
}

// otherPorts are strangers at shared state and benchmark ports.
var otherPorts = []kind{
	{"state request", "asks for the shared state and does not read it", func(c *client) {
		c.with(c.any(c.state), func(conn *listening) {
			_ = conn.tcp().SetReadBuffer(4 << 10)
			c.send(conn, wire.C2SRequestSharedState{Keys: []string{"params", "step"}})
			<-c.ctx.Done()
		})
	}},
	{"state flood", "asks for the shared state again and again", func(c *client) {
		c.with(c.any(c.state), func(conn *listening) {
			for range 200 {
				if !c.send(conn, wire.C2SRequestSharedState{Keys: []string{"params", fmt.Sprint(c.Uint64())}}) {
					return
				}
			}
			c.linger(conn)
		})
	}},
	{"endless request", "asks for the shared state with keys that never end", func(c *client) {
		c.with(c.any(c.state), func(conn *listening) {
			b := binary.BigEndian.AppendUint64(nil, 32<<20)
			b = binary.BigEndian.AppendUint16(b, uint16(wire.C2SRequestSharedState{}.ID()))
			b = binary.BigEndian.AppendUint64(b, 1<<20)
			if _, err := conn.Write(b); err != nil {
				return
			}
			for range 64 {
				if _, err := conn.Write(make([]byte, 64<<10)); err != nil || !c.sleep(50*time.Millisecond) {
					return
				}
			}
			c.linger(conn)
		})
	}},
	{"benchmark holder", "says hello to a benchmark and sends nothing", func(c *client) {
		c.with(c.any(c.bench), func(conn *listening) {
			c.send(conn, wire.C2BHello{UUID: c.uuid(), Ext: wire.Ext{Topology: true}})
			c.linger(conn)
		})
	}},
	{"endless benchmark", "says hello to a benchmark and sends as long as it may", func(c *client) {
		c.with(c.any(c.bench), func(conn *listening) {
			c.send(conn, wire.C2BHello{UUID: c.known(), Ext: wire.Ext{Topology: c.IntN(2) == 0}})
			payload := make([]byte, 16<<10)
			for c.sleep(20 * time.Millisecond) {
				if _, err := conn.Write(payload); err != nil {
					return
				}
			}
		})
	}},
	{"benchmark flood", "opens benchmarks by the dozen", func(c *client) {
		u := c.uuid()
		for range 24 {
			go c.with(c.any(c.bench), func(conn *listening) {
				c.send(conn, wire.C2BHello{UUID: u})
				c.linger(conn)
			})
		}
		<-c.ctx.Done()
	}},
}
