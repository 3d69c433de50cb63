package transport

import (
	"errors"
	"io"
	"net"
)

// RecordTLS is the first byte of a connection in TLS: that of a handshake record.
const RecordTLS = 0x16

// Replay returns c as a connection on which first, which was read from it, is to be
// read again. It costs nothing afterwards.
func Replay(c net.Conn, first []byte) net.Conn {
	if len(first) == 0 {
		return c
	}
	return &replayed{Conn: c, first: first}
}

type replayed struct {
	net.Conn
	first []byte
	src   io.Reader // of the connection
}

// source returns what reads what is behind first.
func (r *replayed) source() io.Reader {
	if r.src == nil {
		r.src = Source(r.Conn)
	}
	return r.src
}

// WaitFor implements Patient, for what is behind first.
func (r *replayed) WaitFor(bytes int) {
	if p, ok := r.source().(Patient); ok {
		p.WaitFor(bytes)
	}
}

// Read is not safe for concurrent use, as no read of the data path is.
func (r *replayed) Read(p []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(p, r.first)
		r.first = r.first[n:]
		return n, nil
	}
	return r.source().Read(p)
}

// TCP returns what lies below, nil if it is something else.
func (r *replayed) TCP() *net.TCPConn { return tcpOf(r.Conn) }

// CloseWrite sends the end of what was written, where it is a TCP connection.
func (r *replayed) CloseWrite() error {
	half, ok := r.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// Source implements Layered.
func (r *replayed) Source() io.Reader {
	if len(r.first) > 0 {
		return r
	}
	return r.source()
}

// NonBlocking implements Layered.
func (r *replayed) NonBlocking() TryWriter { return NonBlocking(r.Conn) }

// Resumable implements Layered.
func (r *replayed) Resumable() bool { return Resumable(r.Conn) }
