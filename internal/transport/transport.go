// Package transport is what the data path needs from sockets: frames out of a
// byte stream, writes that never wait, and looks at what has come.
package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/gopccl/gopccl/internal/wire"
)

// HeaderSize is the size of a frame header.
const HeaderSize = wire.FrameHeaderSize

// Header is the header of a multiplexed frame.
type Header struct {
	Payload int    // bytes, 1 .. wire.MaxFramePayload
	Tag     uint64 // of the collective
	Stream  uint64 // sequence number of the operation
}

// Put writes the header to b.
func (h Header) Put(b *[HeaderSize]byte) { wire.PutFrameHeader(b, h.Payload, h.Tag, h.Stream) }

// Reader cuts a stream into frames. Headers and small payloads come out of its
// buffer, the rest of large payloads is read straight into the caller's memory.
// Not safe for concurrent use.
type Reader struct {
	src  io.Reader
	buf  []byte
	r, w int
	left int // payload bytes of the current frame not yet handed out
	// BeforeRead, if set, runs before every read of the source: the moment when
	// the reader may have to wait, so that everything due should be on its way.
	BeforeRead func()

	patient  Patient       // the source, if it can wait for more than a byte; nil: it is not to
	patience int           // the bytes that a read waits for at most
	within   time.Duration // ... that come in that time
	come     int           // bytes that come in that time, by the last read in a frame; at least 1
}

// Patient is a source that can wait for more than a byte.
type Patient interface {
	// WaitFor has reads that have to wait do so for so many bytes, 1 or more, until it is called
	// again. They wait for less if the system has no room for as many, or the stream ends, and
	// take at once what is there. The goroutine that reads calls it.
	WaitFor(bytes int)
}

// NewReader returns a Reader with a buffer of size bytes (at least HeaderSize).
func NewReader(src io.Reader, size int) *Reader {
	return &Reader{src: src, buf: make([]byte, max(size, HeaderSize))}
}

// SetPatience has reads in the middle of a frame wait for what they are to read, if the source can:
// for no more than so many bytes, nor for more than come within that time at the pace of the read
// before. Over a way on which every packet comes by itself each of them wakes the process otherwise.
// A wait has no bound of its own: it ends as any read of the source does.
func (r *Reader) SetPatience(bytes int, within time.Duration) {
	if p, ok := r.src.(Patient); ok {
		r.patient, r.patience, r.within, r.come = p, bytes, within, bytes
	}
}

// Left returns how many payload bytes of the current frame are still to be read.
func (r *Reader) Left() int { return r.left }

// read reads the source, of which want bytes are asked for: more may come, and at least one.
func (r *Reader) read(p []byte, want int) (int, error) {
	if r.BeforeRead != nil {
		r.BeforeRead()
	}
	n, err := r.readPatiently(p, want)
	if n > 0 {
		return n, nil // an error with data comes again at the next read
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return 0, err
}

// readPatiently is a read of the source, with patience if that has any, amid a frame.
func (r *Reader) readPatiently(p []byte, want int) (int, error) {
	if r.patient == nil {
		return r.src.Read(p)
	}
	if r.left == 0 {
		r.patient.WaitFor(1)
		return r.src.Read(p)
	}
	r.patient.WaitFor(min(want, r.patience, r.come))
	began := time.Now()
	n, err := r.src.Read(p)
	took := max(time.Since(began), 1)
	r.come = max(1, int(min(float64(n)*float64(r.within)/float64(took), float64(r.patience))))
	return n, err
}

// Next reads the header of the next frame; the current frame must be used up.
// An error between two frames is the source's, io.EOF included; inside a header
// io.EOF becomes io.ErrUnexpectedEOF. A header that the
// protocol does not allow is an *errs.Error with code Protocol. After a
// deadline error Next may be called again.
func (r *Reader) Next() (Header, error) {
	for r.w-r.r < HeaderSize {
		if r.r == r.w {
			r.r, r.w = 0, 0
		} else if len(r.buf)-r.r < HeaderSize {
			r.w = copy(r.buf, r.buf[r.r:r.w])
			r.r = 0
		}
		n, err := r.read(r.buf[r.w:], 1)
		if err != nil {
			if err == io.EOF && r.w > r.r {
				err = io.ErrUnexpectedEOF
			}
			return Header{}, err
		}
		r.w += n
	}
	var h Header
	var err error
	h.Payload, h.Tag, h.Stream, err = wire.ParseFrameHeader((*[HeaderSize]byte)(r.buf[r.r:]))
	if err != nil {
		return Header{}, err
	}
	r.r += HeaderSize
	r.left = h.Payload
	return h, nil
}

// Payload reads between 1 and len(p) payload bytes of the current frame into p,
// as many as one read of the source gives. p must not be empty nor longer than Left.
func (r *Reader) Payload(p []byte) (int, error) {
	if len(p) > r.left {
		return 0, fmt.Errorf("transport: read of %d payload bytes, %d left", len(p), r.left)
	}
	if r.r < r.w {
		n := copy(p, r.buf[r.r:r.w])
		r.r += n
		r.left -= n
		return n, nil
	}
	if len(p) < len(r.buf) {
		r.r, r.w = 0, 0
		n, err := r.read(r.buf, len(p))
		if err != nil {
			return 0, unexpected(err)
		}
		r.w = n
		n = copy(p, r.buf[:r.w])
		r.r = n
		r.left -= n
		return n, nil
	}
	n, err := r.read(p, len(p))
	r.left -= n
	return n, unexpected(err)
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// TryWriter writes without waiting.
type TryWriter interface {
	// TryWrite hands as much of p to the system as it takes at once and returns
	// the number of bytes; fewer than len(p) with a nil error means that the
	// rest would have to wait.
	TryWrite(p []byte) (int, error)
}

// VecWriter is a TryWriter that takes several buffers in one call.
type VecWriter interface {
	TryWriter
	// TryWriteAll is TryWrite for the buffers of vec one after another.
	TryWriteAll(vec [][]byte) (int, error)
	// WriteAll writes the buffers of vec one after another and waits as a write
	// of the connection does. It changes vec.
	WriteAll(vec [][]byte) (int, error)
}

// Layered is a connection on top of another one, with ways of its own to be read
// and written.
type Layered interface {
	net.Conn
	// Source returns what reads the connection.
	Source() io.Reader
	// NonBlocking returns what writes without waiting, nil: nothing does.
	NonBlocking() TryWriter
	// Resumable says what the function of this name says.
	Resumable() bool
}

// Flusher is a TryWriter that may keep bytes it has taken. They go with the next
// write, which may be one of nothing.
type Flusher interface {
	TryWriter
	// Flushed reports whether the system has all bytes that were taken.
	Flushed() bool
}

// Keeps reports whether t has taken bytes that the system does not have yet. t may be nil.
func Keeps(t TryWriter) bool {
	f, may := t.(Flusher)
	return may && !f.Flushed()
}

// Source returns what reads c at the least cost. It waits and fails as reads of c
// do. Not safe for concurrent use, nor beside reads of c.
func Source(c net.Conn) io.Reader {
	if l, ok := c.(Layered); ok {
		return l.Source()
	}
	return newSource(c)
}

// Resumable reports whether a write on c that a deadline interrupted says
// exactly how much it sent, so that the rest can follow later.
func Resumable(c net.Conn) bool {
	if l, ok := c.(Layered); ok {
		return l.Resumable()
	}
	return resumable(c)
}

// NonBlocking returns a TryWriter on c, nil if this connection or system has
// none. It may be used beside other writes of c, not concurrently with them.
func NonBlocking(c net.Conn) TryWriter {
	if l, ok := c.(Layered); ok {
		return l.NonBlocking()
	}
	if t, ok := c.(TryWriter); ok {
		return t
	}
	return nonBlocking(c)
}

// IsTimeout reports whether err says that a deadline passed.
func IsTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
