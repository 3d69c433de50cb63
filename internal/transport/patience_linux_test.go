//go:build !race

package transport_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gopccl/gopccl/internal/transport"
)

// eventually waits until the system says so of the socket of c, also while others read it.
func eventually(t *testing.T, c net.Conn, ask func(fd int) (int, error), bytes int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		n, err := 0, error(nil)
		gone := raw.Control(func(fd uintptr) { n, err = ask(int(fd)) })
		return gone == nil && err == nil && n == bytes
	}, 10*time.Second, time.Millisecond)
}

// waitsFor is for how many bytes the system has readers wait, and holds how many it has for them.
func waitsFor(fd int) (int, error) { return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT) }
func holds(fd int) (int, error)    { return unix.IoctlGetInt(fd, unix.TIOCINQ) }

// part is what a read of a payload has given.
type part struct {
	n   int
	err error
}

// A reader with patience is woken for many bytes of a frame at once: for as many as it has the
// patience for, for the rest of the frame, or for what there is when the stream ends. Between frames it
// is woken by the first byte.
func TestPatience(t *testing.T) {
	const size, patience = 10_000, 4096
	a, b := sockets(t)
	r := transport.NewReader(transport.Source(b), 256)
	r.SetPatience(patience, time.Hour)
	frame := make([]byte, transport.HeaderSize+size)
	fill(frame)
	transport.Header{Payload: size, Tag: 1, Stream: 2}.Put((*[transport.HeaderSize]byte)(frame))

	parts := make(chan part, size) // the reader never waits for the test
	got := make([]byte, size)
	go func() {
		defer close(parts)
		for at := 0; ; {
			if r.Left() == 0 {
				if _, err := r.Next(); err != nil {
					parts <- part{0, err}
					return
				}
				at = 0
			}
			n, err := r.Payload(got[at:size])
			parts <- part{n, err}
			if at += n; err != nil {
				return
			}
		}
	}()
	settles := func(bytes int) { t.Helper(); eventually(t, b, waitsFor, bytes) }
	written := 0
	write := func(n int) {
		_, err := a.Write(frame[written : written+n])
		require.NoError(t, err)
		written += n
	}

	begin := func() {
		written = 0
		write(transport.HeaderSize + 1000)
		for n := 0; n < 1000; { // what is behind the header in its buffer comes by itself
			p := <-parts
			require.NoError(t, p.err)
			n += p.n
		}
		settles(patience)
	}

	begin()
	write(2000)
	eventually(t, b, holds, 2000)
	write(patience - 2000)
	require.Equal(t, part{n: patience}, <-parts)
	settles(patience)
	write(patience)
	require.Equal(t, part{n: patience}, <-parts)
	settles(size - 1000 - 2*patience)
	write(size - 1000 - 2*patience)
	require.Equal(t, part{n: size - 1000 - 2*patience}, <-parts)
	require.Equal(t, frame[transport.HeaderSize:], got)
	settles(1)

	begin()
	write(10)
	require.NoError(t, a.Close())
	require.Equal(t, part{n: 10}, <-parts)
	require.Equal(t, part{err: io.ErrUnexpectedEOF}, <-parts)
	_, more := <-parts
	require.False(t, more)
}

// A wait that is interrupted is over, and the next one is for what comes. Where little comes in the time
// that is to be waited, a reader is woken by each packet.
func TestPatienceEnds(t *testing.T) {
	const size, patience = 10_000, 4096
	for name, within := range map[string]time.Duration{"interrupted": time.Hour, "slow": 1} {
		t.Run(name, func(t *testing.T) {
			a, b := sockets(t)
			r := transport.NewReader(transport.Source(b), 64)
			r.SetPatience(patience, within)
			frame := make([]byte, transport.HeaderSize+size)
			transport.Header{Payload: size, Tag: 1, Stream: 2}.Put((*[transport.HeaderSize]byte)(frame))
			_, err := a.Write(frame[:transport.HeaderSize])
			require.NoError(t, err)
			_, err = r.Next()
			require.NoError(t, err)
			parts, got := make(chan part, 1), make([]byte, size)
			read := func() {
				n, err := r.Payload(got)
				parts <- part{n, err}
			}
			go read()
			eventually(t, b, waitsFor, patience)
			if within == time.Hour {
				require.NoError(t, b.SetReadDeadline(time.Unix(1, 0)))
				p := <-parts
				require.Zero(t, p.n)
				require.True(t, transport.IsTimeout(p.err), p.err)
				require.NoError(t, b.SetReadDeadline(time.Time{}))
			} else {
				_, err = a.Write(make([]byte, patience))
				require.NoError(t, err)
				require.Equal(t, part{n: patience}, <-parts)
				got = got[patience:]
			}
			go read()
			eventually(t, b, waitsFor, 1)
			_, err = a.Write(make([]byte, 10))
			require.NoError(t, err)
			require.Equal(t, part{n: 10}, <-parts)
		})
	}
}

// Patience is that of the socket also where a first byte was read before.
func TestPatienceBehindAFirstByte(t *testing.T) {
	const size = 10_000
	a, b := sockets(t)
	var head [transport.HeaderSize]byte
	transport.Header{Payload: size, Tag: 1, Stream: 2}.Put(&head)
	_, err := a.Write(head[:])
	require.NoError(t, err)
	first := make([]byte, 1)
	_, err = io.ReadFull(b, first)
	require.NoError(t, err)
	r := transport.NewReader(transport.Source(transport.Replay(b, first)), 64)
	r.SetPatience(4096, time.Hour)
	h, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, size, h.Payload)
	parts, got := make(chan part, 1), make([]byte, size)
	go func() {
		n, err := r.Payload(got)
		parts <- part{n, err}
	}()
	eventually(t, b, waitsFor, 4096)
	require.NoError(t, a.Close())
	require.Equal(t, part{err: io.ErrUnexpectedEOF}, <-parts)
}
