package wire

import (
	"bytes"
	"encoding/binary"
)

const (
	// shortFirst is the size of the shortest first packet, a request for no tensors.
	shortFirst = lenSize + idSize + 8
	benchHello = idSize + 16    // what the length of a C2B 1 says, without a block
	peerHello  = benchHello + 4 // what that of a P2P 1 says
	// FirstSize is the most that First needs.
	FirstSize = lenSize + peerHello
	// maxFirst is the largest length of a first packet.
	maxFirst = 16 << 20
)

// First tells which packet a connection between peers begins with, that of a P2P
// connection (P2P), a request for shared state (C2S) or a benchmark (C2B): all have
// the id 1, and their layouts differ. need > 0 says that so many bytes of the
// connection are needed, at most FirstSize and none of them behind the packet.
// ok is false if they begin no such packet.
//
// A request begins with the count of its keys, which its length bounds. The others
// begin with a uuid of version 4, whose first 8 bytes are as a count above 2^14, more
// keys than a hello, of at most 64 KiB, would have room for.
func First(b []byte) (proto Proto, need int, ok bool) {
	if !bytes.Equal(b[:min(4, len(b))], make([]byte, min(4, len(b)))) {
		return 0, 0, false
	}
	if len(b) < shortFirst {
		return 0, shortFirst, true
	}
	length, count := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[lenSize+idSize:])
	switch {
	case binary.BigEndian.Uint16(b[lenSize:]) != 1 || length < shortFirst-lenSize || length > maxFirst:
		return 0, 0, false
	case count <= (length-(shortFirst-lenSize))/8:
		return C2S, 0, true
	case length < benchHello:
		return 0, 0, false
	case length < peerHello:
		return C2B, 0, true
	case len(b) < FirstSize:
		return 0, FirstSize, true
	}
	// Behind the uuid of a benchmark comes its block, and of a hello the number of the
	// connection, which is never that great.
	if bytes.HasPrefix([]byte(extMagic), b[lenSize+benchHello:FirstSize]) {
		return C2B, 0, true
	}
	return P2P, 0, true
}
