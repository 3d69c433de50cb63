package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gopccl/gopccl/core/errs"
)

// readStep is what Read allocates before the first byte of a body has arrived.
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

// ReadLength reads the length field of a packet, for readers that have to do something
// before it reads the rest. Errors: as those of Read.
func ReadLength(r io.Reader, limit int) (int, error) {
	head, err := readHead(r)
	if err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint64(head)
	if err := checkLength(n, limit); err != nil {
		return 0, err
	}
	return int(n), nil
}

// readHead reads a length field; it is valid until the next read from r.
func readHead(r io.Reader) ([]byte, error) {
	if br, ok := r.(*bufio.Reader); ok {
		return peek(br, lenSize)
	}
	var head [lenSize]byte
	_, err := io.ReadFull(r, head[:])
	return head[:], err
}

// peek takes n bytes out of r, at most its size, and does not copy them: they are valid until
// the next read from r. Errors: as those of io.ReadFull.
func peek(r *bufio.Reader, n int) ([]byte, error) {
	b, err := r.Peek(n)
	if err != nil {
		r.Discard(len(b))
		if len(b) > 0 && err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	r.Discard(n) // the bytes stay where they are
	return b, nil
}

// ReadBody reads the packet whose length field was n, and was returned by
// ReadLength. Errors: as those of Read.
func ReadBody(r io.Reader, proto Proto, length int) (Packet, error) {
	if br, ok := r.(*bufio.Reader); ok && length <= br.Size() {
		buf, err := peek(br, length)
		if err != nil {
			return nil, unexpected(err)
		}
		return Decode(proto, ID(binary.BigEndian.Uint16(buf)), buf[idSize:])
	}
	n := uint64(length)
	buf := make([]byte, min(n, readStep))
	for have := 0; ; {
		got, err := io.ReadFull(r, buf[have:])
		have += got
		if err != nil {
			return nil, unexpected(err)
		}
		if uint64(have) == n {
			break
		}
		buf = append(buf, make([]byte, min(n-uint64(have), uint64(have)))...)
	}
	return Decode(proto, ID(binary.BigEndian.Uint16(buf)), buf[idSize:])
}

// unexpected is err inside a packet.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
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
