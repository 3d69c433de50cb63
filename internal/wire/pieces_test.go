package wire

import (
	"bytes"
	"errors"
	"io"
)

// pieces is a stream of packets of one direction that arrives in pieces.
type pieces struct {
	proto Proto
	buf   []byte // fed, and not part of a packet that next returned
}

func (s *pieces) feed(b []byte) { s.buf = append(s.buf, b...) }

// next returns the next complete packet; false without an error: feed more.
func (s *pieces) next() (Packet, bool, error) {
	r := bytes.NewReader(s.buf)
	p, err := Read(r, s.proto, MaxPacket)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, false, nil
	}
	s.buf = s.buf[len(s.buf)-r.Len():]
	return p, err == nil, err
}
