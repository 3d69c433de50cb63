package wire_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/wire"
)

// told returns what First makes of a packet, given only what it asks for.
func told(t *testing.T, b []byte) (wire.Proto, bool) {
	t.Helper()
	for have := 0; ; {
		proto, need, ok := wire.First(b[:have])
		if !ok || need == 0 {
			return proto, ok
		}
		require.Greater(t, need, have)
		require.LessOrEqual(t, need, wire.FirstSize)
		have = min(need, len(b))
	}
}

// What a connection between peers is for is told by its first packet, of PCCL (without
// a block) or not.
func TestFirstPackets(t *testing.T) {
	u := wire.UUID{6: 0x40, 8: 0x80} // of version 4: the smallest as a number
	block := wire.Ext{Native: true, Flows: wire.FlowsPieces, Session: 7, Collectives: 1}
	for _, p := range []wire.Packet{
		wire.P2PHello{UUID: u},
		wire.P2PHello{UUID: u, Number: 1023},
		wire.P2PHello{UUID: u, Number: 3, Ext: block},
		wire.P2PHello{UUID: u, Ext: wire.Ext{Native: true, Preflight: true}},
		wire.C2BHello{UUID: u},
		wire.C2BHello{UUID: u, Ext: wire.Ext{Topology: true}},
		wire.C2SRequestSharedState{},
		wire.C2SRequestSharedState{Keys: []string{""}},
		wire.C2SRequestSharedState{Keys: []string{"four"}},
		wire.C2SRequestSharedState{Keys: []string{"weights", "gopcclX1"}},
		wire.C2SRequestSharedState{Keys: make([]string, 20000)},
	} {
		b := wire.Append(nil, p)
		proto, ok := told(t, b)
		require.True(t, ok, "%T", p)
		for n := range len(b) {
			_, need, _ := wire.First(b[:n])
			require.LessOrEqual(t, need, len(b), "it never asks for what is behind the packet")
		}
		require.Equal(t, p.Proto(), proto, "%+v", p)
	}
	for name, b := range map[string][]byte{
		"TLS": []byte("\x16\x03\x01\x02\x00\x01"), "HTTP": []byte("GET / HTTP/1.1\r\n\r\n"), "SSH": []byte("SSH-2.0-x\r\n"), "one byte": {1},
		"another id": wire.Append(nil, wire.P2PHelloAck{Ext: block}), "a master's": wire.Append(nil, wire.C2MRequestSessionRegistration{P2PPort: 1}),
		"too long": {0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}, "too short": {0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0},
		"more keys than there is room for": {0, 0, 0, 0, 0, 0, 0, 17, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1},
	} {
		_, ok := told(t, b)
		require.False(t, ok, name)
	}
}

// More bytes never change what fewer have told, FirstSize of them always tell, and what
// is told is a packet that its server reads.
func FuzzFirst(f *testing.F) {
	for i, p := range []wire.Packet{
		wire.P2PHello{UUID: wire.UUID{6: 0x40, 8: 0x80}, Number: 1}, wire.C2BHello{UUID: wire.UUID{1}, Ext: wire.Ext{Topology: true}}, wire.C2SRequestSharedState{Keys: []string{"w"}},
	} {
		f.Add(wire.Append(nil, p))
		f.Add(append(wire.Append(nil, p), fmt.Sprint(i)...))
	}
	f.Add([]byte("\x16\x03\x01\x02\x00"))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		first, over := wire.Proto(0), false
		for n := range min(len(b), 2*wire.FirstSize) + 1 {
			proto, need, ok := wire.First(b[:n])
			if over {
				require.True(t, ok && need == 0 && proto == first)
			}
			if !ok {
				return
			}
			require.LessOrEqual(t, need, wire.FirstSize)
			require.True(t, need == 0 || need > n)
			first, over = proto, over || need == 0
		}
	})
}
