package lab

import (
	"bytes"
	"encoding/binary"
)

// Hosts hand over and take several TCP segments in one packet, as with a network
// card that has segmentation offload: the network carries each segment by itself,
// but a system call moves many. In front of every packet on a device is a header
// that says how it is divided (struct virtio_net_hdr of the Linux kernel).

const (
	frontBytes = 10 // of the header in front of a packet
	// maxPacket is the largest packet with its front.
	maxPacket = frontBytes + 65535

	frontNeedsChecksum = 1 // flags: the checksum of the transport is left to the device
	frontWhole         = 0 // kind: one packet
	frontTCP4          = 1 // kind: segments of TCP over IPv4

	protoTCP = 6
	// flags of TCP
	flagFin = 0x01
	flagPsh = 0x08
	flagAck = 0x10
)

// front is a virtio_net_hdr.
type front struct {
	flags, kind    byte
	head, size     uint16 // bytes of the headers, and of the data of a segment
	sumFrom, sumAt uint16 // what the checksum covers, and where it is from there
}

func readFront(b []byte) front {
	le := binary.NativeEndian
	return front{b[0], b[1], le.Uint16(b[2:]), le.Uint16(b[4:]), le.Uint16(b[6:]), le.Uint16(b[8:])}
}

func (f front) put(b []byte) {
	b[0], b[1] = f.flags, f.kind
	for i, v := range []uint16{f.head, f.size, f.sumFrom, f.sumAt} {
		binary.NativeEndian.PutUint16(b[2+2*i:], v)
	}
}

// segment calls each with the packets that b, a packet with its front, consists of:
// each has a front as well and is put where room says, which gets the bytes that
// are needed. A packet that is not divided is passed on as it is.
func segment(b []byte, room func(int) []byte, each func([]byte)) {
	f := readFront(b)
	ip := b[frontBytes:]
	h, ok := headers(ip)
	if f.kind&^0x80 != frontTCP4 || !ok || f.size == 0 || h.data <= int(f.size) {
		if f.kind != frontWhole && h.data > int(f.size) {
			return // of another kind, which was not asked for
		}
		p := room(len(b))
		copy(p, b)
		front{flags: f.flags, kind: frontWhole, sumFrom: f.sumFrom, sumAt: f.sumAt}.put(p)
		each(p)
		return
	}
	seq, id := binary.BigEndian.Uint32(ip[h.ip+4:]), binary.BigEndian.Uint16(ip[4:])
	for at := 0; at < h.data; at += int(f.size) {
		n := min(int(f.size), h.data-at)
		p := room(frontBytes + h.all + n)
		copy(p[frontBytes:], ip[:h.all])
		copy(p[frontBytes+h.all:], ip[h.all+at:h.all+at+n])
		q := p[frontBytes:]
		binary.BigEndian.PutUint16(q[4:], id)
		id++
		binary.BigEndian.PutUint32(q[h.ip+4:], seq+uint32(at))
		if at+n < h.data {
			q[h.ip+13] &^= flagFin | flagPsh
		}
		partial(q, h)
		front{flags: frontNeedsChecksum, sumFrom: uint16(h.ip), sumAt: 16}.put(p)
		each(p)
	}
}

// lengths of the parts of a packet of TCP over IPv4.
type lengths struct {
	ip, all, data int // the header of IP, both headers, what follows
}

func headers(ip []byte) (h lengths, ok bool) {
	if len(ip) < 40 || ip[0]>>4 != 4 || ip[9] != protoTCP {
		return lengths{}, false
	}
	h.ip = int(ip[0]&15) * 4
	if h.ip < 20 || len(ip) < h.ip+20 {
		return lengths{}, false
	}
	h.all = h.ip + int(ip[h.ip+12]>>4)*4
	h.data = len(ip) - h.all
	return h, h.all >= h.ip+20 && h.data >= 0
}

// partial makes the length and the checksum of the IP header right, and leaves
// that of TCP to the host that gets the packet: only the sum of what is in front of
// the TCP header is in its place.
func partial(ip []byte, h lengths) {
	be := binary.BigEndian
	be.PutUint16(ip[2:], uint16(len(ip)))
	be.PutUint16(ip[10:], 0)
	be.PutUint16(ip[10:], ^fold(add(0, ip[:h.ip])))
	sum := add(0, ip[12:20]) + protoTCP + uint32(len(ip)-h.ip)
	be.PutUint16(ip[h.ip+16:], fold(sum))
}

// add adds the 16-bit words of b to a sum of the internet's checksum (RFC 1071).
func add(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// joiner puts segments that follow each other together again, for one host.
type joiner struct {
	b    []byte // a packet with its front; empty: none
	h    lengths
	size int    // data of its first segment
	next uint32 // the sequence number that may follow; ends says that none may
	ends bool
}

// add takes the packet p, with its front, into the one that it has, and reports
// whether it could.
func (j *joiner) add(p []byte) bool {
	q := p[frontBytes:]
	h, ok := headers(q)
	ok = ok && h.data > 0 && p[0] == frontNeedsChecksum
	if len(j.b) == 0 {
		j.b = append(j.b[:0], p...)
		j.h, j.size, j.ends = h, h.data, !ok || q[h.ip+13] != flagAck
		if ok {
			j.next = binary.BigEndian.Uint32(q[h.ip+4:]) + uint32(h.data)
		}
		return true
	}
	if j.ends || !ok || h.ip != j.h.ip || h.all != j.h.all || h.data > j.size || len(j.b)+h.data > maxPacket {
		return false
	}
	first := j.b[frontBytes:]
	same := func(from, to int) bool { return bytes.Equal(first[from:to], q[from:to]) }
	flags := q[h.ip+13]
	if binary.BigEndian.Uint32(q[h.ip+4:]) != j.next || flags&^flagPsh != flagAck ||
		!same(0, 2) || !same(6, 10) || !same(12, h.ip+4) || !same(h.ip+8, h.ip+13) || !same(h.ip+14, h.ip+16) || !same(h.ip+18, h.all) {
		return false
	}
	j.b = append(j.b, q[h.all:]...)
	j.b[frontBytes+h.ip+13] |= flags
	j.next += uint32(h.data)
	j.ends = h.data < j.size || flags != flagAck
	return true
}

// take returns what was put together and begins anew; nil if there is nothing. It
// is valid until the next add.
func (j *joiner) take() []byte {
	b := j.b
	j.b = j.b[:0]
	if len(b) == 0 {
		return nil
	}
	if data := len(b) - frontBytes - j.h.all; j.h.all > 0 && data > j.size {
		partial(b[frontBytes:], j.h)
		front{
			flags: frontNeedsChecksum, kind: frontTCP4, head: uint16(j.h.all), size: uint16(j.size),
			sumFrom: uint16(j.h.ip), sumAt: 16,
		}.put(b)
	}
	return b
}
