package lab

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// tcp is a packet as a host hands it over, with its front: options of TCP, data,
// and how much of it a segment carries.
func tcp(options, data []byte, size int, flags byte) []byte {
	b := make([]byte, frontBytes+40+len(options)+len(data))
	ip := b[frontBytes:]
	ip[0], ip[8], ip[9] = 0x45, 64, protoTCP
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(ip[4:], 7)
	binary.BigEndian.PutUint16(ip[20:], 1000)
	binary.BigEndian.PutUint32(ip[24:], 1<<32-1000) // it wraps
	binary.BigEndian.PutUint32(ip[28:], 55)
	ip[32], ip[33] = byte(5+len(options)/4)<<4, flags
	copy(ip[40:], options)
	copy(ip[40+len(options):], data)
	h, _ := headers(ip)
	partial(ip, h)
	f := front{flags: frontNeedsChecksum, sumFrom: 20, sumAt: 16}
	if size > 0 {
		f.kind, f.head, f.size = frontTCP4, uint16(h.all), uint16(size)
	}
	f.put(b)
	return b
}

func segments(b []byte) (ps [][]byte) {
	segment(b, func(n int) []byte { return make([]byte, n) }, func(p []byte) { ps = append(ps, p) })
	return ps
}

// A packet of many segments becomes packets that are right by themselves, and
// these become the packet again if all arrive; a gap divides it.
func TestSegmentsAndBack(t *testing.T) {
	data := make([]byte, 10000)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	options := []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}
	whole := tcp(options, data, 1448, flagAck|flagPsh)
	ps := segments(whole)
	require.Len(t, ps, 7)
	var back []byte
	for i, p := range ps {
		ip := p[frontBytes:]
		h, ok := headers(ip)
		require.True(t, ok)
		require.Equal(t, uint16(len(ip)), binary.BigEndian.Uint16(ip[2:]))
		require.Equal(t, uint16(0xffff), fold(add(0, ip[:h.ip])), "the checksum of IP")
		require.Equal(t, uint16(7+i), binary.BigEndian.Uint16(ip[4:]))
		require.Equal(t, 1<<32-1000+uint32(1448*i), binary.BigEndian.Uint32(ip[24:]))
		require.Equal(t, i == 6, ip[33]&flagPsh != 0, "pushed by the last one alone")
		require.Equal(t, front{flags: frontNeedsChecksum, sumFrom: 20, sumAt: 16}, readFront(p))
		require.Equal(t, fold(add(0, ip[12:20])+protoTCP+uint32(len(ip)-20)), binary.BigEndian.Uint16(ip[36:]))
		back = append(back, ip[h.all:]...)
	}
	require.Equal(t, data, back)

	var j joiner
	for _, p := range ps {
		require.True(t, j.add(p))
	}
	require.Equal(t, whole, j.take())
	require.Nil(t, j.take())

	require.True(t, j.add(ps[0]))
	require.False(t, j.add(ps[2]), "one is missing")
	require.Equal(t, ps[0], j.take())
	require.True(t, j.add(ps[2]))
	require.True(t, j.add(ps[3]))
	two := j.take()
	require.Equal(t, append(bytes.Clone(ps[2][frontBytes+52:]), ps[3][frontBytes+52:]...), two[frontBytes+52:])
	require.Equal(t, ps, append(append(ps[:2:2], segments(two)...), ps[4:]...), "and can be divided again")
}

// What does not belong together stays apart.
func TestSegmentsThatStayApart(t *testing.T) {
	data := bytes.Repeat([]byte{1}, 3000)
	stamp := func(b byte) []byte { return []byte{1, 1, 8, 10, 1, 2, 3, b, 5, 6, 7, 8} }
	ps := segments(tcp(stamp(1), data, 1000, flagAck))
	later := segments(tcp(stamp(2), data, 1000, flagAck))
	var j joiner
	for name, second := range map[string][]byte{
		"another time stamp":  later[1],
		"an acknowledgement":  tcp(stamp(1), nil, 0, flagAck),
		"the end of a stream": segments(tcp(stamp(1), data[:2000], 1000, flagAck|flagFin))[1],
		"a short front":       append(make([]byte, frontBytes), 0x45),
	} {
		require.True(t, j.add(ps[0]), name)
		require.False(t, j.add(second), name)
		j.take()
	}
	short := segments(tcp(stamp(1), data[:1500], 1000, flagAck))
	require.True(t, j.add(short[0]))
	require.True(t, j.add(short[1]))
	require.False(t, j.add(ps[2]), "a short one ends a packet")
	j.take()

	ack := tcp(stamp(1), nil, 0, flagAck)
	require.Equal(t, [][]byte{ack}, segments(ack))
	require.True(t, j.add(ack))
	require.False(t, j.add(ack))
	require.Equal(t, ack, j.take())

	udp := bytes.Clone(ack)
	udp[frontBytes+9] = 17
	require.Equal(t, [][]byte{udp}, segments(udp))
	require.Equal(t, [][]byte{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}, segments(make([]byte, frontBytes)))
}
