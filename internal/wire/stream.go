package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gopccl/gopccl/core/errs"
)

// readStep is what Read and Scanner allocate before the first byte of a body has arrived.
const readStep = 64 << 10

// checkLength judges the length field of an LTV packet against a limit.
func checkLength(n uint64, limit int) error {
	if n < idSize {
		return errs.New(errs.Protocol, "read packet", fmt.Errorf("length field %d is below %d", n, idSize))
	}
	if n > uint64(limit) {
		return errs.New(errs.Protocol, "read packet", fmt.Errorf("length field %d is above the limit of %d", n, limit))
	}
	return nil
}

// Read reads one LTV packet of direction proto from r and takes not one byte
// more. limit (at most MaxPacket makes sense) bounds the length field, in
// bytes. Memory grows with what has arrived, not with what was announced.
//
// Errors: io.EOF if r ends before the first byte, io.ErrUnexpectedEOF inside a
// packet, other errors of r as they are; *errs.Error with code Protocol for a
// bad length field (nothing more was read; the stream is of no use any more);
// those of Decode, after which the next packet can be read.
func Read(r io.Reader, proto Proto, limit int) (Packet, error) {
	n, err := ReadLength(r, limit)
	if err != nil {
		return nil, err
	}
	return ReadBody(r, proto, n)
}

// ReadLength reads the length field of a packet, for whoever has to do something
// before it reads the rest. Errors: as those of Read.
func ReadLength(r io.Reader, limit int) (int, error) {
	var head [lenSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint64(head[:])
	if err := checkLength(n, limit); err != nil {
		return 0, err
	}
	return int(n), nil
}

// ReadBody reads the packet whose length field was n, and was returned by
// ReadLength. Errors: as those of Read.
func ReadBody(r io.Reader, proto Proto, length int) (Packet, error) {
	n := uint64(length)
	buf := make([]byte, min(n, readStep))
	for have := 0; ; {
		got, err := io.ReadFull(r, buf[have:])
		have += got
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if uint64(have) == n {
			break
		}
		buf = append(buf, make([]byte, min(n-uint64(have), uint64(have)))...)
	}
	return Decode(proto, ID(binary.BigEndian.Uint16(buf)), buf[idSize:])
}

// Waits reports whether Read would return a packet, or the error of a bad length
// field, without reading from r's source.
func Waits(r *bufio.Reader) bool {
	if r.Buffered() < lenSize {
		return false
	}
	head, _ := r.Peek(lenSize)
	n := binary.BigEndian.Uint64(head)
	return n <= uint64(r.Buffered()-lenSize) || n > MaxPacket
}

// Scanner cuts a byte stream that arrives in pieces into LTV packets of one
// direction. It is not safe for concurrent use.
type Scanner struct {
	proto Proto
	limit int
	buf   []byte // bytes not yet consumed start at at
	at    int
	err   error
}

// NewScanner returns a Scanner for packets of direction proto whose length
// field is at most limit bytes.
func NewScanner(proto Proto, limit int) *Scanner { return &Scanner{proto: proto, limit: limit} }

// Feed appends b, which is copied. Call Next until it has no packet before
// feeding more: then at most limit bytes and the last piece are held.
func (s *Scanner) Feed(b []byte) {
	if s.at > 0 {
		n := copy(s.buf, s.buf[s.at:])
		s.buf, s.at = s.buf[:n], 0
	}
	if len(s.buf) == 0 && cap(s.buf) > readStep {
		s.buf = nil // a rare large packet must not hold its memory for the rest of a session
	}
	s.buf = append(s.buf, b...)
}

// Next returns the next complete packet. false without an error: feed more.
// After an error with a bad length field every further call returns it; after
// one of Decode the packet is consumed and Next goes on with the following.
func (s *Scanner) Next() (Packet, bool, error) {
	if s.err != nil {
		return nil, false, s.err
	}
	rest := s.buf[s.at:]
	if len(rest) < lenSize {
		return nil, false, nil
	}
	n := binary.BigEndian.Uint64(rest)
	if s.err = checkLength(n, s.limit); s.err != nil {
		return nil, false, s.err
	}
	if uint64(len(rest)-lenSize) < n {
		return nil, false, nil
	}
	rest = rest[lenSize : lenSize+n]
	s.at += lenSize + int(n)
	p, err := Decode(s.proto, ID(binary.BigEndian.Uint16(rest)), rest[idSize:])
	return p, err == nil, err
}

// Rest returns the bytes that were fed and are not part of a packet that Next
// returned. The slice is valid until the next call of Feed.
func (s *Scanner) Rest() []byte { return s.buf[s.at:] }
