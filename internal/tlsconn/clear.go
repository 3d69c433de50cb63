package tlsconn

import (
	"context"
	"errors"
	"io"

	"github.com/gopccl/gopccl/internal/transport"
)

var errNoEnd = errors.New("the other endpoint goes on in TLS, where both had agreed to end it")

// Clear ends TLS, and has the connection go on with its socket. What is written and read
// from then on is neither encrypted nor protected: the handshake has only said who was at
// the other end. Both ends call it when their handshake has succeeded, and before anything
// else; the one that has dialled then writes first. It ends with ctx, or with the deadlines
// of the connection. If it fails, the connection is of no use.
//
// Each end says in TLS that its stream is over, and reads that of the other one. Nobody
// writes in plaintext before that, so crypto/tls has read nothing of what follows.
func (c *Conn) Clear(ctx context.Context, dialled bool) error {
	c.reading.Lock()
	defer c.reading.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) })
	err := c.part(dialled)
	if !stop() {
		return context.Cause(ctx)
	}
	c.clear.Store(err == nil)
	return err
}

// Begins waits for the first byte of a connection that was accepted, in front of its
// handshake, and reports whether it is one of TLS. If it is not, the connection goes on with
// its socket, and there is no handshake. It ends with ctx, or with the deadlines of the
// connection. If it fails, the connection is of no use.
func (c *Conn) Begins(ctx context.Context) (inTLS bool, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) })
	r := &resumed{c: c, src: c.pump.src}
	_, err = io.ReadFull(r.src, r.first[:])
	if !stop() {
		return false, context.Cause(ctx)
	}
	if err != nil {
		return false, err
	}
	c.pump.src = r
	inTLS = r.first[0] == transport.RecordTLS
	c.clear.Store(!inTLS)
	return inTLS, nil
}

// resumed is a socket of which the first byte was read. It gives its place up to what it
// reads from.
type resumed struct {
	c     *Conn
	src   io.Reader
	first [1]byte
}

// Read is called where Conn.reading is held.
func (r *resumed) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.c.pump.src = r.src
	return copy(p, r.first[:]), nil
}

// InClear reports whether the connection is past Clear, or has not begun in TLS.
func (c *Conn) InClear() bool { return c.clear.Load() }

func (c *Conn) part(dialled bool) error {
	if !dialled {
		if err := c.hearEnd(); err != nil {
			return err
		}
	}
	if err := c.writer.tls.CloseWrite(); err != nil {
		return err
	}
	if err := c.pump.flush(); err != nil {
		return err
	}
	if dialled {
		return c.hearEnd()
	}
	return nil
}

func (c *Conn) hearEnd() error {
	var b [1]byte
	n, err := c.in.Read(b[:])
	switch {
	case n > 0 || len(c.pump.in) > 0:
		return errNoEnd
	case err == io.EOF:
		return nil
	}
	return err
}

// bare writes the buffers of vec as the socket does, as far as it may wait.
func (w *writer) bare(vec [][]byte, wait bool) (n int, err error) {
	switch {
	case w.all != nil && wait:
		return w.all.WriteAll(vec)
	case w.all != nil:
		return w.all.TryWriteAll(vec)
	}
	for _, b := range vec {
		var k int
		if wait {
			k, err = w.c.Conn.Write(b)
		} else {
			k, err = w.try.TryWrite(b)
		}
		if n += k; err != nil || k < len(b) {
			return n, err
		}
	}
	return n, nil
}
