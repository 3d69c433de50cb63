package transporttest

import (
	"bytes"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ net.Conn = (*Conn)(nil)

func TestBytesArrive(t *testing.T) {
	for _, o := range []Options{{}, {Buffer: 3}, {Piece: 2}, {Delay: time.Millisecond}, {Rate: 1 << 20, Buffer: 100}} {
		a, b := Pair(o)
		msg := bytes.Repeat([]byte("hello"), 200)
		go func() {
			a.Write(msg)
			a.Close()
		}()
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, msg, got)
		b.Close()
	}
}

func TestFaults(t *testing.T) {
	a, b := Pair(Options{Buffer: 10})
	a.Corrupt(1, 0xff)
	a.CutAfter(4)
	n, err := a.Write([]byte{1, 2, 3, 4, 5})
	require.Equal(t, 4, n)
	require.Equal(t, syscall.ECONNRESET, err)
	got := make([]byte, 10)
	n, err = b.Read(got)
	require.NoError(t, err)
	require.Equal(t, []byte{1, 0xfd, 3, 4}, got[:n])
	_, err = b.Read(got)
	require.Equal(t, syscall.ECONNRESET, err)

	a, b = Pair(Options{Buffer: 2})
	a.Stall(true)
	n, err = a.TryWrite([]byte{1, 2, 3})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.EqualValues(t, 2, a.Written())
	b.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err = b.Read(got)
	require.Equal(t, os.ErrDeadlineExceeded, err)
	b.SetReadDeadline(time.Time{})
	a.Stall(false)
	n, err = b.Read(got)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	b.Cut()
	_, err = a.Write(got)
	require.Equal(t, syscall.ECONNRESET, err)

	a, b = Pair(Options{})
	b.Close()
	_, err = a.Write(got)
	require.Equal(t, syscall.EPIPE, err)
	_, err = b.Read(got)
	require.ErrorIs(t, err, net.ErrClosed)
}

// A reader that closes its own end when the connection is cut does not make an orderly end of it for the other one. What closes
// an end sees that before the other end does.
func TestEndsAtOnce(t *testing.T) {
	reads := func(c *Conn) chan error {
		err := make(chan error, 1)
		go func() {
			_, e := c.Read(make([]byte, 1))
			c.Close()
			err <- e
		}()
		return err
	}
	for range 2000 {
		a, b := Pair(Options{})
		first, second := reads(a), reads(b)
		a.Cut()
		require.Equal(t, syscall.ECONNRESET, <-first)
		require.Equal(t, syscall.ECONNRESET, <-second)

		a, b = Pair(Options{})
		first, second = reads(a), reads(b)
		a.Close()
		require.Equal(t, net.ErrClosed, <-first)
		require.Equal(t, io.EOF, <-second)
	}
}
